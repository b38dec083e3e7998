/* The analytic position feature. Contract: net.h. */
#include "policies/kvp/net.h"

#include <math.h>

void kve_kvp_positions(int32_t n, int32_t P, float *out)
{
    const double two_pi = 6.283185307179586;
    const int32_t F = P / 2 - 2;
    for (int32_t j = 0; j < n; j++) {
        float *row = out + (size_t)j * (size_t)P;
        for (int32_t i = 0; i < F; i++) {
            double angle = two_pi * j / (8 * pow(256, (double)i / (F - 1)));
            row[2 * i] = (float)sin(angle);
            row[2 * i + 1] = (float)cos(angle);
        }
        for (int32_t i = 0; i < 4; i++)
            row[2 * F + i] = (float)(log1p(j / pow(16, i)) / 4);
    }
}
