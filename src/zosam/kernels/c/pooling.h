/* Pooling over windows: the largest or the mean, and their gradients. */

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
