/* Means, quantiles and the bootstrap. */
#include "host/base/stats.h"

#include "host/base/rng.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { RESAMPLES = 2000 };

static double kahan(const double *x, size_t n)
{
    double sum = 0, lost = 0;
    for (size_t i = 0; i < n; i++) {
        assert(!isnan(x[i]));
        double y = x[i] - lost, t = sum + y;
        lost = (t - sum) - y;
        sum = t;
    }
    return sum;
}

double kve_mean(const double *x, size_t n)
{
    assert(n >= 1);
    return kahan(x, n) / (double)n;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kve_quantile(double *x, size_t n, double q)
{
    assert(n >= 1 && q >= 0 && q <= 1);
    qsort(x, n, sizeof *x, ascending);
    double at = q * (double)(n - 1);
    size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return x[low] + (x[high] - x[low]) * (at - (double)low);
}

double kve_median(double *x, size_t n)
{
    return kve_quantile(x, n, 0.5);
}

kve_interval kve_bootstrap(const double *x, const double *w, size_t n, uint64_t seed)
{
    static const double low_q = 0.025, high_q = 0.975;
    double means[RESAMPLES];
    kve_rng r;
    assert(n >= 1);
    kve_rng_init(&r, seed, n, 0, 0);
    for (int k = 0; k < RESAMPLES; k++) {
        double sum = 0, weight = 0;
        for (size_t i = 0; i < n; i++) {
            size_t pick = kve_rng_below(&r, n);
            double wi = w ? w[pick] : 1.0;
            assert(!isnan(x[pick]) && wi > 0);
            sum += wi * x[pick];
            weight += wi;
        }
        means[k] = sum / weight;
    }
    double low = kve_quantile(means, RESAMPLES, low_q);
    return (kve_interval){.low = low, .high = kve_quantile(means, RESAMPLES, high_q)};
}
