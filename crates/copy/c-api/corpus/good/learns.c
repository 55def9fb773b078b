/* Copies that are used immediately: the library measures the waits of csync(). */
#include "../corpus.h"

enum { COPIES = 4000, FIRST_AT_ONCE = 6 };

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_sync_opts try = {.size = sizeof(try), .flags = COPIER_SYNC_TRY};
    struct copier_task_opts opts = {.size = sizeof(opts), .flags = COPIER_QUEUED};
    struct copier_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
    struct copier_descr descr = {0};
    /* If there is a service, it is awake after its first copy. */
    assert(_amemcpy(dst, src, N, -1, NULL, &descr, &opts) == 0);
    assert(copier_awaken(-1) == 0);
    while (_csync(0, N, -1, &descr, &try) != 0)
        assert(errno == EAGAIN);
    assert(copier_get_stats(-1, &before) == 0);
    for (int i = 0; i < COPIES; i++) {
        amemcpy(dst, src, N);
        if (i % 2)
            assert(csync(dst, N / 2) == 0);
        assert(csync(dst, N) == 0);
    }
    assert(copier_get_stats(-1, &after) == 0 && holds(dst, 0, N, 1));
    /* Without measurements of queued copies the library would keep queueing. */
    assert(!after.served || after.at_once - before.at_once > FIRST_AT_ONCE);
    free(src);
    free(dst);
    return 0;
}
