/* Concurrent threads and forks, in the default queue and in others; argv[1] is the seed. */
#include "corpus.h"
#include <sys/wait.h>

enum { THREADS = 4, ROUNDS = 150, BUFFERS = 4, LENGTH = 200 << 10 };

static unsigned long seed;

static unsigned long draw(unsigned long *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Random copies between some buffers, compared with a model that uses memmove. */
static void *work(void *number)
{
    unsigned long state = seed * 977 + (unsigned long)number * 7919 + 1;
    int own = (unsigned long)number % 2, fd = own ? copier_create_queue(16) : -1;
    unsigned char *real[BUFFERS], *model[BUFFERS];

    assert(!own || fd >= 0);
    for (int i = 0; i < BUFFERS; i++) {
        real[i] = filled(LENGTH, (unsigned)i);
        model[i] = filled(LENGTH, (unsigned)i);
    }
    for (int round = 0; round < ROUNDS; round++) {
        size_t from = draw(&state) % BUFFERS, to = draw(&state) % BUFFERS;
        size_t n = draw(&state) % (LENGTH / 2), src = draw(&state) % (LENGTH - n);
        size_t dst = draw(&state) % (LENGTH - n), way = draw(&state) % 8;
        struct copier_task_opts opts = {.size = sizeof(opts)};
        opts.flags = way == 0 ? COPIER_LAZY : way < 4 ? COPIER_QUEUED : 0;
        opts.lazy_us = 1000;
        opts.granularity_bytes = way == 5 ? 1024 : 0;
        assert(_amemmove(real[to] + dst, real[from] + src, n, fd, NULL, NULL, &opts) == 0);
        memmove(model[to] + dst, model[from] + src, n);
        if (way == 6) {
            assert(_csync((size_t)real[to], LENGTH, fd, NULL, NULL) == 0);
            assert(memcmp(real[to], model[to], LENGTH) == 0);
        } else if (way == 7) {
            struct copier_sync_opts write = {.size = sizeof(write), .flags = COPIER_SYNC_WRITE};
            assert(_csync((size_t)(real[from] + src), n, fd, NULL, &write) == 0);
            memset(real[from] + src, round, n);
            memset(model[from] + src, round, n);
        }
    }
    assert(_csync_all(fd) == 0);
    for (int i = 0; i < BUFFERS; i++) {
        assert(memcmp(real[i], model[i], LENGTH) == 0);
        free(real[i]);
        free(model[i]);
    }
    assert(!own || copier_close_queue(fd) == 0);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];

    seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    for (unsigned long i = 0; i < THREADS; i++)
        assert(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 10; i++) {
        int status;
        pid_t child = fork();
        assert(child >= 0);
        if (child == 0) {
            unsigned char *src = filled(N, 3), *dst = malloc(N);
            amemcpy(dst, src, N);
            _exit(csync(dst, N) != 0 || !holds(dst, 0, N, 3));
        }
        assert(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
