/* Element-wise passes: from a Source to a Sink, with nothing between. */

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
