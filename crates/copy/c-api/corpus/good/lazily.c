/* Bytes are handed on past a buffer that nothing looks at. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *between = filled(N, 2), *dst = filled(N, 3);

    for (int round = 0; round < 20; round++) {
        assert(amemcpy_lazily(between, src, N) == between);
        amemcpy(dst, between, N);
        assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    }
    assert(cdiscard(between, N) == 0);
    memset(between, 5, N);

    /* The source changes. */
    amemcpy_lazily(between, src, N);
    assert(csync_write(src, N) == 0);
    free(src);
    src = filled(N, 6);
    assert(csync(between, N) == 0 && holds(between, 0, N, 1));

    /* Part of the destination is wanted. */
    assert(csync_write(between, N) == 0);
    amemcpy_lazily(between, src, N);
    amemmove(between, dst, 10);
    assert(csync(between, N) == 0 && holds(between, 0, 10, 1) && holds(between, 10, N - 10, 6));

    struct copier_stats stats = {.size = sizeof(stats)};
    assert(copier_get_stats(-1, &stats) == 0 && stats.size == sizeof(stats));
    assert(stats.never_made_bytes == stats.never_made * N);
    /* A program for the first version of the interface has a shorter structure. */
    memset(&stats, 0xff, sizeof(stats));
    stats.size = offsetof(struct copier_stats, never_made);
    assert(copier_get_stats(-1, &stats) == 0 && stats.waits != UINT64_MAX);
    assert(stats.never_made == UINT64_MAX && stats.never_made_bytes == UINT64_MAX);

    assert(csync_write(src, N) == 0 && csync_write(dst, N) == 0);
    free(src);
    free(between);
    free(dst);
    return 0;
}
