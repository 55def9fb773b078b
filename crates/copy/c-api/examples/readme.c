/* cc readme.c $(pkg-config --cflags --libs unlade-copier) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unlade/copier.h>

enum { MESSAGE = 1 << 20, PIECE = 64 << 10 };

int main(void)
{
    unsigned char *received = malloc(MESSAGE), *kept = malloc(MESSAGE);
    unsigned long sum = 0;

    if (!received || !kept)
        return 1;
    memset(received, 7, MESSAGE);
    amemcpy(kept, received, MESSAGE); /* as memcpy, but the program continues */

    for (size_t at = 0; at < MESSAGE; at += PIECE) {
        if (csync(kept + at, PIECE) != 0) { /* before these bytes are used */
            perror("csync");
            return 1;
        }
        for (size_t i = 0; i < PIECE; i++)
            sum += kept[at + i];
    }
    csync_write(received, MESSAGE); /* before the source is changed or freed */
    free(received);
    free(kept);
    printf("%lu\n", sum);
    return sum == 7ul * MESSAGE ? 0 : 1;
}
