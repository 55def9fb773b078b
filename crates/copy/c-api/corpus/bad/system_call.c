/* A system call reads the destination. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    int pipes[2];
    assert(pipe(pipes) == 0);
    amemcpy(dst, src, N); /* submitted here */
    return write(pipes[1], dst, 100) != 100;
}
