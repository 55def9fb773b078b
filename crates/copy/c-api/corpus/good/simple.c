/* Copy, sync, read, free. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    assert(amemcpy(dst, src, N) == dst);
    assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    dst[0] = 9;
    assert(csync_write(src, N) == 0);
    src[0] = 3;
    free(src);
    free(dst);
    return 0;
}
