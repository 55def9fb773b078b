/* csync() allows to read the source, not to free it. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    csync(src, N);
    if (src[0] != 1)
        return 3;
    free(src);
    return csync_all();
}
