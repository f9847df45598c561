/* Few pictures: pixels lie innermost.
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
PRODUCT_TILES(MAKE_PIXEL)
#define PIXEL1(i, TR, TC) pixel_##TR##TC##1,
#define PIXEL2(i, TR, TC) pixel_##TR##TC##2,
static const PixelTile pixels[2][8] = {{PRODUCT_TILES(PIXEL1)}, {PRODUCT_TILES(PIXEL2)}};

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
            EACH_TILE(product_shapes, rows, s->out_row / LANES, {
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
