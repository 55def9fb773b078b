/* Sources that are given up: pages go to new memory, and everything else is copied. */
#include "../corpus.h"

enum { PAGE = 4096, LONG = 4 << 20 };

static int calls;

static void called(void *argument)
{
    calls += argument == &calls;
}

static unsigned char *mapped(void)
{
    void *bytes = mmap(NULL, LONG + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(bytes != MAP_FAILED);
    return bytes;
}

static void give_up(unsigned char *dst, unsigned char *src, size_t n, struct copier_descr *descr)
{
    const struct copier_task_opts last = {.size = sizeof(last), .flags = COPIER_LAST_USE};
    const struct copier_func func = {called, &calls};

    calls = 0;
    assert(_amemcpy(dst, src, n, -1, &func, descr, &last) == 0);
    assert(_csync(0, n, -1, descr, NULL) == 0);
    assert(csync_write(src, n) == 0 && csync_all() == 0 && calls == 1);
}

int main(void)
{
    struct copier_descr descr = {0};

    for (int round = 0; round < 8; round++) {
        /* New memory, from the same place in a page on or not. */
        const size_t shift = round % 4 == 3 ? 5 : 0, at = round * 100;
        unsigned char *src = mapped(), *dst = mapped(), *filling = filled(LONG, round);

        memcpy(src + at, filling, LONG);
        give_up(dst + at + shift, src + at, LONG, &descr);
        assert(memcmp(dst + at + shift, filling, LONG) == 0);
        for (size_t i = 0; i < at + shift; i++)
            assert(dst[i] == 0);
        /* The source is ordinary memory, and the destination is there now. */
        memset(src, 5, LONG + PAGE);
        give_up(dst + at, src + at, LONG, &descr);
        assert(dst[at] == 5 && dst[at + LONG - 1] == 5);
        free(filling);
        munmap(src, LONG + PAGE);
        munmap(dst, LONG + PAGE);
    }

    /* Short ones, ranges that overlap, and moves of these. */
    unsigned char *bytes = filled(N, 1), *copy = filled(N, 2);
    const struct copier_task_opts last = {.size = sizeof(last), .flags = COPIER_LAST_USE};
    const struct copier_task_opts wrong = {.size = sizeof(wrong),
                                           .flags = COPIER_LAST_USE | COPIER_LAZY};
    give_up(copy, bytes, 100, &descr);
    assert(holds(copy, 0, 100, 1));
    free(bytes);
    bytes = filled(N, 3);
    assert(_amemmove(bytes + 10, bytes, N - 10, -1, NULL, NULL, &last) == 0);
    assert(csync(bytes, N) == 0 && holds(bytes + 10, 0, N - 10, 3));
    assert(_amemcpy(bytes + 10, bytes, N - 10, -1, NULL, NULL, &last) == 0);
    assert(csync(bytes + 10, N - 10) == -1 && errno == EINVAL);
    assert(_amemcpy(copy, bytes, N, -1, NULL, NULL, &wrong) == -1 && errno == EINVAL);

    assert(csync_write(bytes, N) == 0 && csync_write(copy, N) == 0);
    free(bytes);
    free(copy);

    struct copier_stats stats = {.size = sizeof(stats)};
    assert(copier_get_stats(-1, &stats) == 0);
    assert(stats.remapped_bytes >= stats.remapped * (LONG - 2 * PAGE));
    if (stats.served)
        assert(stats.last_use_copied_bytes >= 8 * LONG);
    printf("remapped %llu, served %u\n", (unsigned long long)stats.remapped, stats.served);
    return 0;
}
