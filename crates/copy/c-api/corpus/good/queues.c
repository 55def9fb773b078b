/* Queues of the program, closed in both ways; descriptors; handlers of a queue. */
#include "../corpus.h"

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
    struct copier_descr descr = {0};
    struct copier_stats stats = {.size = sizeof(stats)};
    int fd = copier_create_queue(64), other = copier_create_mapped_queue(64);
    assert(fd >= 0 && other >= 0 && fd != other);
    assert(_csync(0, 10, fd, &descr, NULL) == 0);
    assert(_amemcpy(dst, src, N, fd, &func, &descr, &opts) == 0);
    assert(_csync(0, N, other, &descr, NULL) == -1 && errno == EINVAL);
    assert(_csync(N + 1, 1, fd, &descr, NULL) == -1 && errno == EINVAL);
    assert(_csync(10, N, fd, &descr, NULL) == 0 && holds(dst, 10, N - 10, 1));
    assert(_csync_all(fd) == 0 && counted == 1 && holds(dst, 0, N, 1));
    assert(copier_get_stats(fd, &stats) == 0);
    assert(!stats.served || stats.queued + stats.at_once == 1);
    assert(copier_awaken(fd) == 0 && _post_handlers(fd) == 0);
    assert(copier_close_queue(fd) == 0);
    assert(copier_close_queue(fd) == -1 && errno == EBADF);
    assert(_amemcpy(dst, src, N, fd, NULL, NULL, NULL) == -1 && errno == EBADF);
    assert(_csync(0, N, -1, &descr, NULL) == 0);
    close(other);
    fd = copier_create_queue(64);
    assert(fd >= 0 && copier_close_queue(fd) == 0);
    assert(copier_create_queue(0) == -1 && errno == EINVAL);
    free(src);
    free(dst);
    return 0;
}
