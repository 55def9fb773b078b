/* More is read than was synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    csync(dst, 4096);
    return dst[4095] + dst[4096] == 1;
}
