/* The handler frees the source. */
#include "../corpus.h"

static int released;

static void release(void *memory)
{
    free(memory);
    released++;
}

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct copier_func func = {release, src};
    assert(_amemcpy(dst, src, N, -1, &func, NULL, NULL) == 0);
    assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    while (!released)
        post_handlers();
    free(dst);
    return 0;
}
