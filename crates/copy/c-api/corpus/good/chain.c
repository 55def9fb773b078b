/* A chain of copies: its end is used first, then the rest. */
#include "../corpus.h"

int main(void)
{
    unsigned char *a = filled(N, 1), *b = filled(N, 2), *c = filled(N, 3);
    amemcpy(b, a, N);
    amemcpy(c, b, N);
    assert(csync(c, N) == 0 && holds(c, 0, N, 1));
    assert(csync_write(b, N) == 0 && holds(b, 0, N, 1));
    b[0] = 1;
    csync_all();
    free(a);
    free(b);
    free(c);
    return 0;
}
