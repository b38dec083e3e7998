/* The arithmetic of training one small network: a product of matrices, LayerNorm with and without SiLU, both ways, and
 * AdamW. f32, every sum in a fixed order. Knows rows of floats only. All widths are multiples of 16. */
#ifndef KVE_POLICIES_KVP_DENSE_H
#define KVE_POLICIES_KVP_DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVP_LANES = 16 }; /* columns of a panel; lanes of a sum */

/* c[i][j] = sum over p ascending of a(i, p) b(p, j), or c += that. Element a(i, p) stands at a[i * a_row + p * a_step];
 * b(p, j) at b[(j / 16) * b_panel + p * b_step + j % 16]: panels of 16 columns, or a plain matrix [k][n] with b_panel
 * 16 and b_step n. */
typedef struct kvp_gemm {
    const float *a, *b;
    float *c;
    size_t a_row, a_step, b_panel, b_step, c_row;
    int32_t m, n, k; /* n a multiple of 16 */
    bool add;
} kvp_gemm;

/* LayerNorm of rows: y = (x + bias - mean) / sqrt(var + 1e-5), in place; scale[r] = 1 / sqrt(...). bias may be NULL. */
typedef struct kvp_norm {
    float *x; /* [rows][width] */
    const float *bias;
    float *scale; /* [rows] */
    int32_t rows, width;
} kvp_norm;

/* out = y gain + shift, then SiLU where asked for. out may not be y. */
typedef struct kvp_affine {
    const float *y, *gain, *shift;
    float *out;
    size_t y_row, out_row;
    int32_t rows, width;
    bool silu;
} kvp_affine;

/* Back through affine (and SiLU) and LayerNorm. d: in the gradient of the output, out that of what entered the bias;
 * the gradients of bias, gain and shift are added to. scale NULL: only those of gain and shift, d is left alone. */
typedef struct kvp_norm_back {
    const float *y, *scale, *gain, *shift;
    float *d, *d_bias, *d_gain, *d_shift;
    size_t y_row, d_row;
    int32_t rows, width;
    bool silu;
} kvp_norm_back;

/* One step of AdamW on n values (a multiple of 16). */
typedef struct kvp_adamw {
    float *w, *mean, *square; /* [n] */
    const float *grad;
    size_t n;
    float factor; /* of the gradient: clipping */
    float lr, decay, beta1, beta2, eps;
    float fix1, fix2; /* 1 / (1 - beta^step) */
} kvp_adamw;

/* The same functions for what this processor has. */
typedef struct kvp_math {
    const char *name;
    void (*gemm)(const kvp_gemm *g);
    void (*norm)(const kvp_norm *p);
    void (*affine)(const kvp_affine *p);
    void (*norm_back)(const kvp_norm_back *p);
    /* out[r] = rows of x [rows][width] . w + bias */
    void (*dots)(const float *x, int32_t rows, int32_t width, const float *w, float bias, float *out);
    double (*square_sum)(const float *x, size_t n); /* n a multiple of 16 */
    void (*adamw)(const kvp_adamw *p);
    void (*blend)(float *to, const float *from, size_t n, float keep); /* to = keep to + (1 - keep) from */
} kvp_math;

extern const kvp_math kvp_math_portable;
/* AVX2 with FMA where the processor has both, else portable. KVEVAL_ISA=portable asks for portable. */
const kvp_math *kvp_math_pick(void);

#endif
