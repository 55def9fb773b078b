/*
 * Measures one function compiled with the pass beside the same one compiled without it, in turns.
 * The function copies, works without memory, and uses the copy. `measure` builds and runs this.
 */
#include <stddef.h>
#include <string.h>

#ifdef KERNEL

unsigned long KERNEL(unsigned char *restrict dst, const unsigned char *restrict src, size_t n,
                     unsigned long work)
{
    memcpy(dst, src, n);
    unsigned long x = n;
    for (unsigned long i = 0; i < work; i++)
        x = x * 6364136223846793005u + (i ^ x >> 29);
    for (size_t i = 0; i < n; i += 64)
        x += dst[i];
    return x;
}

#else

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9, LEARN = 3, COLD_BYTES = 256 << 20 };

typedef unsigned long kernel(unsigned char *, const unsigned char *, size_t, unsigned long);
kernel with_pass, without_pass;

static unsigned long sum;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* Time of a call in ns, over `count` buffers of `area`. */
static double timed(kernel *f, unsigned char *area, size_t n, size_t count, unsigned long work)
{
    size_t calls = count < 64 ? 64 : count;
    double begin = now();
    for (size_t i = 0; i < calls; i++) {
        unsigned char *at = area + i % count * 2 * n;
        sum += f(at, at + n, n, work);
    }
    return (now() - begin) / calls;
}

static void compare(unsigned char *area, size_t n, int is_cold, int window)
{
    size_t count = is_cold ? COLD_BYTES / (2 * n) : 1;
    if (count > 1024)
        count = 1024;
    double copy = timed(without_pass, area, n, count, 0);
    double step = (timed(without_pass, area, n, count, 100000) - copy) / 100000;
    unsigned long work = window * copy / step;
    double with[ROUNDS], without[ROUNDS];
    for (int i = 0; i < LEARN; i++)
        timed(with_pass, area, n, count, work);
    for (int i = 0; i < ROUNDS; i++) {
        without[i] = timed(without_pass, area, n, count, work);
        with[i] = timed(with_pass, area, n, count, work);
    }
    double a = median(without, ROUNDS), b = median(with, ROUNDS);
    printf("%9zu bytes %s window %d: memcpy %10.0f ns, pass %10.0f ns, %.2f\n", n,
           is_cold ? "cold" : "warm", window, a, b, b / a);
}

int main(void)
{
    unsigned char *area = malloc(COLD_BYTES);
    if (!area)
        return 1;
    memset(area, 1, COLD_BYTES);
    for (size_t n = 4096; n <= 4 << 20; n *= 4)
        for (int is_cold = 0; is_cold < 2; is_cold++)
            for (int window = 0; window <= 4; window += 4)
                compare(area, n, is_cold, window);
    return sum == 1;
}

#endif
