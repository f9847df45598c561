/* Layout: how plain tensors come into blocks of LANES images, and leave them. */

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
