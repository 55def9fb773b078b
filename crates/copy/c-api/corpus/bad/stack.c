/* A local array is written before it is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(4096, 1), dst[4096];
    amemcpy(dst, src, sizeof(dst)); /* submitted here */
    dst[12] = 1;
    csync_all();
    return dst[12] == 0;
}
