/* The copy is in another queue than the one that is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    int fd = copier_create_queue(64);
    assert(fd >= 0);
    _amemcpy(dst, src, N, fd, NULL, NULL, NULL); /* submitted here */
    csync(dst, N);
    return dst[8] == 0;
}
