/* A folder of its own for each cmocka test, in memory where that can be had. */
#ifndef KVE_TESTS_SCRATCH_H
#define KVE_TESTS_SCRATCH_H

extern char g_dir[256]; /* empty at the start of a test */

int make_dir(void **state); /* setup and teardown of cmocka */
int remove_dir(void **state);
void remove_tree(const char *dir);

#endif
