/*
 * A library in place of libunlade_copier that makes each copy as late as it may: in the sync. Until
 * then the destination has other bytes. A missing sync changes what the program computes, always.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct copier_site;

static struct pending {
    char *dst;
    const char *src;
    size_t n;
} pending[4096];
static unsigned count;
static unsigned long submitted;

static int overlaps(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a < b + b_len && b < a + a_len;
}

/* Makes the pending copies into the range, and with `readers` also those out of it, in order. */
static int sync_range(const char *address, size_t n, int readers)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        struct pending *p = &pending[i];
        if (overlaps(p->dst, p->n, address, n) || (readers && overlaps(p->src, p->n, address, n)))
            memcpy(p->dst, p->src, p->n);
        else
            pending[left++] = *p;
    }
    count = left;
    return 0;
}

void *copier_amemcpy_at(void *dst, const void *src, size_t n, const struct copier_site *site)
{
    (void)site;
    if (count == sizeof pending / sizeof *pending || overlaps(dst, n, src, n)) {
        fprintf(stderr, "too many copies, or an overlap\n");
        abort();
    }
    pending[count++] = (struct pending){dst, src, n};
    submitted++;
    memset(dst, 0xa5, n);
    return dst;
}

int csync(const void *address, size_t n)
{
    return sync_range(address, n, 0);
}

int csync_write(const void *address, size_t n)
{
    return sync_range(address, n, 1);
}

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "submitted %lu\n", submitted);
    if (count != 0) {
        fprintf(stderr, "%u copies were never synced\n", count);
        _Exit(99);
    }
}
