/* The thread pool: workers take items by an atomic counter, the caller works too. Between rounds a worker spins for a
 * moment before it sleeps: a decode step is hundreds of short rounds, and waking a sleeper costs more than most of
 * them. */
#include "kernels/cpu/cpu.h"

#include "host/base/mem.h"

#include <pthread.h>
#include <stdlib.h>

struct cpu_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t *threads;
    int32_t n_threads, n_started; /* the caller is worker 0; threads 1 .. n - 1 are ours */
    atomic_ullong round;
    atomic_int n_busy; /* workers still in the round */
    bool stop;
    cpu_item_fn fn;
    void *ctx;
    int64_t n_items;
    atomic_llong next;
};

static void drain(cpu_pool *p, int32_t worker)
{
    for (int64_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n_items;)
        p->fn(p->ctx, i, worker);
}

enum { SPINS = 2000 };

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until the round moves on from `seen`; false when the pool stops. */
static bool await_round(cpu_pool *p, unsigned long long seen)
{
    for (int i = 0; i < SPINS; i++, relax())
        if (atomic_load(&p->round) != seen)
            break;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && atomic_load(&p->round) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    bool go = !p->stop;
    pthread_mutex_unlock(&p->lock);
    return go;
}

static void *work(void *arg)
{
    cpu_pool *p = arg;
    pthread_mutex_lock(&p->lock);
    int32_t me = ++p->n_started;
    pthread_mutex_unlock(&p->lock);
    for (unsigned long long seen = 0; await_round(p, seen); seen++) {
        drain(p, me);
        if (atomic_fetch_sub(&p->n_busy, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->idle);
            pthread_mutex_unlock(&p->lock);
        }
    }
    return NULL;
}

kve_status cpu_pool_create(int32_t threads, cpu_pool **out)
{
    cpu_pool *p = NULL;
    KVE_TRY(kve_alloc(1, sizeof *p, &p));
    kve_status st = kve_alloc((size_t)threads, sizeof *p->threads, &p->threads);
    if (st != KVE_OK) {
        free(p);
        return st;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->n_threads = 1;
    for (int32_t i = 1; i < threads; i++, p->n_threads++)
        if (pthread_create(&p->threads[i], NULL, work, p) != 0) {
            cpu_pool_free(p);
            return kve_fail(KVE_ERR_INTERNAL, "cannot start thread %d of %d; ask for fewer with --threads", i + 1,
                            threads);
        }
    *out = p;
    return KVE_OK;
}

void cpu_pool_free(cpu_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}

void cpu_parallel_for(cpu_backend *be, int64_t n_items, cpu_item_fn fn, void *ctx)
{
    cpu_pool *p = be->pool;
    if (n_items <= 1 || p->n_threads == 1) {
        for (int64_t i = 0; i < n_items; i++)
            fn(ctx, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    atomic_store(&p->next, 0);
    atomic_store(&p->n_busy, p->n_threads - 1);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    drain(p, 0);
    for (int i = 0; i < SPINS && atomic_load(&p->n_busy) > 0; i++)
        relax();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->n_busy) > 0)
        pthread_cond_wait(&p->idle, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
