/* Summary statistics on doubles. NaN is refused by assertion: callers filter what is unknown first. */
#ifndef KVE_BASE_STATS_H
#define KVE_BASE_STATS_H

#include <stddef.h>
#include <stdint.h>

double kve_mean(const double *x, size_t n);         /* n >= 1; Kahan-compensated */
double kve_quantile(double *x, size_t n, double q); /* sorts x; linear interpolation (numpy's default) */
double kve_median(double *x, size_t n);             /* sorts x */

typedef struct kve_interval {
    double low, high;
} kve_interval;

/* Percentile bootstrap of the weighted mean sum(w*x)/sum(w) over n samples: 2,000 resamples, 95 %. w == NULL: all 1.
 * The same seed gives the same interval. n == 1 gives a point. */
kve_interval kve_bootstrap(const double *x, const double *w, size_t n, uint64_t seed);

#endif
