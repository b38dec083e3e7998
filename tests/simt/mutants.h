/* A seeded mistake, and the same code without it. Each returns whether its answer is right. */
#ifndef KVE_TESTS_SIMT_MUTANTS_H
#define KVE_TESTS_SIMT_MUTANTS_H

#include "tests/simt/test.h"

#include <algorithm>

struct mutant {
    const char *name;
    bool (*wrong)();
    bool (*right)();
};

const std::vector<mutant> &kernel_mutants();
const std::vector<mutant> &host_mutants();

#endif
