/* What Python hands over: structures of pointers and integers (see build.structure). */

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
