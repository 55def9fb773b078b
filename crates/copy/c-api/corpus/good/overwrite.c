/* Later copies win; small and odd lengths leave their neighbours alone. */
#include "../corpus.h"

int main(void)
{
    unsigned char *a = filled(N, 1), *b = filled(N, 2), *dst = malloc(N);
    memset(dst, 77, N);
    amemcpy(dst + 3, a + 3, 10001);
    amemcpy(dst + 100, b + 100, 333);
    assert(csync(dst, 12000) == 0);
    assert(dst[2] == 77 && dst[10004] == 77);
    assert(holds(dst, 3, 97, 1) && holds(dst, 100, 333, 2) && holds(dst, 433, 9571, 1));
    amemcpy(dst, a, 0);
    csync_all();
    free(a);
    free(b);
    free(dst);
    return 0;
}
