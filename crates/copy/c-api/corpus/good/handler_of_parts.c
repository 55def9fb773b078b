/* A long copy has many parts and one handler. */
#include "../corpus.h"

static int released;

static void release(void *memory)
{
    free(memory);
    released++;
}

int main(void)
{
    enum { LONG = 9 << 20 };
    unsigned char *src = filled(LONG, 1), *dst = malloc(LONG);
    struct copier_func func = {release, src};
    struct copier_descr descr = {0};
    assert(_amemcpy(dst, src, LONG, -1, &func, &descr, NULL) == 0);
    assert(_csync(8 << 20, 100, -1, &descr, NULL) == 0 && holds(dst, 8 << 20, 100, 1));
    assert(_csync(0, LONG, -1, &descr, NULL) == 0 && holds(dst, 0, LONG, 1));
    assert(csync_all() == 0);
    assert(released == 1);
    free(dst);
    return 0;
}
