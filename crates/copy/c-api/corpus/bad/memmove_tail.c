/* The tail of a move is read before it is synced. */
#include "../corpus.h"

int main(void)
{
    unsigned char *bytes = filled(2 * N, 1);
    amemmove(bytes + N / 2, bytes, N); /* submitted here */
    csync(bytes, N);
    return bytes[N + N / 4] == 0;
}
