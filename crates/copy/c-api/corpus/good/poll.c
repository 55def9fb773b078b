/* An event loop: the queue's descriptor becomes readable when handlers are due, repeatedly. */
#include "../corpus.h"
#include <poll.h>

static int counted;

static void count(void *unused)
{
    (void)unused;
    counted++;
}

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_task_opts opts = {.size = sizeof(opts), .flags = COPIER_QUEUED};
    struct copier_func func = {count, NULL};
    int fd = copier_create_queue(64);
    assert(fd >= 0);
    for (int round = 1; round <= 20; round++) {
        struct copier_descr descr = {0};
        assert(_amemcpy(dst, src, N, fd, &func, &descr, &opts) == 0);
        assert(copier_awaken(fd) == 0);
        /* A synchronous copy has run its handler. */
        while (counted < round) {
            struct pollfd polled = {.fd = fd, .events = POLLIN};
            assert(poll(&polled, 1, 30000) == 1);
            assert(_post_handlers(fd) >= 0);
        }
        assert(_csync(0, N, fd, &descr, NULL) == 0 && holds(dst, 0, N, 1));
    }
    assert(counted == 20 && copier_close_queue(fd) == 0);
    free(src);
    free(dst);
    return 0;
}
