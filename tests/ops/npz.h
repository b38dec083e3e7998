/* Arrays of numpy's .npz files, as far as the tests' fixtures need them. */
#ifndef KVE_TESTS_OPS_NPZ_H
#define KVE_TESTS_OPS_NPZ_H

#include "host/base/file.h"
#include "tests/ops/optable.h"

/* The member `name` ("k.npy") of an uncompressed .npz, which must hold exactly n little-endian floats in C order; host
 * memory of the row. Fails the test otherwise. */
float *npz_floats(op_env *e, const kve_map *npz, const char *name, size_t n);

#endif
