/* A lazy copy is aborted, and its memory is used for something else. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_task_opts opts = {.size = sizeof(opts), .flags = COPIER_LAZY, .lazy_us = 5000000};
    struct copier_descr descr = {0};
    assert(_amemcpy(dst, src, N, -1, NULL, &descr, &opts) == 0);
    assert(copier_abort(&descr, -1) == 0);
    memset(dst, 5, N);
    free(src);
    src = filled(N, 6);
    assert(_amemcpy(dst, src, N, -1, NULL, &descr, &opts) == 0);
    assert(_csync(0, N, -1, &descr, NULL) == 0 && holds(dst, 0, N, 6));
    csync_all();
    free(src);
    free(dst);
    return 0;
}
