/* The tests of tests/simt: each .cu file defines run_tests(); main.cpp calls it. A failed check is printed and counted,
 * and the test goes on. */
#ifndef KVE_TESTS_SIMT_TEST_H
#define KVE_TESTS_SIMT_TEST_H

#include <cuda_runtime.h>

#include <stdio.h>

#include <vector>

void run_tests();

struct test_counts {
    int checks, failures;
};
extern test_counts the_counts;

inline void check(bool ok, const char *what, const char *file, int line)
{
    the_counts.checks++;
    if (ok)
        return;
    the_counts.failures++;
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
}
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

/* Device memory with these values; freed at the end of the scope. */
template <class T> class device_array
{
  public:
    explicit device_array(const std::vector<T> &values) : n(values.size())
    {
        CHECK(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
        CHECK(cudaMemcpy(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    }
    explicit device_array(size_t count) : n(count)
    {
        CHECK(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array()
    {
        CHECK(cudaFree(p) == cudaSuccess);
    }
    std::vector<T> values() const
    {
        std::vector<T> v(n);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
        CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
        return v;
    }

    T *p = nullptr;
    size_t n;
};

/* 0 .. below - 1, the same in every run. */
inline int test_random(int below)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return static_cast<int>((state >> 8) % static_cast<unsigned>(below));
}

#endif
