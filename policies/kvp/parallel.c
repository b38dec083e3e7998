/* Threads that live for one loop: an item takes milliseconds, a thread some microseconds. Contract: parallel.h. */
#include "policies/kvp/parallel.h"

#include "host/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE = 1024 };

typedef struct loop {
    kvp_item f;
    void *ctx;
    int32_t n;
    atomic_int next;
    atomic_bool failed;
    pthread_mutex_t lock;
    int32_t failed_item; /* under the lock, with the two below */
    kve_status status;
    char message[MESSAGE];
} loop;

typedef struct worker {
    loop *l;
    int32_t index;
    pthread_t thread;
} worker;

/* The message belongs to this thread: it is carried over to the caller's. */
static void note_failure(loop *l, int32_t item, kve_status st)
{
    pthread_mutex_lock(&l->lock);
    if (l->status == KVE_OK || item < l->failed_item) {
        l->status = st;
        l->failed_item = item;
        snprintf(l->message, sizeof l->message, "%s", kve_diag());
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->failed, true);
}

static void *work(void *arg)
{
    const worker *w = arg;
    loop *l = w->l;
    for (int32_t i; !atomic_load(&l->failed) && (i = atomic_fetch_add(&l->next, 1)) < l->n;) {
        kve_status st = l->f(l->ctx, i, w->index);
        if (st != KVE_OK)
            note_failure(l, i, st);
    }
    return NULL;
}

kve_status kvp_parallel(int32_t threads, int32_t n, kvp_item f, void *ctx)
{
    loop l = {.f = f, .ctx = ctx, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
    worker *w = NULL;
    int32_t started = 1;
    KVE_TRY(kve_alloc((size_t)threads, sizeof *w, &w));
    for (int32_t i = 0; i < threads; i++)
        w[i] = (worker){.l = &l, .index = i};
    while (started < threads && pthread_create(&w[started].thread, NULL, work, &w[started]) == 0)
        started++;
    work(&w[0]);
    for (int32_t i = 1; i < started; i++)
        pthread_join(w[i].thread, NULL);
    free(w);
    pthread_mutex_destroy(&l.lock);
    return l.status == KVE_OK ? KVE_OK : kve_fail(l.status, "%s", l.message);
}
