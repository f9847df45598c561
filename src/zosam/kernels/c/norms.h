/* Norms: batch norm, from sums to scale and shift; layer norm, every row by its own mean and spread. */

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
    *rstd += variance - variance; /* one over infinity is no answer */
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
