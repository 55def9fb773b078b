/* The wrong buffer is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    csync(src, N);
    return dst[1] == 0;
}
