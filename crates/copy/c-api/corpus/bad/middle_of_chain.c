/* The middle of a chain is read; only its end was synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *a = filled(N, 1), *b = filled(N, 2), *c = filled(N, 3);
    amemcpy(b, a, N); /* submitted here */
    amemcpy(c, b, N);
    csync(c, N);
    return b[50] == 0;
}
