/* A library function reads the destination. */
#include "../corpus.h"

int main(void)
{
    char *src = strdup("a text that is long enough to matter"), *dst = malloc(64);
    amemcpy(dst, src, strlen(src) + 1); /* submitted here */
    return (int)strlen(dst);
}
