/* Register tiles: sums stay in registers while active weights are walked. */

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
        fetch(ahead); /* before there is anything in registers: a call keeps none of them */
        V bias = splat(or_zero(k->bias, c));
        const float *sum = partial + c * TR * TC * LANES;
        UNROLL for (int q = 0; q < TR * TC; q++) acc[q] = a->groups == 1 ? bias : load(sum + q * LANES);
        for (int32_t i = start[c], end = start[c + 1]; i < end; i++) {
            const float *from = band + a->offset[i];
            V w = splat(a->value[i]);
            EACH_VECTOR(p, from, SI * band_row, SI * LANES, { acc[q] += w * load(p); })
        }
        if (k->add) EACH_OF(k->add + ahead->hop, { __builtin_prefetch(p, 0, 2); })
        if (k->with) EACH_OF(k->with + ahead->hop, { __builtin_prefetch(p, 0, 2); })
        if (k->add) EACH_OF(k->add, { acc[q] += load(p); })
        if (k->gate) {
            V gs = splat(or_one(k->gs, c)), gc = splat(or_zero(k->gc, c)), gb = splat(or_zero(k->gb, c));
            if (k->activation > RELU) {
                V bent[16]; /* in memory, since this loop counts; the sums themselves stay in registers */
                UNROLL for (int q = 0; q < TR * TC; q++) bent[q] = acc[q];
                for (int q = 0; q < TR * TC; q++) {
                    const float *gate = k->gate + at + (q / TC) * row + (q % TC) * SO * LANES;
                    bent[q] *= slope(k->activation, (load(gate) - gc) * gs + gb);
                }
                UNROLL for (int q = 0; q < TR * TC; q++) acc[q] = bent[q];
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

/* Tiles by shape: as wide as possible, the narrow ones taller, and one row of each for what is left.  Those of products
 * have eight sums, as many as hide the latency of a multiply-add; what a larger one reads of a layer no longer fits the L1
 * cache.  Those of weights read and write a sum per weight; where AVX-512 has the registers they are twice as large. */
#define PRODUCT_TILES(X) X(0, 2, 4) X(1, 1, 4) X(2, 4, 2) X(3, 1, 2) X(4, 8, 1) X(5, 1, 1)
#define PRODUCT_VECTORS 8
#if defined(__AVX512F__) && LANES == WIDTH
#define WEIGHT_TILES(X) X(0, 2, 8) X(1, 1, 8) X(2, 2, 4) X(3, 1, 4) X(4, 4, 2) X(5, 1, 2) X(6, 8, 1) X(7, 1, 1)
#define WEIGHT_VECTORS 16
#else
#define WEIGHT_TILES PRODUCT_TILES
#define WEIGHT_VECTORS 8
#endif
#define TILE_HIGH(i, TR, TC) TR,
#define TILE_WIDE(i, TR, TC) TC,
typedef struct {
    int rows[8], columns[8];
} TileShapes;
static const TileShapes product_shapes = {{PRODUCT_TILES(TILE_HIGH)}, {PRODUCT_TILES(TILE_WIDE)}};
static const TileShapes weight_shapes = {{WEIGHT_TILES(TILE_HIGH)}, {WEIGHT_TILES(TILE_WIDE)}};

/* How many tiles there are, if all are large. */
#define TILES_IN(rows, columns, vectors) ((rows) * (columns) / (vectors))

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
#define MAKE_PRODUCT(i, TR, TC) PRODUCT(TR, TC, 1, 1) PRODUCT(TR, TC, 2, 1) PRODUCT(TR, TC, 1, 2)
#define MAKE_WEIGHT(i, TR, TC) WEIGHT(TR, TC, 1) WEIGHT(TR, TC, 2)
PRODUCT_TILES(MAKE_PRODUCT)
WEIGHT_TILES(MAKE_WEIGHT)
#define ROW11(i, TR, TC) product_##TR##TC##11,
#define ROW21(i, TR, TC) product_##TR##TC##21,
#define ROW12(i, TR, TC) product_##TR##TC##12,
#define ROW1(i, TR, TC) weight_##TR##TC##1,
#define ROW2(i, TR, TC) weight_##TR##TC##2,
static const ProductTile products[3][8] = {{PRODUCT_TILES(ROW11)}, {PRODUCT_TILES(ROW21)}, {PRODUCT_TILES(ROW12)}};
static const WeightTile weights[2][8] = {{WEIGHT_TILES(ROW1)}, {WEIGHT_TILES(ROW2)}};

/* Cuts rows x columns into tiles and runs BODY with (r, x, tile). */
#define EACH_TILE(shapes, high_, columns_, BODY)                                              \
    for (int64_t x = 0, wide; x < (columns_); x += wide) {                                    \
        int64_t left_ = (columns_) - x;                                                       \
        int kind = 0;                                                                         \
        while ((shapes).columns[kind] > left_) kind += 2;                                     \
        int64_t step = (shapes).columns[kind];                                                \
        wide = left_ / step * step;                                                           \
        for (int64_t r = 0; r < (high_);) {                                                   \
            int tile = (high_) - r >= (shapes).rows[kind] ? kind : kind + 1;                  \
            for (int64_t xx = x; xx < x + wide; xx += step) { BODY }                          \
            r += (shapes).rows[tile];                                                         \
        }                                                                                     \
    }
