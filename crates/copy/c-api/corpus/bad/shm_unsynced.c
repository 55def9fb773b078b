/* Shared memory is read without a sync. */
#include "../corpus.h"

int main(void)
{
    unsigned char *src = filled(N, 1);
    unsigned char *shm = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t size = copier_shm_descr_size(N, 4096);
    void *descr = malloc(size);
    assert(copier_shm_descr_init(descr, N, 4096) == 0);
    assert(shm_descr_bind(shm, descr, 4096) == 0);
    amemcpy(shm, src, N); /* submitted here */
    return shm[9] == 0;
}
