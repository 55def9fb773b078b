/* Another thread reads the destination. */
#include "../corpus.h"

static void *reader(void *bytes)
{
    return ((unsigned char *)bytes)[7] ? bytes : NULL;
}

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    pthread_t thread;
    amemcpy(dst, src, N); /* submitted here */
    pthread_create(&thread, NULL, reader, dst);
    pthread_join(thread, NULL);
    return 0;
}
