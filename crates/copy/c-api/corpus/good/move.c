/* Moves up and down, near and far. */
#include "../corpus.h"

int main(void)
{
    static const size_t shifts[] = {1, 100, 8000, N / 2, N - 1, N, 0};
    for (int i = 0; i < 7; i++) {
        for (int up = 0; up < 2; up++) {
            unsigned char *bytes = filled(3 * N, 1), *expected = filled(3 * N, 1);
            size_t to = up ? N + shifts[i] : N - shifts[i];
            assert(amemmove(bytes + to, bytes + N, N) == bytes + to);
            memmove(expected + to, expected + N, N);
            assert(csync(bytes, 3 * N) == 0);
            assert(memcmp(bytes, expected, 3 * N) == 0);
            csync_write(bytes, 3 * N);
            free(bytes);
            free(expected);
        }
    }
    return 0;
}
