/* The descriptor is synced at another offset. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_descr descr = {0};
    _amemcpy(dst, src, N, -1, NULL, &descr, NULL); /* submitted here */
    _csync(N / 2, N / 2, -1, &descr, NULL);
    return dst[8] == 0;
}
