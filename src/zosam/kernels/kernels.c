/* Sparse convolution on blocked activations, with the element-wise work around it fused in.
 *
 * Layout.  An activation is [blocks][channels][plane], where a plane holds H * W vectors of LANES
 * images, followed by a little padding that keeps channels off the same cache sets.  LANES images lie
 * innermost, so ONE weight is one broadcast and one multiply-add for LANES images, at any position,
 * stride and kernel size: no gather, no scatter, nothing to pack.
 *
 * Walk.  A row tile of output vectors stays in registers while the active weights of one output channel
 * are walked.  The index holds, per active weight, its offset in a padded copy ("band") of the input.
 * The same walk over the transposed index gives the input gradient; the weight gradient is a dot product
 * per active weight.
 *
 * Fusion.  A Source says what is read: relu(xs * (x - xc) + xb + ys * (y - yc) + yb + z), so that batch norm,
 * residual and ReLU (or another activation) of the layer before happen while the band is filled.  A Sink says what is done
 * with a result before it is stored: add a tensor, close the gate of a ReLU, sum what batch norm needs.
 *
 * Rows.  A linear layer is a 1 x 1 convolution on small images whose pixels are the rows of its input.
 *
 * Threads.  They take blocks of the batch, each a range of its own and then what others have left.  Who took which
 * does not matter: sums over the batch are made per chunk of blocks and joined in order, so results depend on the
 * number of threads only.
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 16
#define VARIANT "x86-64-v4"
#elif defined(__AVX2__)
#define WIDTH 8
#define VARIANT "x86-64-v3"
#else
#define WIDTH 4
#define VARIANT "portable"
#endif
#ifndef LANES /* a test may ask for more lanes than the registers hold; the compiler then takes several */
#define LANES WIDTH
#endif

typedef float V __attribute__((vector_size(LANES * 4)));
typedef int32_t M __attribute__((vector_size(LANES * 4)));
typedef double D __attribute__((vector_size(LANES * 4))); /* half as many numbers, in a register as wide */
typedef int64_t N __attribute__((vector_size(LANES * 4)));
#define HALF (LANES / 2)
#define LINE 16 /* floats in a cache line */

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define EXPORT __attribute__((visibility("default")))

ALWAYS V load(const float *p) { return *(const V *)p; }
ALWAYS void store(float *p, V v) { *(V *)p = v; }
/* Past the caches: the line is not read from memory before it is written, and pushes out nothing that is needed now. */
ALWAYS void store_past(float *p, V v) {
#if defined(__AVX512F__) && LANES == 16
    __builtin_ia32_movntps512(p, v);
#elif defined(__AVX2__) && LANES == 8
    __builtin_ia32_movntps256(p, v);
#else
    store(p, v);
#endif
}
ALWAYS V splat(float f) { return f - (V){}; }
/* Written with comparisons that are false for NaN, so that NaN passes as it does in torch. */
ALWAYS V relu(V v) { return (V)((M)v & ~(v < 0.0f)); }
ALWAYS V where_positive(V v, V gate) { return (V)((M)v & ~(gate <= 0.0f)); }

ALWAYS V pick(M where, V yes, V no) { return (V)(((M)yes & where) | ((M)no & ~where)); }

/* e^x for x <= 0, within two units in the last place: 2^n times a polynomial in what is left. */
ALWAYS V exp_negative(V x) {
    x = pick(x < -87.0f, splat(-87.0f), x);
    V n = x * 1.44269504f + 12582912.0f; /* this many added, the integer lies in the low bits */
    V power = (V)(((M)n + 127) << 23);
    n -= 12582912.0f;
    V r = x - n * 0.693359375f + n * 2.12194440e-4f;
    V q = ((r * 1.381316e-3f + 8.369411e-3f) * r + 4.1668456e-2f) * r + 1.66665149e-1f;
    return ((q * r + 0.49999993f) * r * r + r + 1.0f) * power;
}

/* The normal distribution: its density at x is returned, the mass below x is left in `below`.
 * The mass of a tail is the density times a polynomial in 1 / (1 + 0.29 |x|), fitted to a relative error of 1e-8. */
ALWAYS V normal(V x, V *below) {
    V a = (V)((M)x & 0x7fffffff), density = exp_negative(a * a * -0.5f), t = 1.0f / (a * 0.29f + 1.0f);
    V p = ((t * 0.0394736622f - 0.192956441f) * t + 0.304911374f) * t - 0.147732395f;
    p = (((p * t + 0.181470026f) * t + 0.0796369358f) * t + 0.119775943f) * t + 0.1154209f;
    V tail = p * t * density;
    *below = pick(x < 0.0f, tail, 1.0f - tail);
    return density * 0.398942280f;
}

ALWAYS V gelu(V x) {
    V below;
    normal(x, &below);
    return x * below;
}

ALWAYS V gelu_slope(V x) {
    V below, density = normal(x, &below);
    return below + x * density;
}

ALWAYS V sigmoid(V x) {
    V e = exp_negative((V)((M)x | (int32_t)0x80000000)), below = 1.0f / (1.0f + e);
    return pick(x < 0.0f, e * below, below);
}

ALWAYS V clamp6(V x) { return pick(x > 6.0f, splat(6.0f), relu(x)); }

ALWAYS D wide(const float *p) { /* HALF numbers */
    typedef float H __attribute__((vector_size(LANES * 2)));
    return __builtin_convertvector(*(const H *)p, D);
}

ALWAYS D where(N mask, D v) { return (D)((N)v & mask); }

ALWAYS double across(D v) {
    double sum = 0;
    UNROLL for (int i = 0; i < HALF; i++) sum += v[i];
    return sum;
}

ALWAYS float or_one(const float *p, int64_t c) { return p ? p[c] : 1.0f; }
ALWAYS float or_zero(const float *p, int64_t c) { return p ? p[c] : 0.0f; }

/* ---- structures shared with Python (library.py) -------------------------------------------------- */

enum { NONE, RELU, GELU, RELU6, HARDSWISH, SILU };

/* Activations other than ReLU, and their slopes. */
ALWAYS V bend(int64_t activation, V x) {
    switch (activation) {
    case GELU: return gelu(x);
    case RELU6: return clamp6(x);
    case HARDSWISH: return x * clamp6(x + 3.0f) * (1.0f / 6.0f);
    default: return x * sigmoid(x);
    }
}

ALWAYS V slope(int64_t activation, V x) {
    V s;
    switch (activation) {
    case GELU: return gelu_slope(x);
    case RELU6: return (V)((M)splat(1.0f) & ~((x <= 0.0f) | (x >= 6.0f)));
    case HARDSWISH: return pick(x >= 3.0f, splat(1.0f), (V)((M)(x * (1.0f / 3.0f) + 0.5f) & ~(x <= -3.0f)));
    default: s = sigmoid(x); return s * (1.0f + x * (1.0f - s));
    }
}

typedef struct { /* relu(xs * (x - xc) + xb + ys * (y - yc) + yb + z); vectors per channel, NULL for 1 or 0 */
    const float *x, *xs, *xc, *xb, *y, *ys, *yc, *yb, *z;
    float *out;         /* also stored here, if not NULL */
    const float *m;     /* and multiplied by this, if not NULL */
    int64_t activation; /* those other than RELU take x alone */
    int64_t past;       /* `out` is stored past the caches */
} Source;

typedef struct { /* out = gate(v + bias + add), with two sums per channel */
    float *out;
    const float *bias, *add;
    const float *gate, *gs, *gc, *gb; /* zero where gs * (gate - gc) + gb <= 0; or times a slope there */
    const float *with, *center;       /* sums v and v * (with - center); if NULL, v and v * v (shifted) */
    float *stats;                     /* [blocks][channels][3][LANES]: shift, first sum, second sum */
    int64_t activation;
    int64_t past; /* `out` is stored past the caches, where tiles of a convolution make it */
} Sink;

typedef struct { /* active weights by group and row: offsets into a band, and where the value lies in the weight */
    const int32_t *start, *offset, *pick;
    float *value;
    int64_t groups; /* groups of source channels: a tile reads one group at a time, which fits the L1 cache */
} Index;

typedef struct {
    int64_t images, inputs, outputs, height, width;
    int64_t kernel, stride;          /* rows that the kernel reaches over */
    int64_t pad, side;               /* zeros above and below, left and right */
    int64_t out_height, out_width;
    int64_t in_plane, out_plane;     /* floats between channels of the input and of the output */
    int64_t rows;                    /* output rows per band */
    int64_t in_band, out_band;       /* floats between channels of a band of the input / output gradient */
    int64_t top, bottom, left, right; /* zero rows and columns around a band of the output gradient */
    int64_t active;                  /* number of active weights */
} Shape;

EXPORT int64_t zk_lanes(void) { return LANES; }
EXPORT const char *zk_variant(void) { return VARIANT; }

/* ---- threads: chunks of a job run on a pool; each is the same work whoever runs it ------------------- */

#define MAX_THREADS 64
#define SPIN 4000
typedef void (*Work)(void *job, int thread, int64_t chunk, int64_t chunks);

static struct {
    pthread_mutex_t lock, busy;
    pthread_cond_t wake, done;
    int workers, threads, open, inside, backwards;
    uint64_t round;
    int64_t chunks;
    Work work;
    void *job;
    struct { /* what a thread has yet to do: first chunk in the low half, one past the last in the high half */
        uint64_t range;
        char apart[56];
    } left[MAX_THREADS];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .busy = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static uint64_t hired_at[MAX_THREADS]; /* a new worker must not mistake the last round for a new one */

ALWAYS void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A chunk of what `owner` has left, from its near end or its far end; -1 if there is none. */
static int64_t take(int owner, int far_end) {
    uint64_t *left = &pool.left[owner].range, now = __atomic_load_n(left, __ATOMIC_ACQUIRE);
    for (;;) {
        uint64_t first = now & 0xffffffff, end = now >> 32;
        if (first == end) return -1;
        uint64_t then = far_end ? first | (end - 1) << 32 : (first + 1) | end << 32;
        if (__atomic_compare_exchange_n(left, &now, then, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            return (int64_t)(far_end ? end - 1 : first);
        }
    }
}

/* First its own chunks, then those that others have not come to: nobody waits for a thread that was held up. */
static void work_off(int me) {
    for (int turn = 0; turn < pool.threads; turn++) {
        int owner = (me + turn) % pool.threads;
        for (int64_t chunk; (chunk = take(owner, pool.backwards ^ (turn > 0))) >= 0;) {
            pool.work(pool.job, me, chunk, pool.chunks);
        }
    }
#if defined(__SSE__)
    __builtin_ia32_sfence(); /* what went past the caches is there before anybody is told that the work is done */
#endif
}

static void *worker(void *argument) {
    int me = (int)(intptr_t)argument;
    uint64_t seen = hired_at[me];
    for (;;) {
        for (int i = 0; i < SPIN && __atomic_load_n(&pool.round, __ATOMIC_ACQUIRE) == seen; i++) relax();
        pthread_mutex_lock(&pool.lock);
        while (pool.round == seen) pthread_cond_wait(&pool.wake, &pool.lock);
        seen = pool.round;
        int wanted = pool.open && me < pool.threads;
        __atomic_add_fetch(&pool.inside, wanted, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&pool.lock);
        if (!wanted) continue; /* not needed, or too late */
        work_off(me);
        pthread_mutex_lock(&pool.lock);
        if (__atomic_sub_fetch(&pool.inside, 1, __ATOMIC_RELEASE) == 0) pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.lock);
    }
    return NULL;
}

/* How the program around us runs a function on several threads, and which of them one is, if it has said so. */
static void (*team)(void (*function)(void *), void *argument, unsigned threads, unsigned flags);
static int (*seat)(void);

static void forget_workers(void) { /* a forked child has none of the parent's threads */
    team = NULL;
    pool.workers = pool.open = pool.inside = 0;
    pool.round = 0;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&pool.busy, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
}

static void mind_forks(void) {
    static int registered = 0;
    if (!registered) pthread_atfork(NULL, NULL, forget_workers);
    registered = 1;
}

/* GOMP_parallel and omp_get_thread_num of the OpenMP runtime that the program uses anyway.  Its idle threads wait in a
 * loop for some milliseconds, so that threads of our own would have to share their cores.  NULL: threads of our own. */
EXPORT void zk_use_team(void *parallel, void *thread_number) {
    mind_forks();
    *(void **)&team = parallel;
    *(void **)&seat = thread_number;
}

/* The same thread takes the same blocks in every call, and finds some of them in its own cache. */
static void join_in(void *unused) {
    (void)unused;
    work_off(seat());
}

static void hire(int threads) {
    mind_forks();
    while (pool.workers < threads - 1) {
        hired_at[pool.workers + 1] = pool.round;
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &attributes, worker, (void *)(intptr_t)(pool.workers + 1));
        pthread_attr_destroy(&attributes);
        if (failed) return;
        pool.workers++;
    }
}

/* Every thread has a contiguous range of chunks and walks it from its first, or `backwards` from its last. */
static void run(Work work, void *job, int64_t chunks, int threads, int backwards) {
    if (threads > chunks) threads = (int)chunks;
    if (!team) {
        if (threads > 1) hire(threads);
        if (threads > pool.workers + 1) threads = pool.workers + 1;
    }
    pthread_mutex_lock(&pool.lock);
    pool.work = work;
    pool.job = job;
    pool.chunks = chunks;
    pool.threads = threads;
    pool.backwards = backwards;
    for (int i = 0; i < threads; i++) {
        uint64_t first = (uint64_t)(chunks * i / threads), end = (uint64_t)(chunks * (i + 1) / threads);
        __atomic_store_n(&pool.left[i].range, first | end << 32, __ATOMIC_RELEASE);
    }
    if (threads > 1 && !team) {
        pool.open = 1;
        __atomic_store_n(&pool.round, pool.round + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&pool.wake);
    }
    pthread_mutex_unlock(&pool.lock);
    if (threads > 1 && team) {
        team(join_in, NULL, (unsigned)threads, 0);
        return;
    }
    work_off(0);
    for (int i = 0; i < SPIN && __atomic_load_n(&pool.inside, __ATOMIC_ACQUIRE); i++) relax();
    pthread_mutex_lock(&pool.lock);
    pool.open = 0;
    while (pool.inside) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* Scratch memory, kept between calls: sums for each chunk, the rest for each thread.  Calls are serialised by
 * pool.busy. */
enum { BAND, GRADIENT_BAND, SUMS, PARTIAL, SLOTS };
#define MAX_SUMS (4 * MAX_THREADS)
static struct { float *data; size_t size; } scratch[MAX_SUMS][SLOTS];

static int reserve(int64_t count, int slot, size_t floats) {
    for (int64_t i = 0; i < count; i++) {
        if (scratch[i][slot].size >= floats) continue;
        free(scratch[i][slot].data);
        scratch[i][slot].data = NULL;
        scratch[i][slot].size = 0;
        void *data = NULL;
        if (posix_memalign(&data, 4096, floats * sizeof(float) + 4096)) return -1;
        scratch[i][slot].data = data;
        scratch[i][slot].size = floats;
    }
    return 0;
}

/* Vector i of the sums of all chunks, as one number. */
static float total(int64_t i, int64_t chunks) {
    D all = {};
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const float *sums = scratch[chunk][SUMS].data + i * LANES;
        all += wide(sums) + wide(sums + HALF);
    }
    return (float)across(all);
}

static int64_t blocks_of(int64_t images) { return (images + LANES - 1) / LANES; }

static int threads_for(int64_t threads) {
    return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int)threads;
}

/* In how many chunks blocks are summed.  The more, the less a thread waits for the last one; but the `sums` of all
 * chunks, in vectors, must be few against the `values` of all blocks that they are taken over. */
static int64_t chunks_for(int64_t blocks, int threads, int64_t sums, int64_t values) {
    int64_t most = blocks * values / (8 * sums);
    if (most < 2 * threads) most = 2 * threads;
    if (most > MAX_SUMS) most = MAX_SUMS;
    int64_t each = (blocks + most - 1) / most;
    return threads > 1 ? (blocks + each - 1) / each : 1;
}

/* The blocks of one chunk, first to last or last to first: what was written last is read first. */
#define EACH_BLOCK(n, blocks, chunk, chunks, backwards)                                                     \
    for (int64_t from_ = (blocks) * (chunk) / (chunks), to_ = (blocks) * ((chunk) + 1) / (chunks), i_ = from_, \
                 n = (backwards) ? to_ - 1 : from_;                                                          \
         i_ < to_; i_++, n += (backwards) ? -1 : 1)

/* Inside of that: the block after n, -1 if n is the last. */
#define NEXT_BLOCK(n, backwards) (i_ + 1 == to_ ? -1 : (backwards) ? n - 1 : n + 1)

/* All ones in the lanes that hold an image; a batch rarely fills the last block. */
ALWAYS M real_lanes(int64_t images, int64_t block) {
    M mask;
    for (int lane = 0; lane < LANES; lane++) mask[lane] = block * LANES + lane < images ? -1 : 0;
    return mask;
}

/* ---- filling a band from a Source ------------------------------------------------------------------ */

enum { WITH_Y = 1, WITH_Z = 2, WITH_RELU = 4, WITH_OUT = 8, WITH_CURVE = 16 };

static int source_flags(const Source *s) {
    int bend = s->activation == RELU ? WITH_RELU : s->activation ? WITH_CURVE : 0;
    return bend | (s->y ? WITH_Y : 0) | (s->z ? WITH_Z : 0) | (s->out ? WITH_OUT : 0);
}

/* `count` vectors at offset `at` of channel c, into `band`. */
ALWAYS void read_run(const int flags, const Source *s, int64_t c, int64_t at, int64_t count, M lanes, float *band) {
    V xs = splat(or_one(s->xs, c)), xc = splat(or_zero(s->xc, c));
    V ys = splat(or_one(s->ys, c)), yc = splat(or_zero(s->yc, c)), b = splat(or_zero(s->xb, c) + or_zero(s->yb, c));
    const float *x = s->x + at, *y = s->y + at, *z = s->z + at;
    float *out = s->out + at;
    for (int64_t i = 0; i < count * LANES; i += LANES) {
        V v = (load(x + i) - xc) * xs + b;
        if (flags & WITH_Y) v += (load(y + i) - yc) * ys;
        if (flags & WITH_Z) v += load(z + i);
        if (flags & WITH_RELU) v = relu(v);
        if (flags & WITH_CURVE) v = bend(s->activation, v);
        if (s->m) v *= load(s->m + at + i);
        v = (V)((M)v & lanes);
        store(band + i, v);
        if (flags & WITH_OUT) s->past ? store_past(out + i, v) : store(out + i, v);
    }
}

/* Fills rows [keep, rows) of a band whose row 0 is input row `row0`; rows before `keep` were moved up. */
ALWAYS void fill_with(const int flags, const Source *s, int64_t base, int64_t plane, int64_t channels, int64_t height,
                      int64_t width, int64_t row0, int64_t keep, int64_t rows, int64_t roll, int64_t left,
                      int64_t band_width, int64_t band_plane, M lanes, float *band) {
    int64_t row = band_width * LANES, right = band_width - left - width;
    for (int64_t c = 0; c < channels; c++) {
        float *to = band + c * band_plane;
        if (keep) memmove(to, to + roll * row, (size_t)(keep * row) * sizeof(float));
        for (int64_t r = keep; r < rows; r++) {
            int64_t h = row0 + r;
            float *line = to + r * row;
            if (h < 0 || h >= height) {
                memset(line, 0, (size_t)row * sizeof(float));
                continue;
            }
            for (int64_t i = 0; i < left; i++) store(line + i * LANES, (V){});
            for (int64_t i = 0; i < right; i++) store(line + (left + width + i) * LANES, (V){});
            read_run(flags, s, c, base + c * plane + h * width * LANES, width, lanes, line + left * LANES);
        }
    }
}

#define EACH_CASE(CASE) CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) \
    CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(WITH_CURVE) CASE((WITH_CURVE | WITH_OUT))

static void fill(const Source *s, int64_t base, int64_t plane, int64_t channels, int64_t height, int64_t width,
                 int64_t row0, int64_t keep, int64_t rows, int64_t roll, int64_t left, int64_t band_width,
                 int64_t band_plane, M lanes, float *band) {
#define CASE(f)                                                                                             \
    case f:                                                                                                 \
        fill_with(f, s, base, plane, channels, height, width, row0, keep, rows, roll, left, band_width, band_plane, \
                  lanes, band);                                                                             \
        break;
    switch (source_flags(s)) { EACH_CASE(CASE) }
#undef CASE
}

/* ---- fetching ahead ---------------------------------------------------------------------------------- */

/* What the next band reads, fetched a few lines at a time while the tiles of this one are computed: a band takes a short
 * run of each channel, too short for the CPU to see the pattern by itself. */
typedef struct {
    const float *from[3];
    int64_t streams, at, left, run, skip, channels, each;
    int64_t hop; /* from a tile to the next one, where a Sink reads on */
} Ahead;

/* `run` floats from `at` on in each of so many channels, spread over `turns`. */
static Ahead ahead_of(const Source *s, int64_t at, int64_t plane, int64_t run, int64_t channels, int64_t turns) {
    Ahead a = {.at = at, .left = run, .run = run, .skip = plane - run, .channels = channels};
    a.from[a.streams++] = s->x;
    if (s->y) a.from[a.streams++] = s->y;
    if (s->z) a.from[a.streams++] = s->z;
    a.each = run > 0 && turns > 0 ? (channels * ((run + LINE - 1) / LINE) + turns - 1) / turns : 0;
    return a;
}

static __attribute__((noinline)) void fetch(Ahead *a) {
    for (int64_t i = 0; i < a->each; i++) {
        for (int64_t k = 0; k < a->streams; k++) __builtin_prefetch(a->from[k] + a->at, 0, 2);
        a->at += LINE;
        a->left -= LINE;
        if (a->left > 0) continue;
        a->at += a->left + a->skip;
        a->left = a->run;
        if (--a->channels == 0) a->each = 0;
    }
}

/* ---- register tiles -------------------------------------------------------------------------------- */

/* Every vector q of a tile of TR x TC, at `p`: rows begin `row` floats apart, vectors `step`.  The compiler is kept from
 * finding an address for each vector: there are too few registers for so many. */
#define EACH_VECTOR(p, from, row, step, BODY)                                                        \
    UNROLL for (int r_ = 0; r_ < TR; r_++) {                                                         \
        __typeof__(&*(from)) p = (from) + r_ * (row);                                                \
        __asm__("" : "+r"(p));                                                                       \
        UNROLL for (int q = r_ * TC; q < (r_ + 1) * TC; q++, p += (step)) { BODY }                   \
    }

/* One tile of TR x TC output vectors, for every channel: walk the active weights, then the Sink. */
ALWAYS void product_tile(const int TR, const int TC, const int SI, const int SO, const float *band, int64_t band_row,
                         const Index *a, const Sink *k, float *stats, float *partial, int64_t at, int64_t plane,
                         int64_t row, int64_t channels, int first, Ahead *ahead) {
#define EACH_OF(tensor, BODY) EACH_VECTOR(p, (tensor) + at, row, SO *LANES, BODY)
    const int32_t *start = a->start;
    for (int64_t group = 1; group < a->groups; group++, start += channels) { /* all but the last: partial sums */
        for (int64_t c = 0; c < channels; c++) {
            V acc[16];
            float *sum = partial + c * TR * TC * LANES;
            int32_t i = start[c], end = start[c + 1];
            if (i == end && group > 1) continue;
            V bias = splat(or_zero(k->bias, c));
            UNROLL for (int q = 0; q < TR * TC; q++) acc[q] = group == 1 ? bias : load(sum + q * LANES);
            for (; i < end; i++) {
                const float *from = band + a->offset[i];
                V w = splat(a->value[i]);
                EACH_VECTOR(p, from, SI * band_row, SI * LANES, { acc[q] += w * load(p); })
            }
            UNROLL for (int q = 0; q < TR * TC; q++) store(sum + q * LANES, acc[q]);
        }
    }
    for (int64_t c = 0; c < channels; c++, at += plane) {
        V acc[16], s0, s1;
        V bias = splat(or_zero(k->bias, c));
        const float *sum = partial + c * TR * TC * LANES;
        UNROLL for (int q = 0; q < TR * TC; q++) acc[q] = a->groups == 1 ? bias : load(sum + q * LANES);
        for (int32_t i = start[c], end = start[c + 1]; i < end; i++) {
            const float *from = band + a->offset[i];
            V w = splat(a->value[i]);
            EACH_VECTOR(p, from, SI * band_row, SI * LANES, { acc[q] += w * load(p); })
        }
        fetch(ahead);
        if (k->add) EACH_OF(k->add + ahead->hop, { __builtin_prefetch(p, 0, 2); })
        if (k->with) EACH_OF(k->with + ahead->hop, { __builtin_prefetch(p, 0, 2); })
        if (k->add) EACH_OF(k->add, { acc[q] += load(p); })
        if (k->gate) {
            V gs = splat(or_one(k->gs, c)), gc = splat(or_zero(k->gc, c)), gb = splat(or_zero(k->gb, c));
            if (k->activation > RELU) {
                for (int q = 0; q < TR * TC; q++) {
                    const float *gate = k->gate + at + (q / TC) * row + (q % TC) * SO * LANES;
                    acc[q] *= slope(k->activation, (load(gate) - gc) * gs + gb);
                }
            } else {
                EACH_OF(k->gate, { acc[q] = where_positive(acc[q], (load(p) - gc) * gs + gb); })
            }
        }
        if (k->past && LANES * (SO == 1 ? TC : 1) >= LINE) { /* whole lines */
            EACH_OF(k->out, { store_past(p, acc[q]); })
        } else {
            EACH_OF(k->out, { store(p, acc[q]); })
        }
        if (!stats) continue;
        float *moments = stats + c * 3 * LANES;
        s0 = first ? (V){} : load(moments + LANES);
        s1 = first ? (V){} : load(moments + 2 * LANES);
        if (k->with) {
            V center = splat(k->center[c]);
            EACH_OF(k->with, {
                s0 += acc[q];
                s1 += acc[q] * (load(p) - center);
            })
        } else {
            V shift = first ? acc[0] : load(moments);
            if (first) store(moments, shift);
            V odd0 = {}, odd1 = {}; /* two chains of additions each: one would wait for itself */
            UNROLL for (int q = 0; q < TR * TC; q++) {
                V d = acc[q] - shift;
                if (q % 2) {
                    odd0 += d;
                    odd1 += d * d;
                } else {
                    s0 += d;
                    s1 += d * d;
                }
            }
            s0 += odd0;
            s1 += odd1;
        }
        store(moments + LANES, s0);
        store(moments + 2 * LANES, s1);
    }
#undef EACH_OF
}

/* One tile of the output gradient against the band: a dot product per active weight. */
ALWAYS void weight_tile(const int TR, const int TC, const int SI, const float *band, int64_t band_row, const Index *a,
                        const float *gradient, int64_t gradient_plane, int64_t gradient_row, int64_t channels,
                        float *sums, Ahead *ahead) {
    for (int64_t row = 0; row < channels * a->groups; row++) {
        fetch(ahead);
        int32_t i = a->start[row], end = a->start[row + 1];
        if (i == end) continue;
        V g[16];
        const float *from = gradient + row % channels * gradient_plane;
        UNROLL for (int q = 0; q < TR * TC; q++) g[q] = load(from + (q / TC) * gradient_row + (q % TC) * LANES);
        for (; i < end; i++) {
            const float *from = band + a->offset[i];
            V even = load(sums + (int64_t)i * LANES), odd = {};
            EACH_VECTOR(p, from, SI * band_row, SI * LANES, {
                V term = g[q] * load(p);
                if (q % 2) odd += term;
                else even += term;
            })
            store(sums + (int64_t)i * LANES, even + odd);
        }
    }
}

/* Tiles by shape: as wide as possible, the narrow ones taller, and one row of each for what is left.  AVX-512 has registers
 * for tiles twice as large. */
#if defined(__AVX512F__) && LANES == WIDTH
#define TILES(X) X(0, 2, 8) X(1, 1, 8) X(2, 2, 4) X(3, 1, 4) X(4, 4, 2) X(5, 1, 2) X(6, 8, 1) X(7, 1, 1)
#define TILE_SHAPES 8
#define TILE_VECTORS 16
#else
#define TILES(X) X(0, 2, 4) X(1, 1, 4) X(2, 4, 2) X(3, 1, 2) X(4, 8, 1) X(5, 1, 1)
#define TILE_SHAPES 6
#define TILE_VECTORS 8
#endif
#define TILE_HIGH(i, TR, TC) TR,
#define TILE_WIDE(i, TR, TC) TC,
static const int tile_rows[] = {TILES(TILE_HIGH)}, tile_columns[] = {TILES(TILE_WIDE)};

/* How many tiles there are, if all are large. */
#define TILES_IN(rows, columns) ((rows) * (columns) / TILE_VECTORS)

typedef void (*ProductTile)(const float *, int64_t, const Index *, const Sink *, float *, float *, int64_t, int64_t,
                            int64_t, int64_t, int, Ahead *);
typedef void (*WeightTile)(const float *, int64_t, const Index *, const float *, int64_t, int64_t, int64_t, float *,
                           Ahead *);

#define PRODUCT(TR, TC, SI, SO)                                                                              \
    static void product_##TR##TC##SI##SO(const float *b, int64_t br, const Index *a, const Sink *k, float *s, \
                                         float *sums, int64_t at, int64_t plane, int64_t row, int64_t n,      \
                                         int first, Ahead *ahead) {                                           \
        product_tile(TR, TC, SI, SO, b, br, a, k, s, sums, at, plane, row, n, first, ahead);                  \
    }
#define WEIGHT(TR, TC, SI)                                                                                    \
    static void weight_##TR##TC##SI(const float *b, int64_t br, const Index *a, const float *g, int64_t gp,   \
                                    int64_t gr, int64_t n, float *s, Ahead *ahead) {                          \
        weight_tile(TR, TC, SI, b, br, a, g, gp, gr, n, s, ahead);                                            \
    }
#define MAKE(i, TR, TC) PRODUCT(TR, TC, 1, 1) PRODUCT(TR, TC, 2, 1) PRODUCT(TR, TC, 1, 2) WEIGHT(TR, TC, 1) WEIGHT(TR, TC, 2)
TILES(MAKE)
#define ROW11(i, TR, TC) product_##TR##TC##11,
#define ROW21(i, TR, TC) product_##TR##TC##21,
#define ROW12(i, TR, TC) product_##TR##TC##12,
#define ROW1(i, TR, TC) weight_##TR##TC##1,
#define ROW2(i, TR, TC) weight_##TR##TC##2,
static const ProductTile products[3][TILE_SHAPES] = {{TILES(ROW11)}, {TILES(ROW21)}, {TILES(ROW12)}};
static const WeightTile weights[2][TILE_SHAPES] = {{TILES(ROW1)}, {TILES(ROW2)}};

/* Cuts rows x columns into tiles and runs BODY with (r, x, tile). */
#define EACH_TILE(rows, columns, BODY)                                                        \
    for (int64_t x = 0, wide; x < (columns); x += wide) {                                     \
        int64_t left_ = (columns) - x;                                                        \
        int kind = 0;                                                                         \
        while (tile_columns[kind] > left_) kind += 2;                                         \
        int64_t step = tile_columns[kind];                                                    \
        wide = left_ / step * step;                                                           \
        for (int64_t r = 0; r < (rows);) {                                                    \
            int tile = (rows) - r >= tile_rows[kind] ? kind : kind + 1;                       \
            for (int64_t xx = x; xx < x + wide; xx += step) { BODY }                          \
            r += tile_rows[tile];                                                             \
        }                                                                                     \
    }

/* ---- convolution ----------------------------------------------------------------------------------- */

typedef struct {
    const Shape *shape;
    const Source *source, *gradient;
    const Index *index, *transposed;
    const Sink *sink;
    int backwards, want_input, want_weight, want_bias;
} ConvJob;

static void gather(const Index *index, int64_t count, const float *weight) {
    for (int64_t i = 0; i < count; i++) index->value[i] = weight[index->pick[i]];
}

/* The rows that are new in the band after this one: `step` of them from row `from` on.  After the last band of block n
 * comes the first of block `next`, which begins at row 0 and ends at `end`; there is none if `next` < 0. */
static Ahead next_band(const Source *source, int64_t n, int64_t next, int64_t channels, int64_t plane, int64_t width,
                       int64_t height, int last, int64_t from, int64_t step, int64_t end, int64_t turns) {
    if (last) {
        n = next;
        from = 0;
    } else {
        end = from + step;
    }
    if (end > height) end = height;
    if (n < 0 || end <= from) return (Ahead){};
    return ahead_of(source, n * channels * plane + from * width * LANES, plane, (end - from) * width * LANES, channels,
                    turns);
}

/* The same for the input of a convolution, at output row y. */
static Ahead next_input(const ConvJob *job, int64_t n, int64_t next, int64_t y, int64_t turns) {
    const Shape *s = job->shape;
    int64_t step = s->rows * s->stride, more = s->kernel - s->stride - s->pad;
    return next_band(job->source, n, next, s->inputs, s->in_plane, s->width, s->height, y + s->rows >= s->out_height,
                     (y + s->rows) * s->stride + more, step, step + more, turns);
}

static void forward_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const ConvJob *job = argument;
    const Shape *s = job->shape;
    float *band = scratch[thread][BAND].data;
    int64_t band_width = s->width + 2 * s->side, overlap = s->kernel > s->stride ? s->kernel - s->stride : 0;
    EACH_BLOCK(n, blocks_of(s->images), chunk, chunks, job->backwards) {
        M lanes = real_lanes(s->images, n);
        float *stats = job->sink->stats ? job->sink->stats + n * s->outputs * 3 * LANES : NULL;
        int first = 1;
        for (int64_t y = 0; y < s->out_height; y += s->rows) {
            int64_t rows = y + s->rows <= s->out_height ? s->rows : s->out_height - y;
            fill(job->source, n * s->inputs * s->in_plane, s->in_plane, s->inputs, s->height, s->width,
                 y * s->stride - s->pad, y ? overlap : 0, (rows - 1) * s->stride + s->kernel, s->rows * s->stride,
                 s->side, band_width, s->in_band, lanes, band);
            int64_t base = n * s->outputs * s->out_plane;
            const ProductTile *table = products[s->stride - 1];
            int64_t turns = s->outputs * TILES_IN(rows, s->out_width);
            Ahead ahead = next_input(job, n, NEXT_BLOCK(n, job->backwards), y, turns);
            EACH_TILE(rows, s->out_width, {
                table[tile](band + (r * band_width + xx) * s->stride * LANES, band_width * LANES, job->index,
                            job->sink, stats, scratch[thread][PARTIAL].data,
                            base + ((y + r) * s->out_width + xx) * LANES, s->out_plane, s->out_width * LANES, s->outputs,
                            first, &ahead);
                first = 0;
            })
        }
    }
}

static int conv_forward(const Shape *s, const Source *source, const Index *index, const float *weight,
                        const Sink *sink, int64_t threads, int64_t backwards) {
    ConvJob job = {s, source, NULL, index, NULL, sink, (int)backwards, 0, 0, 0};
    int workers = threads_for(threads);
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(workers, BAND, (size_t)(s->in_band * s->inputs)) ||
                 reserve(workers, PARTIAL, (size_t)(s->outputs * TILE_VECTORS * LANES));
    if (!failed) {
        gather(index, s->active, weight);
        run(forward_part, &job, blocks_of(s->images), workers, job.backwards);
    }
    pthread_mutex_unlock(&pool.busy);
    return failed;
}

static void input_gradient(const ConvJob *job, int64_t n, int64_t y, int64_t rows, const float *band,
                           int64_t band_width, float *stats, float *partial, int *first, Ahead *ahead) {
    const Shape *s = job->shape;
    int64_t base = n * s->inputs * s->in_plane, stride = s->stride;
    for (int64_t py = 0; py < stride; py++) {
        for (int64_t px = 0; px < stride; px++) { /* input pixels of one parity see the same weights */
            const Index *index = job->transposed + py * stride + px;
            int64_t high = (s->height - py + stride - 1) / stride - y, columns = (s->width - px + stride - 1) / stride;
            if (high > rows) high = rows;
            const ProductTile *table = products[stride == 1 ? 0 : 2];
            EACH_TILE(high, columns, {
                ahead->hop = (xx + step < x + wide ? step : tile_rows[tile] * s->width - (xx - x)) * stride * LANES;
                table[tile](band + (r * band_width + xx) * LANES, band_width * LANES, index, job->sink, stats,
                            partial, base + (((y + r) * stride + py) * s->width + xx * stride + px) * LANES, s->in_plane,
                            stride * s->width * LANES, s->inputs, *first, ahead);
                *first = 0;
            })
        }
    }
}

/* The gradient's own sum per channel, four columns of a band at a time. */
static void add_bias(const float *gradient, int64_t plane, int64_t row, int64_t rows, int64_t columns,
                     int64_t channels, float *sums) {
    for (int64_t c = 0; c < channels; c++, gradient += plane, sums += LANES) {
        V sum[4] = {};
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t x = 0; x < columns; x++) sum[x % 4] += load(gradient + r * row + x * LANES);
        }
        store(sums, load(sums) + (sum[0] + sum[1] + (sum[2] + sum[3])));
    }
}

static void backward_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const ConvJob *job = argument;
    const Shape *s = job->shape;
    float *band = scratch[thread][BAND].data, *gradient = scratch[thread][GRADIENT_BAND].data;
    float *sums = scratch[chunk][SUMS].data;
    int64_t across = (s->width + s->stride - 1) / s->stride, down = (s->height + s->stride - 1) / s->stride;
    if (across < s->out_width) across = s->out_width;
    if (down < s->out_height) down = s->out_height;
    int64_t gradient_width = across + s->left + s->right, border = s->top + s->bottom;
    int64_t band_width = s->width + 2 * s->side, overlap = s->kernel > s->stride ? s->kernel - s->stride : 0;
    memset(sums, 0, (size_t)((s->active + s->outputs) * LANES) * sizeof(float));
    EACH_BLOCK(n, blocks_of(s->images), chunk, chunks, job->backwards) {
        M lanes = real_lanes(s->images, n);
        float *stats = job->sink->stats ? job->sink->stats + n * s->inputs * 3 * LANES : NULL;
        int first = 1;
        for (int64_t y = 0; y < down; y += s->rows) {
            int64_t rows = y + s->rows <= down ? s->rows : down - y;
            fill(job->gradient, n * s->outputs * s->out_plane, s->out_plane, s->outputs, s->out_height, s->out_width,
                 y - s->top, y ? border : 0, rows + border, s->rows, s->left, gradient_width, s->out_band, lanes,
                 gradient);
            int64_t high = y + rows <= s->out_height ? rows : s->out_height - y, next = NEXT_BLOCK(n, job->backwards);
            Ahead ahead;
            const float *inner = gradient + (s->top * gradient_width + s->left) * LANES;
            if (job->want_bias) {
                add_bias(inner, s->out_band, gradient_width * LANES, high, s->out_width, s->outputs,
                         sums + s->active * LANES);
            }
            if (job->want_weight && high > 0) {
                fill(job->source, n * s->inputs * s->in_plane, s->in_plane, s->inputs, s->height, s->width,
                     y * s->stride - s->pad, y ? overlap : 0, (high - 1) * s->stride + s->kernel,
                     s->rows * s->stride, s->side, band_width, s->in_band, lanes, band);
                const WeightTile *table = weights[s->stride - 1];
                ahead = next_band(job->gradient, n, next, s->outputs, s->out_plane, s->out_width, s->out_height,
                                  y + s->rows >= down, y + s->rows + s->bottom, s->rows, s->rows + s->bottom,
                                  s->outputs * job->index->groups * TILES_IN(high, s->out_width));
                EACH_TILE(high, s->out_width, {
                    table[tile](band + (r * band_width + xx) * s->stride * LANES, band_width * LANES, job->index,
                                inner + (r * gradient_width + xx) * LANES, s->out_band, gradient_width * LANES,
                                s->outputs, sums, &ahead);
                })
            }
            if (job->want_input) {
                int64_t turns = s->inputs * s->stride * s->stride * TILES_IN(rows, across);
                ahead = job->want_weight ? next_input(job, n, next, y, turns) : (Ahead){};
                input_gradient(job, n, y, rows, gradient, gradient_width, stats, scratch[thread][PARTIAL].data, &first,
                               &ahead);
            }
        }
    }
}

typedef struct {
    float *gradient;
    const int32_t *pick;
    int64_t active, sums; /* chunks that were summed */
} JoinJob;

static void join_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    (void)thread;
    const JoinJob *j = argument;
    for (int64_t i = j->active * chunk / chunks; i < j->active * (chunk + 1) / chunks; i++) {
        j->gradient[j->pick[i]] = total(i, j->sums);
    }
}

/* `transposed` has stride * stride indices, one per parity of the input pixel, with `counts` weights each.
 * `weight_gradient` has the layout of `weight`; only active positions are written.  Any gradient may be NULL. */
static int conv_backward(const Shape *s, const Source *gradient, const Source *source, const Index *index,
                         const Index *transposed, const int64_t *counts, const float *weight, const Sink *sink,
                         float *weight_gradient, float *bias_gradient, int64_t threads, int64_t backwards) {
    ConvJob job = {s, source, gradient, index, transposed, sink, (int)backwards, sink->out != NULL,
                   weight_gradient != NULL, bias_gradient != NULL};
    int workers = threads_for(threads);
    int64_t chunks = chunks_for(blocks_of(s->images), workers, s->active + s->outputs,
                                (s->inputs * s->in_plane + s->outputs * s->out_plane) / LANES);
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(workers, GRADIENT_BAND, (size_t)(s->out_band * s->outputs)) ||
                 reserve(workers, PARTIAL, (size_t)(s->inputs * TILE_VECTORS * LANES)) ||
                 reserve(chunks, SUMS, (size_t)((s->active + s->outputs) * LANES)) ||
                 (job.want_weight && reserve(workers, BAND, (size_t)(s->in_band * s->inputs)));
    if (!failed) {
        for (int64_t i = 0; job.want_input && i < s->stride * s->stride; i++) gather(transposed + i, counts[i], weight);
        run(backward_part, &job, chunks, workers, job.backwards);
        JoinJob join = {weight_gradient, index->pick, s->active, chunks};
        if (job.want_weight) run(join_part, &join, 1 + s->active / 512, workers, 0);
        for (int64_t c = 0; job.want_bias && c < s->outputs; c++) bias_gradient[c] = total(s->active + c, chunks);
    }
    pthread_mutex_unlock(&pool.busy);
    return failed;
}

/* ---- element-wise passes, pooling, layout ----------------------------------------------------------- */

typedef struct {
    int64_t images, channels, area, plane, from_channels, to_channels;
    const Source *source;
    const Sink *sink;
    float *pooled;
    int backwards;
} PassJob;

ALWAYS V sink_vector(const Sink *k, V v, int64_t at, V gs, V gc, V gb, V center, V shift, V *s0, V *s1) {
    if (k->add) v += load(k->add + at);
    if (k->gate) {
        V gate = (load(k->gate + at) - gc) * gs + gb;
        v = k->activation > RELU ? v * slope(k->activation, gate) : where_positive(v, gate);
    }
    if (k->out) store(k->out + at, v);
    if (k->stats) {
        V d = k->with ? v : v - shift;
        *s0 += d;
        *s1 += d * (k->with ? load(k->with + at) - center : d);
    }
    return v;
}

typedef struct { /* what a Sink sums over one channel of one block */
    V shift, s0, s1, total;
} Sums;

/* `count` vectors of channel c, stored from `at` on; the first of the channel with `first`. */
ALWAYS void sink_run(const Sink *k, int64_t c, int64_t at, int64_t count, const float *from, int first, Sums *t) {
    V gs = splat(or_one(k->gs, c)), gc = splat(or_zero(k->gc, c)), gb = splat(or_zero(k->gb, c));
    V center = splat(or_zero(k->center, c));
    if (first) { /* what the sums are shifted by must be what is summed */
        *t = (Sums){.shift = load(from)};
        if (k->add) t->shift += load(k->add + at);
    }
    for (int64_t j = 0; j < count * LANES; j += LANES) {
        t->total += sink_vector(k, load(from + j), at + j, gs, gc, gb, center, t->shift, &t->s0, &t->s1);
    }
}

ALWAYS void sink_sums(const Sink *k, int64_t channel, const Sums *t) {
    if (!k->stats) return;
    float *sum = k->stats + channel * 3 * LANES;
    store(sum, t->shift);
    store(sum + LANES, t->s0);
    store(sum + 2 * LANES, t->s1);
}

static void read_vectors(const Source *s, int64_t c, int64_t at, int64_t count, M lanes, float *to) {
    switch (source_flags(s)) {
#define CASE(f) case f: read_run(f, s, c, at, count, lanes, to); break;
        EACH_CASE(CASE)
#undef CASE
    }
}

static void pass_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    (void)thread;
    const PassJob *job = argument;
    const Sink *k = job->sink;
    float line[64 * LANES] __attribute__((aligned(64)));
    EACH_BLOCK(n, blocks_of(job->images), chunk, chunks, job->backwards) {
        M lanes = real_lanes(job->images, n);
        for (int64_t c = 0; c < job->channels; c++) {
            int64_t from = (n * job->from_channels + c) * job->plane, to = (n * job->to_channels + c) * job->plane;
            V share = {};
            Sums sums = {};
            if (!job->source) { /* pooling backwards: every pixel gets an equal share */
                for (int lane = 0; lane < LANES && n * LANES + lane < job->images; lane++)
                    share[lane] = job->pooled[(n * LANES + lane) * job->channels + c] / (float)job->area;
                for (int64_t j = 0; j < 64; j++) store(line + j * LANES, share);
            }
            for (int64_t i = 0; i < job->area; i += 64) {
                int64_t count = job->area - i < 64 ? job->area - i : 64;
                if (job->source) read_vectors(job->source, c, from + i * LANES, count, lanes, line);
                sink_run(k, c, to + i * LANES, count, line, i == 0, &sums);
            }
            sink_sums(k, n * job->channels + c, &sums);
            if (job->source && job->pooled) {
                for (int lane = 0; lane < LANES && n * LANES + lane < job->images; lane++)
                    job->pooled[(n * LANES + lane) * job->channels + c] = sums.total[lane] / (float)job->area;
            }
        }
    }
}

/* One pass over a tensor: Source, then Sink, each of which may lie among more channels than these.  With `pooled` also
 * the mean over each plane, as [images][channels]; without a Source `pooled` is the gradient of those means and is
 * spread over the planes. */
static int sweep(int64_t images, int64_t channels, int64_t area, int64_t plane, const Source *source,
                 const Sink *sink, float *pooled, int64_t from_channels, int64_t to_channels, int64_t threads,
                 int64_t backwards) {
    PassJob job = {images, channels, area, plane, from_channels, to_channels, source, sink, pooled, (int)backwards};
    pthread_mutex_lock(&pool.busy);
    run(pass_part, &job, blocks_of(images), threads_for(threads), job.backwards);
    pthread_mutex_unlock(&pool.busy);
    return 0;
}

/* ---- pooling over windows ---------------------------------------------------------------------------- */

typedef struct {
    int64_t images, channels, height, width, high, wide, stride, pad, side, out_height, out_width, in_plane, out_plane;
    int64_t largest; /* the largest of each window, else the mean */
    int64_t padded;  /* zeros around count in a mean */
    const Source *source, *gradient; /* the input; the gradient of the output, NULL in the forward */
    float *out;
    const Sink *sink; /* of the input's gradient */
} Window;

/* Runs BODY for every pixel `i` of the window at (y, x); INSIDE of them there are. */
#define EACH_PIXEL(s, y, x, BODY)                                                                            \
    {                                                                                                        \
        int64_t r0 = (y) * (s)->stride - (s)->pad, c0 = (x) * (s)->stride - (s)->side;                       \
        int64_t r1 = r0 + (s)->high < (s)->height ? r0 + (s)->high : (s)->height;                            \
        int64_t c1 = c0 + (s)->wide < (s)->width ? c0 + (s)->wide : (s)->width;                              \
        for (int64_t r = r0 < 0 ? 0 : r0; r < r1; r++) {                                                     \
            for (int64_t c = c0 < 0 ? 0 : c0; c < c1; c++) {                                                 \
                int64_t i = (r * (s)->width + c) * LANES;                                                    \
                BODY                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }

ALWAYS V largest_of(const Window *s, const float *plane, int64_t y, int64_t x) {
    V most = splat(-INFINITY);
    EACH_PIXEL(s, y, x, {
        V v = load(plane + i);
        most = pick((v > most) | (v != v), v, most);
    })
    return most;
}

ALWAYS float share_of(const Window *s, int64_t y, int64_t x) {
    float count = 0;
    if (s->padded) return 1.0f / (float)(s->high * s->wide);
    EACH_PIXEL(s, y, x, { count += i >= 0; })
    return 1.0f / count;
}

static void window_back(const Window *s, const float *plane, const float *gradient, float *into) {
    memset(into, 0, (size_t)(s->height * s->width * LANES) * sizeof(float));
    for (int64_t y = 0; y < s->out_height; y++) {
        for (int64_t x = 0; x < s->out_width; x++) {
            V g = load(gradient + (y * s->out_width + x) * LANES);
            if (!s->largest) {
                g *= share_of(s, y, x);
                EACH_PIXEL(s, y, x, { store(into + i, load(into + i) + g); })
                continue;
            }
            V most = largest_of(s, plane, y, x);
            M left = (M){} - 1; /* the first of equal ones takes it all */
            EACH_PIXEL(s, y, x, {
                V v = load(plane + i);
                M hit = ((v == most) | (v != v)) & left;
                left &= ~hit;
                store(into + i, load(into + i) + (V)((M)g & hit));
            })
        }
    }
}

static void window_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const Window *s = argument;
    float *plane = scratch[thread][BAND].data, *gradient = scratch[thread][GRADIENT_BAND].data;
    float *into = scratch[thread][PARTIAL].data;
    int64_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    EACH_BLOCK(n, blocks_of(s->images), chunk, chunks, 0) {
        M lanes = real_lanes(s->images, n);
        for (int64_t c = 0; c < s->channels; c++) {
            int64_t at = (n * s->channels + c) * s->in_plane, out = (n * s->channels + c) * s->out_plane;
            if (s->largest || !s->gradient) read_vectors(s->source, c, at, area, lanes, plane);
            if (s->gradient) {
                Sums sums = {};
                read_vectors(s->gradient, c, out, out_area, lanes, gradient);
                window_back(s, plane, gradient, into);
                sink_run(s->sink, c, at, area, into, 1, &sums);
                sink_sums(s->sink, n * s->channels + c, &sums);
                continue;
            }
            for (int64_t y = 0; y < s->out_height; y++) {
                for (int64_t x = 0; x < s->out_width; x++, out += LANES) {
                    V v = {};
                    if (s->largest) v = largest_of(s, plane, y, x);
                    else EACH_PIXEL(s, y, x, { v += load(plane + i); })
                    store(s->out + out, s->largest ? v : v * share_of(s, y, x));
                }
            }
        }
    }
}

static int window(const Window *s, int64_t threads) {
    int workers = threads_for(threads);
    size_t area = (size_t)(s->height * s->width * LANES);
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(workers, BAND, area) || reserve(workers, PARTIAL, area) ||
                 reserve(workers, GRADIENT_BAND, (size_t)(s->out_height * s->out_width * LANES));
    if (!failed) run(window_part, (void *)s, blocks_of(s->images), workers, 0);
    pthread_mutex_unlock(&pool.busy);
    return failed;
}

typedef struct {
    const float *from;
    float *to;
    int64_t images, channels, height, width, plane, sn, sc, sh, sw;
    int into, check, *strange; /* with `check`, whether something that is not finite was seen */
} MoveJob;

enum { OUT_OF_MEMORY = 1, NOT_FINITE = 2 }; /* why a call fails */

ALWAYS M not_finite(V v) { return (M)(v - v != 0.0f); }

ALWAYS int any_lane(M m) {
    int found = 0;
    UNROLL for (int i = 0; i < LANES; i++) found |= m[i];
    return found != 0;
}

typedef float U __attribute__((vector_size(LANES * 4), aligned(4))); /* at any address */

#define FOUR(F, i, step) F(i, step), F(i + 1, step), F(i + 2, step), F(i + 3, step)
#if LANES == 4
#define EACH_LANE(F, step) FOUR(F, 0, step)
#elif LANES == 8
#define EACH_LANE(F, step) FOUR(F, 0, step), FOUR(F, 4, step)
#else
#define EACH_LANE(F, step) FOUR(F, 0, step), FOUR(F, 4, step), FOUR(F, 8, step), FOUR(F, 12, step)
#endif
#define LOW(i, step) (((i) & (step)) ? LANES + (i) - (step) : (i))
#define HIGH(i, step) (((i) & (step)) ? LANES + (i) : (i) + (step))
#if defined(__clang__)
#define SHUFFLE(a, b, F, step) __builtin_shufflevector(a, b, EACH_LANE(F, step))
#else
#define SHUFFLE(a, b, F, step) __builtin_shuffle(a, b, (M){EACH_LANE(F, step)})
#endif

/* One step of a transpose: swap the off-diagonal halves of every 2 * step square. */
#define SWAP_HALVES(r, step)                     \
    UNROLL for (int i = 0; i < LANES; i++) {     \
        if (i & (step)) continue;                \
        V a = r[i], b = r[i + (step)];           \
        r[i] = SHUFFLE(a, b, LOW, step);         \
        r[i + (step)] = SHUFFLE(a, b, HIGH, step); \
    }

ALWAYS void transpose(V *r) {
    SWAP_HALVES(r, 1)
    SWAP_HALVES(r, 2)
#if LANES > 4
    SWAP_HALVES(r, 4)
#endif
#if LANES > 8
    SWAP_HALVES(r, 8)
#endif
}

/* LANES numbers of each of LANES pictures, between the plain tensor, where they lie side by side, and vectors that lie
 * `apart` floats apart in the blocked one. */
ALWAYS M move_square(const MoveJob *j, int64_t plain, int64_t blocked, int64_t apart) {
    V r[LANES];
    M strange = {};
    UNROLL for (int i = 0; i < LANES; i++) {
        r[i] = j->into ? (V) * (const U *)(j->from + plain + i * j->sn) : load(j->from + blocked + i * apart);
        if (j->check) strange |= not_finite(r[i]);
    }
    transpose(r);
    UNROLL for (int i = 0; i < LANES; i++) {
        if (j->into) store(j->to + blocked + i * apart, r[i]);
        else *(U *)(j->to + plain + i * j->sn) = (U)r[i];
    }
    return strange;
}

/* A full block whose pixels lie side by side: squares of LANES pixels at a time.  Returns how many pixels are done. */
static int64_t move_rows(const MoveJob *j, int64_t n, M *strange) {
    int64_t done = j->height * j->width / LANES * LANES;
    for (int64_t c = 0; c < j->channels; c++) {
        int64_t plain = n * LANES * j->sn + c * j->sc, blocked = (n * j->channels + c) * j->plane;
        for (int64_t i = 0; i < done; i += LANES) *strange |= move_square(j, plain + i, blocked + i * LANES, LANES);
    }
    return done;
}

/* A full block whose channels lie side by side (channels_last, or rows): squares of LANES channels at a time.
 * Returns how many channels are done. */
static int64_t move_squares(const MoveJob *j, int64_t n, M *strange) {
    int64_t done = j->channels / LANES * LANES;
    for (int64_t h = 0; h < j->height; h++) {
        for (int64_t w = 0; w < j->width; w++) {
            int64_t plain = n * LANES * j->sn + h * j->sh + w * j->sw;
            int64_t blocked = n * j->channels * j->plane + (h * j->width + w) * LANES;
            for (int64_t c = 0; c < done; c += LANES) {
                *strange |= move_square(j, plain + c, blocked + c * j->plane, j->plane);
            }
        }
    }
    return done;
}

static void move_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const MoveJob *j = argument;
    (void)thread;
    EACH_BLOCK(n, blocks_of(j->images), chunk, chunks, 0) {
        int64_t count = j->images - n * LANES < LANES ? j->images - n * LANES : LANES;
        M strange = {};
        int in_rows = j->sw == 1 && (j->sh == j->width || j->height == 1) && count == LANES;
        int64_t pixels = in_rows ? move_rows(j, n, &strange) : 0;
        int64_t done = j->sc == 1 && count == LANES && !in_rows ? move_squares(j, n, &strange) : 0;
        for (int64_t c = done; c < j->channels; c++) {
            for (int64_t h = pixels / j->width; h < j->height; h++) {
                int64_t from = h == pixels / j->width ? pixels % j->width : 0;
                int64_t blocked = (n * j->channels + c) * j->plane + (h * j->width + from) * LANES;
                int64_t plain = n * LANES * j->sn + c * j->sc + h * j->sh + from * j->sw;
                for (int64_t w = from; w < j->width; w++, blocked += LANES, plain += j->sw) {
                    if (j->into) {
                        V v = {};
                        for (int64_t lane = 0; lane < count; lane++) v[lane] = j->from[plain + lane * j->sn];
                        store(j->to + blocked, v);
                        if (j->check) strange |= not_finite(v);
                    } else {
                        V v = load(j->from + blocked);
                        for (int64_t lane = 0; lane < count; lane++) j->to[plain + lane * j->sn] = v[lane];
                    }
                }
            }
        }
        if (j->check && any_lane(strange)) __atomic_store_n(j->strange, 1, __ATOMIC_RELAXED);
    }
}

enum { MOVE_OUT, MOVE_IN, MOVE_IN_FINITE };

/* Between any strided [N, C, H, W] tensor and the blocked layout.  MOVE_IN_FINITE fails at what is not finite: a pruned
 * weight would swallow it. */
static int move(const float *from, float *to, int64_t images, int64_t channels, int64_t height, int64_t width,
                int64_t plane, int64_t sn, int64_t sc, int64_t sh, int64_t sw, int64_t into, int64_t threads) {
    int strange = 0;
    MoveJob job = {from, to, images, channels, height, width, plane, sn, sc, sh, sw, into != MOVE_OUT,
                   into == MOVE_IN_FINITE, &strange};
    pthread_mutex_lock(&pool.busy);
    run(move_part, &job, blocks_of(images), threads_for(threads), 0);
    pthread_mutex_unlock(&pool.busy);
    return strange ? NOT_FINITE : 0;
}

/* ---- few pictures: pixels lie innermost ---------------------------------------------------------------
 *
 * [images][channels][plane], where a plane holds H rows of W floats, each padded to full vectors.  A vector is LANES
 * pixels of one row, and a weight reads its input at any column: in a band, rows start where the padding does, and with
 * stride 2 even columns lie before odd ones.  Forward only.  What lies in the padding of a row has no meaning. */

typedef struct {
    int64_t images, inputs, outputs, height, width, kernel, stride, pad, side, out_height, out_width;
    int64_t in_plane, in_row, out_plane, out_row;
    int64_t rows;           /* output rows per band */
    int64_t band, band_row; /* floats between channels and rows of a band */
    int64_t half;           /* where odd columns begin, with stride 2 */
    int64_t active;
} PixelShape;

ALWAYS V load_any(const float *p) { return (V) * (const U *)p; }

/* As `fill` does: rows [keep, rows) of a band whose row 0 is input row `row0`. */
static void fill_pixels(const PixelShape *s, const Source *source, int64_t n, int64_t row0, int64_t keep, int64_t rows,
                        int64_t roll, float *line, float *band) {
    for (int64_t c = 0; c < s->inputs; c++) {
        float *to = band + c * s->band;
        if (keep) memmove(to, to + roll * s->band_row, (size_t)(keep * s->band_row) * sizeof(float));
        for (int64_t r = keep; r < rows; r++) {
            int64_t h = row0 + r;
            float *row = to + r * s->band_row;
            memset(row, 0, (size_t)s->band_row * sizeof(float));
            if (h < 0 || h >= s->height) continue;
            read_vectors(source, c, (n * s->inputs + c) * s->in_plane + h * s->in_row, s->in_row / LANES, (M){} - 1, line);
            if (s->stride == 1) {
                memcpy(row + s->side, line, (size_t)s->width * sizeof(float));
            } else {
                for (int64_t w = 0, x = s->side; w < s->width; w++, x++) row[(x & 1) * s->half + (x >> 1)] = line[w];
            }
        }
    }
}

ALWAYS void pixel_tile(const int TR, const int TC, const int SI, const float *band, int64_t band_row, const Index *a,
                       const Sink *k, int64_t at, int64_t plane, int64_t row, int64_t channels) {
#define AT (at + (q / TC) * row + (q % TC) * LANES)
    for (int64_t c = 0; c < channels; c++, at += plane) {
        V acc[16], bias = splat(or_zero(k->bias, c));
        UNROLL for (int q = 0; q < TR * TC; q++) acc[q] = bias;
        for (int32_t i = a->start[c], end = a->start[c + 1]; i < end; i++) {
            const float *p = band + a->offset[i];
            V w = splat(a->value[i]);
            UNROLL for (int q = 0; q < TR * TC; q++) {
                acc[q] += w * load_any(p + (q / TC) * SI * band_row + (q % TC) * LANES);
            }
        }
        if (k->add) UNROLL for (int q = 0; q < TR * TC; q++) acc[q] += load(k->add + AT);
        UNROLL for (int q = 0; q < TR * TC; q++) store(k->out + AT, acc[q]);
    }
#undef AT
}

typedef void (*PixelTile)(const float *, int64_t, const Index *, const Sink *, int64_t, int64_t, int64_t, int64_t);
#define PIXEL(TR, TC, SI)                                                                                          \
    static void pixel_##TR##TC##SI(const float *b, int64_t br, const Index *a, const Sink *k, int64_t at, int64_t p, \
                                   int64_t r, int64_t n) {                                                         \
        pixel_tile(TR, TC, SI, b, br, a, k, at, p, r, n);                                                          \
    }
#define MAKE_PIXEL(i, TR, TC) PIXEL(TR, TC, 1) PIXEL(TR, TC, 2)
TILES(MAKE_PIXEL)
#define PIXEL1(i, TR, TC) pixel_##TR##TC##1,
#define PIXEL2(i, TR, TC) pixel_##TR##TC##2,
static const PixelTile pixels[2][TILE_SHAPES] = {{TILES(PIXEL1)}, {TILES(PIXEL2)}};

typedef struct {
    const PixelShape *shape;
    const Source *source;
    const Index *index;
    const Sink *sink;
} PixelJob;

static void pixel_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const PixelJob *job = argument;
    const PixelShape *s = job->shape;
    float *band = scratch[thread][BAND].data, *line = scratch[thread][PARTIAL].data;
    int64_t overlap = s->kernel > s->stride ? s->kernel - s->stride : 0;
    EACH_BLOCK(n, s->images, chunk, chunks, 0) {
        for (int64_t y = 0; y < s->out_height; y += s->rows) {
            int64_t rows = y + s->rows <= s->out_height ? s->rows : s->out_height - y;
            fill_pixels(s, job->source, n, y * s->stride - s->pad, y ? overlap : 0, (rows - 1) * s->stride + s->kernel,
                        s->rows * s->stride, line, band);
            const PixelTile *table = pixels[s->stride - 1];
            EACH_TILE(rows, s->out_row / LANES, {
                table[tile](band + r * s->stride * s->band_row + xx * LANES, s->band_row, job->index, job->sink,
                            n * s->outputs * s->out_plane + (y + r) * s->out_row + xx * LANES, s->out_plane, s->out_row,
                            s->outputs);
            })
        }
    }
}

static int pixel_conv(const PixelShape *s, const Source *source, const Index *index, const float *weight,
                      const Sink *sink, int64_t threads) {
    PixelJob job = {s, source, index, sink};
    int workers = threads_for(threads);
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(workers, BAND, (size_t)(s->band * s->inputs + 2 * LANES)) ||
                 reserve(workers, PARTIAL, (size_t)s->in_row);
    if (!failed) {
        gather(index, s->active, weight);
        run(pixel_part, &job, s->images, workers, 0);
    }
    pthread_mutex_unlock(&pool.busy);
    return failed ? OUT_OF_MEMORY : 0;
}

/* Between any strided [N, C, H, W] tensor and rows of `row` floats. */
static int pixel_move(const float *from, float *to, int64_t images, int64_t channels, int64_t height, int64_t width,
                      int64_t plane, int64_t row, int64_t sn, int64_t sc, int64_t sh, int64_t sw, int64_t into) {
    float strange = 0;
    for (int64_t n = 0; n < images; n++) {
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t h = 0; h < height; h++) {
                int64_t plain = n * sn + c * sc + h * sh, own = (n * channels + c) * plane + h * row;
                if (into == MOVE_OUT) {
                    for (int64_t w = 0; w < width; w++) to[plain + w * sw] = from[own + w];
                    continue;
                }
                for (int64_t w = 0; w < width; w++) to[own + w] = from[plain + w * sw];
                for (int64_t w = width; w < row; w++) to[own + w] = 0;
                for (int64_t w = 0; w < width; w++) strange += to[own + w] - to[own + w]; /* 0, or NaN */
            }
        }
    }
    return into == MOVE_IN_FINITE && strange != 0 ? NOT_FINITE : 0;
}

/* The forward of `window`, with pixels innermost. */
static int pixel_window(const Window *s, int64_t in_row, int64_t out_row) {
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(1, BAND, (size_t)(s->height * in_row));
    float *plane = scratch[0][BAND].data;
    for (int64_t n = 0; !failed && n < s->images * s->channels; n++) {
        read_vectors(s->source, n % s->channels, n * s->in_plane, s->height * in_row / LANES, (M){} - 1, plane);
        for (int64_t y = 0; y < s->out_height; y++) {
            int64_t r0 = y * s->stride - s->pad, r1 = r0 + s->high < s->height ? r0 + s->high : s->height;
            float *out = s->out + n * s->out_plane + y * out_row;
            for (int64_t x = 0; x < s->out_width; x++) {
                int64_t c0 = x * s->stride - s->side, c1 = c0 + s->wide < s->width ? c0 + s->wide : s->width;
                float most = -INFINITY, sum = 0, count = 0;
                for (int64_t r = r0 < 0 ? 0 : r0; r < r1; r++) {
                    for (int64_t c = c0 < 0 ? 0 : c0; c < c1; c++, count++) {
                        float v = plane[r * in_row + c];
                        sum += v;
                        most = v > most || v != v ? v : most;
                    }
                }
                out[x] = s->largest ? most : sum / (s->padded ? (float)(s->high * s->wide) : count);
            }
            for (int64_t x = s->out_width; x < out_row; x++) out[x] = 0;
        }
    }
    pthread_mutex_unlock(&pool.busy);
    return failed ? OUT_OF_MEMORY : 0;
}

/* What a Source describes, averaged over the pixels of each channel. */
static int pixel_pool(int64_t images, int64_t channels, int64_t height, int64_t width, int64_t plane, int64_t row,
                      const Source *source, float *pooled) {
    pthread_mutex_lock(&pool.busy);
    int failed = reserve(1, PARTIAL, (size_t)row);
    float *line = scratch[0][PARTIAL].data;
    for (int64_t i = 0; !failed && i < images * channels; i++) {
        float sum = 0;
        for (int64_t h = 0; h < height; h++) {
            float part = 0;
            read_vectors(source, i % channels, i * plane + h * row, row / LANES, (M){} - 1, line);
            for (int64_t w = 0; w < width; w++) part += line[w];
            sum += part;
        }
        pooled[i] = sum / (float)(height * width);
    }
    pthread_mutex_unlock(&pool.busy);
    return failed ? OUT_OF_MEMORY : 0;
}

/* ---- batch norm: from sums to scale and shift ------------------------------------------------------- */

typedef struct {
    int64_t images, channels, area, batch_statistics;
    double eps, momentum; /* momentum < 0: leave the running statistics alone */
    const float *gamma, *beta;
    float *running_mean, *running_var;
    float *mean, *rstd, *scale, *shift;              /* forward: y = scale * (z - mean) + shift */
    float *gz, *gb;                                  /* backward: dz = scale * h + gz * (z - mean) + gb */
} BatchNorm;

/* The lanes from `half` on that hold an image, HALF of them. */
ALWAYS N real_half(int64_t images, int64_t block, int64_t half) {
    N mask;
    for (int i = 0; i < HALF; i++) mask[i] = block * LANES + half + i < images ? -1 : 0;
    return mask;
}

static int batch_norm_forward(const BatchNorm *b, const float *stats) {
    int64_t blocks = b->batch_statistics ? blocks_of(b->images) : 0, next = b->channels * 3 * LANES;
    double count = (double)b->images * (double)b->area, area = (double)b->area, share = 1 / area;
    for (int64_t c = 0; c < b->channels; c++, stats += 3 * LANES) {
        D means = {}, squares = {};
        for (int64_t half = 0; half < LANES; half += HALF) {
            N full = (N){} - 1, last = real_half(b->images, blocks - 1, half);
            const float *sum = stats + half;
            for (int64_t n = 0; n < blocks; n++, sum += next) {
                means += where(n < blocks - 1 ? full : last, wide(sum) + wide(sum + LANES) * share);
            }
        }
        double mean = across(means) / (double)b->images;
        for (int64_t half = 0; half < LANES; half += HALF) { /* within each image, and between images */
            N full = (N){} - 1, last = real_half(b->images, blocks - 1, half);
            const float *sum = stats + half;
            for (int64_t n = 0; n < blocks; n++, sum += next) {
                D all = wide(sum + LANES), first = all * share, gap = wide(sum) + first - mean;
                D square = wide(sum + 2 * LANES) - first * all + gap * gap * area;
                squares += where(n < blocks - 1 ? full : last, square);
            }
        }
        double square = across(squares);
        double variance = square / count;
        if (b->batch_statistics && b->momentum >= 0) {
            double unbiased = square / (count - 1);
            b->running_mean[c] = (float)(b->momentum * mean + (1 - b->momentum) * b->running_mean[c]);
            b->running_var[c] = (float)(b->momentum * unbiased + (1 - b->momentum) * b->running_var[c]);
        }
        if (!b->batch_statistics) {
            mean = b->running_mean[c];
            variance = b->running_var[c];
        }
        double rstd = 1.0 / sqrt((variance < 0 ? 0 : variance) + b->eps);
        double scale = or_one(b->gamma, c) * rstd;
        b->mean[c] = (float)mean;
        b->rstd[c] = (float)rstd;
        b->scale[c] = (float)scale;
        b->shift[c] = or_zero(b->beta, c);
    }
    return 0;
}

/* Gradients may be NULL. */
static int batch_norm_backward(const BatchNorm *b, const float *stats, float *of_gamma, float *of_beta) {
    int64_t blocks = blocks_of(b->images), next = b->channels * 3 * LANES;
    double count = (double)b->images * (double)b->area;
    for (int64_t c = 0; c < b->channels; c++, stats += 3 * LANES) {
        D sums = {}, products = {};
        for (int64_t half = 0; half < LANES; half += HALF) {
            N full = (N){} - 1, last = real_half(b->images, blocks - 1, half);
            const float *part = stats + half;
            for (int64_t n = 0; n < blocks; n++, part += next) {
                N images = n < blocks - 1 ? full : last;
                sums += where(images, wide(part + LANES));
                products += where(images, wide(part + 2 * LANES));
            }
        }
        double sum = across(sums), product = across(products);
        double gamma_gradient = product * b->rstd[c];
        if (of_gamma) of_gamma[c] = (float)gamma_gradient;
        if (of_beta) of_beta[c] = (float)sum;
        double gz = b->batch_statistics ? -(double)b->scale[c] * b->rstd[c] * gamma_gradient / count : 0;
        b->gz[c] = (float)gz;
        b->gb[c] = b->batch_statistics ? (float)(-(double)b->scale[c] * sum / count) : 0;
    }
    return 0;
}

/* ---- layer norm: every row by its own mean and spread ------------------------------------------------ */

typedef struct {
    int64_t images, channels, area, plane;
    double eps;
    const float *x, *gamma, *beta;
    float *out;             /* forward: gamma * (x - mean) / spread + beta; backward: the gradient of x, plus `add` */
    const Source *gradient; /* of the forward's out; NULL in the forward */
    const float *add;
    float *gamma_gradient, *beta_gradient; /* NULL if not wanted */
} LayerNorm;

/* Mean and 1 / spread of LANES rows, over channels that lie `plane` floats apart. */
static void moments_of_rows(const LayerNorm *b, const float *x, V *mean, V *rstd) {
    V sum[4] = {}, square[4] = {};
    for (int64_t c = 0; c < b->channels; c++) sum[c % 4] += load(x + c * b->plane);
    *mean = (sum[0] + sum[1] + (sum[2] + sum[3])) / (float)b->channels;
    for (int64_t c = 0; c < b->channels; c++) {
        V d = load(x + c * b->plane) - *mean;
        square[c % 4] += d * d;
    }
    V variance = (square[0] + square[1] + (square[2] + square[3])) / (float)b->channels;
    for (int lane = 0; lane < LANES; lane++) (*rstd)[lane] = (float)(1.0 / sqrt(variance[lane] + b->eps));
}

static void layer_norm_forward(const LayerNorm *b, int64_t at) {
    V mean, rstd;
    moments_of_rows(b, b->x + at, &mean, &rstd);
    for (int64_t c = 0; c < b->channels; c++, at += b->plane) {
        store(b->out + at, (load(b->x + at) - mean) * rstd * or_one(b->gamma, c) + or_zero(b->beta, c));
    }
}

/* `gradient` and `sums` lie channel by channel: area vectors of one, two vectors of the other. */
static void layer_norm_backward(const LayerNorm *b, int64_t at, const float *gradient, M lanes, float *sums) {
    V mean, rstd, direct = {}, through = {};
    int64_t row = b->area * LANES;
    moments_of_rows(b, b->x + at, &mean, &rstd);
    for (int64_t c = 0; c < b->channels; c++) {
        V g = load(gradient + c * row), x = (V)((M)((load(b->x + at + c * b->plane) - mean) * rstd) & lanes);
        float *sum = sums + 2 * c * LANES;
        store(sum, load(sum) + g * x);
        store(sum + LANES, load(sum + LANES) + g);
        direct += g * or_one(b->gamma, c);
        through += g * or_one(b->gamma, c) * x;
    }
    direct /= (float)b->channels;
    through /= (float)b->channels;
    for (int64_t c = 0; c < b->channels; c++, at += b->plane) {
        V x = (load(b->x + at) - mean) * rstd;
        V v = (load(gradient + c * row) * or_one(b->gamma, c) - direct - x * through) * rstd;
        store(b->out + at, b->add ? v + load(b->add + at) : v);
    }
}

static void layer_norm_part(void *argument, int thread, int64_t chunk, int64_t chunks) {
    const LayerNorm *b = argument;
    float *gradient = scratch[thread][GRADIENT_BAND].data, *sums = scratch[chunk][SUMS].data;
    if (b->gradient) memset(sums, 0, (size_t)(b->channels * 2 * LANES) * sizeof(float));
    EACH_BLOCK(n, blocks_of(b->images), chunk, chunks, 0) {
        M lanes = real_lanes(b->images, n);
        int64_t base = n * b->channels * b->plane, row = b->area * LANES;
        if (b->gradient) {
            fill(b->gradient, base, b->plane, b->channels, 1, b->area, 0, 0, 1, 0, 0, b->area, row, lanes, gradient);
        }
        for (int64_t i = 0; i < row; i += LANES) {
            if (b->gradient) layer_norm_backward(b, base + i, gradient + i, lanes, sums);
            else layer_norm_forward(b, base + i);
        }
    }
}

static int layer_norm(const LayerNorm *b, int64_t threads) {
    int workers = threads_for(threads);
    int64_t chunks = chunks_for(blocks_of(b->images), workers, 2 * b->channels, b->channels * b->area);
    pthread_mutex_lock(&pool.busy);
    int failed = b->gradient && (reserve(workers, GRADIENT_BAND, (size_t)(b->channels * b->area * LANES)) ||
                                 reserve(chunks, SUMS, (size_t)(b->channels * 2 * LANES)));
    if (!failed) run(layer_norm_part, (void *)b, chunks, workers, 0);
    for (int64_t i = 0; !failed && b->gradient && i < 2 * b->channels; i++) {
        float *wanted = i % 2 ? b->beta_gradient : b->gamma_gradient;
        if (wanted) wanted[i / 2] = total(i, chunks);
    }
    pthread_mutex_unlock(&pool.busy);
    return failed;
}

/* ---- weights that are not where the mask says -------------------------------------------------------- */

/* For each layer four numbers: its weight, how many there are, where its active ones lie, how many those are.
 * Returns the first layer that has a weight other than zero among the rest, -1 if none has. */
EXPORT int64_t zk_strays(const int64_t *layers, int64_t count) {
    for (int64_t layer = 0; layer < count; layer++) {
        const float *weight = (const float *)(intptr_t)layers[4 * layer];
        const int32_t *pick = (const int32_t *)(intptr_t)layers[4 * layer + 2];
        int64_t size = layers[4 * layer + 1], active = layers[4 * layer + 3], inside = 0, all = 0;
        for (int64_t i = 0; i < active; i++) inside += weight[pick[i]] != 0;
        for (int64_t from = 0; from < size; from += 1 << 20) { /* so that 32 bits hold a sum, and vectors are full */
            int32_t some = 0, rest = (int32_t)(size - from < 1 << 20 ? size - from : 1 << 20);
            for (int32_t i = 0; i < rest; i++) some += weight[from + i] != 0;
            all += some;
        }
        if (all != inside) return layer;
    }
    return -1;
}

/* ---- many calls as one ------------------------------------------------------------------------------ */

enum {
    CONV_FORWARD, CONV_BACKWARD, SWEEP, MOVE, BATCH_NORM_FORWARD, BATCH_NORM_BACKWARD, LAYER_NORM, PIXEL_CONV, PIXEL_MOVE,
    PIXEL_POOL, WINDOW, PIXEL_WINDOW
};

/* Makes the calls of a list, in order: each is its number, then its arguments.  Stops at the first that fails. */
EXPORT int zk_calls(const int64_t *list, int64_t length) {
    int failed = 0;
    for (const int64_t *a = list, *end = list + length; a < end && !failed;) {
#define P(i) ((void *)(intptr_t)a[i])
#define MADE(count, call) failed = call, a += count; break
        switch (*a++) {
        case CONV_FORWARD: MADE(7, conv_forward(P(0), P(1), P(2), P(3), P(4), a[5], a[6]));
        case CONV_BACKWARD:
            MADE(12, conv_backward(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), a[10], a[11]));
        case SWEEP: MADE(11, sweep(a[0], a[1], a[2], a[3], P(4), P(5), P(6), a[7], a[8], a[9], a[10]));
        case MOVE:
            MADE(13, move(P(0), P(1), a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]));
        case BATCH_NORM_FORWARD: MADE(2, batch_norm_forward(P(0), P(1)));
        case BATCH_NORM_BACKWARD: MADE(4, batch_norm_backward(P(0), P(1), P(2), P(3)));
        case LAYER_NORM: MADE(2, layer_norm(P(0), a[1]));
        case PIXEL_CONV: MADE(6, pixel_conv(P(0), P(1), P(2), P(3), P(4), a[5]));
        case PIXEL_MOVE:
            MADE(13, pixel_move(P(0), P(1), a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]));
        case PIXEL_POOL: MADE(8, pixel_pool(a[0], a[1], a[2], a[3], a[4], a[5], P(6), P(7)));
        case WINDOW: MADE(2, window(P(0), a[1]));
        case PIXEL_WINDOW: MADE(3, pixel_window(P(0), a[1], a[2]));
        default: failed = -1;
        }
#undef MADE
#undef P
    }
    return failed;
}
