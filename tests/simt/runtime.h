/* Inside the run time of tests/simt: settings, the random numbers of every schedule, the end of a run that found a
 * mistake, and what the .cpp files need of each other. Never seen by a .cu file. */
#ifndef KVE_TESTS_SIMT_RUNTIME_H
#define KVE_TESTS_SIMT_RUNTIME_H

#include "tests/simt/launch.h"

#include <stdio.h>

#include <functional>

namespace simt
{
/* The order in which threads, blocks and streams that may run are taken. */
enum class order { fifo, reverse, random };

struct settings {
    order schedule; /* SIMT_ORDER=fifo (default), reverse, random */
    uint64_t seed;  /* SIMT_SEED, for random */
    bool strict;    /* SIMT_STRICT=1: a collective that names threads that have returned is an error */
};
const settings &the_settings();
uint64_t random_number();
/* The next index below n under the schedule. */
size_t pick(size_t n);

/* Prints what is wrong and which thread of which block was running, and aborts. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A mistake that the real library answers with a code: one line on stderr, and the code. */
cudaError_t refuse(cudaError_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "kernel k, block (0,0,0), thread (1,0,0), last barrier or collective a.cu:12\n", or where the host is. */
void print_position(FILE *out);

/* The device: one OS thread of its own, on which every kernel, copy and library call runs. A host thread may not touch
 * device memory; the device thread may (memory.cpp). Returns when the job is done. */
void on_device(const std::function<void()> &job);
bool is_device_thread();
/* Where static shared memory lies: the thread-local storage of the program on the device thread. */
struct range {
    char *from;
    size_t bytes;
};
range static_shared();

/* Runs every block of a kernel. On the device thread. */
void run_kernel(const kernel_call &call);

cudaError_t set_last_error(cudaError_t code);
/* The launch limits of the device that is played; cudaSuccess, or what a real launch would leave in the last error. */
cudaError_t check_launch(const kernel_call &call);
} // namespace simt

#endif
