/* A source is synced and read, and freed after csync_write(). */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N);
    assert(csync(src, N) == 0 && holds(src, 0, N, 1));
    assert(csync_write(src, N) == 0);
    free(src);
    assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    free(dst);
    return 0;
}
