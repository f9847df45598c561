/* Threads: chunks of a job run on a pool; each is the same work whoever runs it. */

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
