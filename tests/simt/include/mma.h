/* Stands in for NVIDIA's mma.h in .cu files that are compiled for the host: found first on the include path. */
#include "tests/simt/wmma.h"
