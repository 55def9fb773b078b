/* The destination is moved by realloc. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N); /* submitted here */
    dst = realloc(dst, 4 * N);
    csync_all();
    return dst == NULL;
}
