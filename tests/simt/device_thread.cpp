/* The device: an OS thread of its own. It may touch device memory where the host may not, and its thread-local storage
 * is the static shared memory of whichever block is running. It sleeps until the host waits for something. */
#include "tests/simt/memory.h"
#include "tests/simt/runtime.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>

namespace simt
{
/* Never destroyed: the thread outlives static destructors. */
struct device_state {
    std::mutex mutex;
    std::condition_variable changed;
    const std::function<void()> *job = nullptr;
    bool started = false;
    pthread_t thread;
    range shared = {nullptr, 0};
};

static device_state &device()
{
    static device_state *d = new device_state;
    return *d;
}

/* The first object that the loader lists is the program itself. */
static int find_program_tls(dl_phdr_info *info, size_t, void *out)
{
    range *r = static_cast<range *>(out);
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *r = {static_cast<char *>(info->dlpi_tls_data), info->dlpi_phdr[i].p_memsz};
    return 1;
}

static void *device_main(void *)
{
    device_state &d = device();
    device_thread_may_touch_memory();
    install_fault_handler();
#ifndef SIMT_ASAN
    dl_iterate_phdr(find_program_tls, &d.shared);
#endif
    for (;;) {
        std::unique_lock<std::mutex> lock(d.mutex);
        d.changed.wait(lock, [&d] { return d.job != nullptr; });
        (*d.job)();
        d.job = nullptr;
        d.changed.notify_all();
    }
}

static void start_thread(device_state &d)
{
    range host_shared = {nullptr, 0}; /* the device thread's will be as large, and is taken from its stack */
    pthread_attr_t attributes;
    dl_iterate_phdr(find_program_tls, &host_shared);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t{4} << 20) + host_shared.bytes);
    if (pthread_create(&d.thread, &attributes, device_main, nullptr) != 0)
        fault("the device's thread cannot be started");
    pthread_attr_destroy(&attributes);
    pthread_detach(d.thread);
    install_fault_handler();
    d.started = true;
}

void on_device(const std::function<void()> &job)
{
    device_state &d = device();
    if (is_device_thread()) { /* a host function in a stream calls the runtime */
        job();
        return;
    }
    std::unique_lock<std::mutex> lock(d.mutex);
    if (!d.started)
        start_thread(d);
    d.job = &job;
    d.changed.notify_all();
    d.changed.wait(lock, [&d] { return d.job == nullptr; });
}

bool is_device_thread()
{
    return device().started && pthread_equal(pthread_self(), device().thread);
}

range static_shared()
{
    return device().shared;
}
} // namespace simt
