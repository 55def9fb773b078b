/* The source is freed before it is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    free(src);
    return csync_all();
}
