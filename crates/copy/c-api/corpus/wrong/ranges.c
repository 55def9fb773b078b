/* Ranges that overlap, wrap around the address space, or are longer than it, end in EINVAL. */
#include "../corpus.h"

static struct copier_task_opts queued = {.size = sizeof(queued), .flags = COPIER_QUEUED};

static void fails(const void *dst, size_t n)
{
    errno = 0;
    assert(csync(dst, n) == -1 && errno == EINVAL);
    assert(csync(dst, n) == 0);
}

static int handled;

static void on_end(void *unused)
{
    (void)unused;
    handled++;
}

static void wrong(void *dst, const void *src, size_t n)
{
    struct copier_func func = {on_end, NULL};
    struct copier_descr descr = {0};

    assert(amemcpy(dst, src, n) == dst);
    fails(dst, n);
    assert(_amemcpy(dst, src, n, -1, NULL, NULL, &queued) == 0);
    fails(dst, n);
    assert(_amemcpy(dst, src, n, -1, NULL, &descr, &queued) == 0);
    errno = 0;
    assert(_csync(0, n, -1, &descr, NULL) == -1 && errno == EINVAL);
    assert(csync_all() == 0);
    handled = 0;
    assert(_amemcpy(dst, src, n, -1, &func, NULL, NULL) == 0);
    assert(csync_all() == -1 && errno == EINVAL && handled == 1);
    assert(csync_write(src, n) == 0);
}

int main(void)
{
    enum { LONG = 4 << 20 };
    unsigned char *a = filled(2 * LONG, 1), *b = filled(N, 2);
    unsigned char *end = (unsigned char *)(SIZE_MAX - 100);
    const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX - (1 << 20)};

    wrong(a, a, 1);
    wrong(a, a, N);
    wrong(a + 1, a, N);
    wrong(a, a + N - 1, N);
    /* Longer than a task: parts with the same index do not overlap. */
    wrong(a + (1 << 20), a, LONG);
    wrong(a, a + (2 << 20), LONG);
    wrong(a, end, N);
    wrong(end, a, N);
    for (size_t i = 0; i < sizeof(absurd) / sizeof(*absurd); i++) {
        wrong(a, b, absurd[i]);
        wrong(b, a, absurd[i]);
        wrong(NULL, a, absurd[i]);
        amemmove(a, b, absurd[i]);
        fails(a, 1);
        assert(csync_all() == -1 && errno == EINVAL);
        assert(csync_all() == 0);
    }
    assert(holds(a, 0, 2 * LONG, 1) && holds(b, 0, N, 2));

    /* Moves may overlap, and copies of 0 bytes are always valid. */
    amemmove(a + 1, a, N);
    assert(csync(a, 2 * N) == 0 && holds(a + 1, 0, N, 1));
    amemcpy(a, a, 0);
    amemcpy(NULL, NULL, 0);
    amemcpy(end, NULL, 0);
    amemmove(NULL, end, 0);
    assert(_amemcpy(NULL, a, 0, -1, NULL, NULL, &queued) == 0);
    assert(csync(a, 0) == 0 && csync(NULL, 0) == 0 && csync(NULL, SIZE_MAX) == 0);
    assert(csync(end, SIZE_MAX) == 0 && csync_write(NULL, SIZE_MAX) == 0 && csync_all() == 0);
    amemcpy(b, a + 2 * N, N);
    assert(csync(b, N) == 0 && memcmp(b, a + 2 * N, N) == 0);
    free(a);
    free(b);
    return 0;
}
