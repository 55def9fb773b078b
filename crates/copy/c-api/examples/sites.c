/* cc sites.c $(pkg-config --cflags --libs unlade-copier)
 *
 * Three call sites: copies with time before their use, which are queued; copies that are used at
 * once; and short ones. `unlade copyd why` explains them while the program waits for the end of its
 * input. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unlade/copier.h>

enum { LONG = 1 << 20, MEDIUM = 8 << 10, SHORT = 1000, COPIES_MAX = 20000, IN_A_ROW = 64 };

static unsigned long queued(void)
{
    struct copier_stats stats = {.size = sizeof(stats)};

    return copier_get_stats(-1, &stats) == 0 ? stats.queued : 0;
}

int main(void)
{
    const struct timespec other_work = {.tv_nsec = 5 * 1000 * 1000};
    struct copier_stats stats = {.size = sizeof(stats)};
    unsigned char *from = malloc(LONG), *to = malloc(LONG);
    int failed = 0, in_a_row = 0;

    if (!from || !to)
        return 1;
    memset(from, 7, LONG);
    memset(to, 0, LONG);
    for (int i = 0; i < 300; i++) {
        amemcpy(to, from, SHORT);
        failed |= csync(to, SHORT);
        amemcpy(to, from, MEDIUM); /* used at once: nothing is gained */
        failed |= csync(to, MEDIUM);
    }
    copier_get_stats(-1, &stats);
    /* The library learns at the first copies; other programs may disturb it. */
    for (int i = 0; i < (stats.served ? COPIES_MAX : 1) && in_a_row < IN_A_ROW; i++) {
        unsigned long before = queued();

        amemcpy(to, from, LONG);
        nanosleep(&other_work, NULL); /* the window */
        failed |= csync(to, LONG);
        in_a_row = queued() > before ? in_a_row + 1 : 0;
    }
    failed |= memcmp(to, from, LONG);
    puts(failed ? "failed" : "ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    csync_write(from, LONG);
    free(from);
    free(to);
    return failed ? 1 : 0;
}
