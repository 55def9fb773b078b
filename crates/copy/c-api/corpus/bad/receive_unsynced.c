/* Received bytes are used without a sync. */
#include "../corpus.h"
#include <sys/socket.h>

int main(void)
{
    int pair[2];
    unsigned char *from = filled(N, 1), *to = filled(N, 2);

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    assert(send(pair[0], from, N, 0) == N);
    ssize_t got = arecv(pair[1], to, N, 0); /* submitted here */
    assert(got > 0 && csync(to, 10) == 0 && to[9] == from[9]);
    return to[10] != from[10];
}
