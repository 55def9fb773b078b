/* Bytes are changed that a send may still read. */
#include "../corpus.h"
#include <sys/socket.h>

int main(void)
{
    int pair[2];
    unsigned char *from = filled(N, 1);

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    assert(asend(pair[0], from, N, 0) == N); /* submitted here */
    from[N - 1] = 0;
    return 0;
}
