/* Common functions of the corpus programs. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unlade/copier.h>

enum { N = 64 << 10 };

/* Allocates memory whose bytes depend on their index and on the seed. */
static inline unsigned char *filled(size_t n, unsigned seed)
{
    unsigned char *bytes = malloc(n);
    assert(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(i * 31 + (i >> 8) + seed);
    return bytes;
}

static inline int holds(const unsigned char *bytes, size_t from, size_t n, unsigned seed)
{
    for (size_t i = from; i < from + n; i++)
        if (bytes[i] != (unsigned char)(i * 31 + (i >> 8) + seed))
            return 0;
    return 1;
}
