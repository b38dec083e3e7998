/* Runs the tests of one .cu file and prints how many checks there were. */
#include "tests/simt/test.h"

test_counts the_counts;

int main()
{
    run_tests();
    printf("%d checks, %d failed\n", the_counts.checks, the_counts.failures);
    return the_counts.failures > 0 || the_counts.checks == 0;
}
