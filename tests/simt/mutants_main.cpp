/* mutants list | mutants NAME [right]: see mutants.cu. Exit code 0: nothing was noticed and the answer is right. */
#include "tests/simt/mutants.h"

#include <string.h>

test_counts the_counts;

int main(int argc, char **argv)
{
    std::vector<mutant> all = kernel_mutants();
    all.insert(all.end(), host_mutants().begin(), host_mutants().end());
    for (const mutant &m : all) {
        if (argc == 2 && strcmp(argv[1], "list") == 0)
            printf("%s\n", m.name);
        if (argc < 2 || strcmp(argv[1], m.name) != 0)
            continue;
        bool ok = argc > 2 && strcmp(argv[2], "right") == 0 ? m.right() : m.wrong();
        printf("%s\n", ok ? "right answer" : "wrong answer");
        return ok && the_counts.failures == 0 ? 0 : 3;
    }
    return argc == 2 && strcmp(argv[1], "list") == 0 ? 0 : 2;
}
