/* Threads copy and sync their own bytes in one queue. */
#include "../corpus.h"

static void *work(void *number)
{
    unsigned seed = (unsigned)(unsigned long)number;
    for (int round = 0; round < 50; round++) {
        unsigned char *src = filled(N, seed), *dst = malloc(N);
        amemcpy(dst, src, N);
        assert(csync(dst, N) == 0 && holds(dst, 0, N, seed));
        csync_write(src, N);
        free(src);
        free(dst);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    for (unsigned long i = 0; i < 4; i++)
        assert(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
