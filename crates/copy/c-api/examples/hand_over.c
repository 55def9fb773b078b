/*
 * A stage hands its buffer on: the next one keeps the bytes in memory of its own, and the buffer is
 * used again or freed. Nothing looks at the old content, so the pages themselves may go to the new
 * memory. Where that is not possible or does not pay, the bytes are copied: the result is the same.
 *
 *   cc hand_over.c $(pkg-config --cflags --libs unlade-copier) -pthread && ./a.out
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unlade/copier.h>

enum { BATCHES = 16, BATCH = 4 << 20 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* New memory in whole pages: source and destination begin at the same place in a page. */
static unsigned char *pages(void)
{
    void *memory = mmap(NULL, BATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

int main(void)
{
    const struct copier_task_opts last = {.size = sizeof(last), .flags = COPIER_LAST_USE};
    struct copier_stats stats = {.size = sizeof(stats)};
    unsigned char *buffer = pages();
    int is_right = 1;

    for (int batch = 0; batch < BATCHES; batch++) {
        unsigned char *kept = pages();

        memset(buffer, batch + 1, BATCH);
        if (_amemcpy(kept, buffer, BATCH, -1, NULL, NULL, &last) != 0)
            fail("_amemcpy");
        /* The content of the buffer is undefined now; after this it may be written. */
        if (csync(kept, BATCH) != 0 || csync_write(buffer, BATCH) != 0)
            fail("csync");
        for (size_t i = 0; i < BATCH; i += 1000)
            is_right &= kept[i] == batch + 1;
        munmap(kept, BATCH);
    }
    munmap(buffer, BATCH);
    if (copier_get_stats(-1, &stats) != 0)
        fail("copier_get_stats");
    printf("%llu of %d batches were moved, all are %s\n", (unsigned long long)stats.remapped,
           BATCHES, is_right ? "right" : "wrong");
    return !is_right;
}
