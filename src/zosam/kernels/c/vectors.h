/* Vectors of LANES images, and the functions that are evaluated on them. */

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16
#define VARIANT "x86-64-v4"
#elif defined(__AVX2__)
#define WIDTH 8
#define VARIANT "x86-64-v3"
#else
#define WIDTH 4
#define VARIANT "portable"
#endif
#ifndef LANES /* a test may ask for more lanes than the registers hold; the compiler then takes several */
#define LANES WIDTH
#endif

typedef float V __attribute__((vector_size(LANES * 4)));
typedef int32_t M __attribute__((vector_size(LANES * 4)));
typedef double D __attribute__((vector_size(LANES * 4))); /* half as many numbers, in a register as wide */
typedef int64_t N __attribute__((vector_size(LANES * 4)));
#define HALF (LANES / 2)
#define LINE 16 /* floats in a cache line */

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define EXPORT __attribute__((visibility("default")))

ALWAYS V load(const float *p) { return *(const V *)p; }
ALWAYS void store(float *p, V v) { *(V *)p = v; }
/* Past the caches: the line is not read from memory before it is written, and pushes out nothing that is needed now. */
ALWAYS void store_past(float *p, V v) {
#if defined(__AVX512F__) && LANES == 16
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__) && LANES == 8
    _mm256_stream_ps(p, (__m256)v);
#else
    store(p, v);
#endif
}
ALWAYS V splat(float f) { return f - (V){}; }
/* Written with comparisons that are false for NaN, so that NaN passes as it does in torch. */
ALWAYS V relu(V v) { return (V)((M)v & ~(v < 0.0f)); }
ALWAYS V where_positive(V v, V gate) { return (V)((M)v & ~(gate <= 0.0f)); }

ALWAYS V pick(M where, V yes, V no) { return (V)(((M)yes & where) | ((M)no & ~where)); }

/* e^x for x <= 0, within two units in the last place: 2^n times a polynomial in what is left. */
ALWAYS V exp_negative(V x) {
    x = pick(x < -87.0f, splat(-87.0f), x);
    V n = x * 1.44269504f + 12582912.0f; /* this many added, the integer lies in the low bits */
    V power = (V)(((M)n + 127) << 23);
    n -= 12582912.0f;
    V r = x - n * 0.693359375f + n * 2.12194440e-4f;
    V q = ((r * 1.381316e-3f + 8.369411e-3f) * r + 4.1668456e-2f) * r + 1.66665149e-1f;
    return ((q * r + 0.49999993f) * r * r + r + 1.0f) * power;
}

/* The normal distribution: its density at x is returned, the mass below x is left in `below`.
 * The mass of a tail is the density times a polynomial in 1 / (1 + 0.29 |x|), fitted to a relative error of 1e-8. */
ALWAYS V normal(V x, V *below) {
    V a = (V)((M)x & 0x7fffffff), density = exp_negative(a * a * -0.5f), t = 1.0f / (a * 0.29f + 1.0f);
    V p = ((t * 0.0394736622f - 0.192956441f) * t + 0.304911374f) * t - 0.147732395f;
    p = (((p * t + 0.181470026f) * t + 0.0796369358f) * t + 0.119775943f) * t + 0.1154209f;
    V tail = p * t * density;
    *below = pick(x < 0.0f, tail, 1.0f - tail);
    return density * 0.398942280f;
}

ALWAYS V gelu(V x) {
    V below;
    normal(x, &below);
    return x * below;
}

ALWAYS V gelu_slope(V x) {
    V below, density = normal(x, &below);
    return below + x * density;
}

ALWAYS V sigmoid(V x) {
    V e = exp_negative((V)((M)x | (int32_t)0x80000000)), below = 1.0f / (1.0f + e);
    return pick(x < 0.0f, e * below, below);
}

ALWAYS V clamp6(V x) { return pick(x > 6.0f, splat(6.0f), relu(x)); }

ALWAYS D wide(const float *p) { /* HALF numbers */
    typedef float H __attribute__((vector_size(LANES * 2)));
    return __builtin_convertvector(*(const H *)p, D);
}

ALWAYS D where(N mask, D v) { return (D)((N)v & mask); }

ALWAYS double across(D v) {
    double sum = 0;
    UNROLL for (int i = 0; i < HALF; i++) sum += v[i];
    return sum;
}

ALWAYS float or_one(const float *p, int64_t c) { return p ? p[c] : 1.0f; }
ALWAYS float or_zero(const float *p, int64_t c) { return p ? p[c] : 0.0f; }
