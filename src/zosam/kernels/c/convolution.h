/* Convolution: forward, and both gradients. */

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
            int64_t turns = s->outputs * TILES_IN(rows, s->out_width, PRODUCT_VECTORS);
            Ahead ahead = next_input(job, n, NEXT_BLOCK(n, job->backwards), y, turns);
            EACH_TILE(product_shapes, rows, s->out_width, {
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
                 reserve(workers, PARTIAL, (size_t)(s->outputs * PRODUCT_VECTORS * LANES));
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
            EACH_TILE(product_shapes, high, columns, {
                ahead->hop = (xx + step < x + wide ? step : product_shapes.rows[tile] * s->width - (xx - x)) * stride * LANES;
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
                                  s->outputs * job->index->groups * TILES_IN(high, s->out_width, WEIGHT_VECTORS));
                EACH_TILE(weight_shapes, high, s->out_width, {
                    table[tile](band + (r * band_width + xx) * s->stride * LANES, band_width * LANES, job->index,
                                inner + (r * gradient_width + xx) * LANES, s->out_band, gradient_width * LANES,
                                s->outputs, sums, &ahead);
                })
            }
            if (job->want_input) {
                int64_t turns = s->inputs * s->stride * s->stride * TILES_IN(rows, across, PRODUCT_VECTORS);
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
                 reserve(workers, PARTIAL, (size_t)(s->inputs * PRODUCT_VECTORS * LANES)) ||
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
