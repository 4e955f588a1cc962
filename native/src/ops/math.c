#include "ops/math.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static const double round_bias = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, ties to even

double lw_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        ++exponent;
    }
    // log m = 2 artanh s, |s| < 0.172
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double p = 0.0;
    for (int n = 23; n >= 1; n -= 2) p = fma(p, s2, 1.0 / n);
    return fma((double)exponent, 0.69314718055994531, 2.0 * s * p);
}

double lw_exp(double x) {
    const double n = fma(x, 1.4426950408889634, round_bias) - round_bias;
    double r = fma(n, -0.69314718055994529, x);
    r = fma(n, -2.3190468138462996e-17, r);
    double p = 1.0;
    for (int k = 14; k >= 1; --k) p = fma(p * (1.0 / k), r, 1.0);
    const uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

void lw_sincos(double x, double* sine, double* cosine) {
    const double n = fma(x, 0.63661977236758134, round_bias) - round_bias;
    double r = fma(n, -1.5707963267948966, x);
    r = fma(n, -6.123233995736766e-17, r);
    const double r2 = r * r;
    double s = 1.0, c = 1.0;
    for (int k = 18; k >= 2; k -= 2) {
        s = fma(s * (-1.0 / (k * (k + 1))), r2, 1.0);
        c = fma(c * (-1.0 / (k * (k - 1))), r2, 1.0);
    }
    s *= r;
    switch ((int64_t)n & 3) {
        case 0:
            *sine = s, *cosine = c;
            break;
        case 1:
            *sine = c, *cosine = -s;
            break;
        case 2:
            *sine = -s, *cosine = -c;
            break;
        default:
            *sine = -c, *cosine = s;
            break;
    }
}

double lw_softplus(double x) {
    if (!(x <= 36)) return x;  // NaN, too
    return x < -700 ? 0 : lw_log(1 + lw_exp(x));
}
