/* A lazy copy is read without a sync. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_task_opts opts = {.size = sizeof(opts), .flags = COPIER_LAZY, .lazy_us = 10};
    _amemcpy(dst, src, N, -1, NULL, NULL, &opts); /* submitted here */
    usleep(1000);
    return dst[0] == 0;
}
