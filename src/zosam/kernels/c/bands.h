/* Bands: padded copies of the input, filled from a Source, and the next one fetched ahead. */

#define SOON (40 * LANES) /* how far ahead a run is fetched: the CPU sees the pattern only as each run nears its end */

enum { WITH_Y = 1, WITH_Z = 2, WITH_RELU = 4, WITH_OUT = 8, WITH_CURVE = 16 };

static int source_flags(const Source *s) {
    int bend = s->activation == RELU ? WITH_RELU : s->activation ? WITH_CURVE : 0;
    return bend | (s->y ? WITH_Y : 0) | (s->z ? WITH_Z : 0) | (s->out ? WITH_OUT : 0);
}

/* `count` vectors at offset `at` of channel c, into `band`. */
ALWAYS void read_run(const int flags, const Source *s, int64_t c, int64_t at, int64_t count, M lanes, float *band) {
    V xs = splat(or_one(s->xs, c)), xc = splat(or_zero(s->xc, c));
    V ys = splat(or_one(s->ys, c)), yc = splat(or_zero(s->yc, c)), b = splat(or_zero(s->xb, c) + or_zero(s->yb, c));
    const float *x = s->x + at, *y = s->y + at, *z = s->z + at, *m = s->m ? s->m + at : NULL;
    float *out = s->out + at;
    for (int64_t i = 0; i < count * LANES; i += LANES) {
        V v = (load(x + i) - xc) * xs + b;
        __builtin_prefetch(x + i + SOON, 0, 3);
        if (flags & WITH_Y) {
            v += (load(y + i) - yc) * ys;
            __builtin_prefetch(y + i + SOON, 0, 3);
        }
        if (flags & WITH_Z) v += load(z + i);
        if (flags & WITH_RELU) v = relu(v);
        if (flags & WITH_CURVE) v = bend(s->activation, v);
        if (m) v *= load(m + i);
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
