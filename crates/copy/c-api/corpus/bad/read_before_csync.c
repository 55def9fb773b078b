/* The destination is read before it is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    return dst[100] == 0;
}
