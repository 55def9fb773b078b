/* Each piece is synced when it is used. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    amemcpy(dst, src, N);
    for (size_t at = 0; at < N; at += 1000) {
        size_t n = N - at < 1000 ? N - at : 1000;
        assert(csync(dst + at, n) == 0 && holds(dst, at, n, 1));
    }
    csync_all();
    free(src);
    free(dst);
    return 0;
}
