/* A child has the copied bytes of its parent, and can make copies. */
#include "../corpus.h"

#include <sys/wait.h>

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_descr descr = {0};
    unsigned char *more = malloc(N);
    int status;
    assert(_amemcpy(dst, src, N, -1, NULL, &descr, NULL) == 0);
    pid_t child = fork();
    assert(child >= 0);
    assert(_csync(0, N, -1, &descr, NULL) == 0);
    assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    for (int round = 0; round < 20; round++) {
        amemcpy(more, dst, N);
        assert(csync(more, N) == 0 && holds(more, 0, N, 1));
    }
    csync_all();
    if (child == 0)
        _exit(0);
    assert(waitpid(child, &status, 0) == child && status == 0);
    free(src);
    free(dst);
    free(more);
    return 0;
}
