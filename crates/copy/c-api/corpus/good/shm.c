/* A child syncs what the parent copies into shared memory. */
#include "../corpus.h"

#include <sys/wait.h>

int main(void)
{
    int protection = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_ANONYMOUS;
    unsigned char *shm = mmap(NULL, 4 * N, protection, kind, -1, 0);
    size_t size = copier_shm_descr_size(4 * N, 4096);
    void *descr = mmap(NULL, size, protection, kind, -1, 0);
    unsigned char *src = filled(4 * N, 1), word = 0;
    int go[2], status;
    assert(size && pipe(go) == 0);
    assert(copier_shm_descr_init(descr, 4 * N, 4096) == 0);
    assert(shm_descr_bind(shm, descr, 2048) == -1 && errno == EINVAL);
    assert(shm_descr_bind(shm, descr, 4096) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int round = 1; round <= 20; round++) {
            assert(read(go[0], &word, 1) == 1 && word == round);
            if (csync(shm + 5, 4 * N - 10) != 0 || !holds(shm, 5, 4 * N - 10, 1))
                _exit(1);
        }
        _exit(0);
    }
    for (unsigned char round = 1; round <= 20; round++) {
        amemcpy(shm, src, 2 * N);
        amemcpy(shm + 2 * N, src + 2 * N, 2 * N);
        assert(write(go[1], &round, 1) == 1);
    }
    assert(waitpid(child, &status, 0) == child && status == 0);
    assert(csync_all() == 0 && shm_descr_unbind(shm) == 0);
    assert(shm_descr_unbind(shm) == -1 && errno == EINVAL);
    csync_write(src, 4 * N);
    free(src);
    return 0;
}
