/* Random copies and moves, also of overlapping ranges, from threads, a signal handler and children;
 * and a thread that is cancelled. Each is checked against a copy byte by byte. Prints a digest of all bytes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 6 << 20, ROUNDS = 60, THREADS = 3 };
static uint64_t seed;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t digest(const unsigned char *bytes, size_t len) {
    uint64_t sum = 14695981039346656037u;
    for (size_t at = 0; at < len; at++) sum = (sum ^ bytes[at]) * 1099511628211u;
    return sum;
}

/* A copy that the compiler does not turn into a call of memmove. */
static void slow_move(volatile unsigned char *to, const volatile unsigned char *from, size_t len) {
    if (to < from)
        for (size_t at = 0; at < len; at++) to[at] = from[at];
    else
        while (len--) to[len] = from[len];
}

static size_t length(uint64_t *state) {
    size_t limit = (size_t)1 << (next(state) % 22);
    return next(state) % limit + 1;
}

static void *copies(void *number) {
    uint64_t state = seed * 2654435761u + (uintptr_t)number + 1;
    unsigned char *fast = malloc(ROOM), *slow = malloc(ROOM);
    for (size_t at = 0; at < ROOM; at++) fast[at] = slow[at] = (unsigned char)next(&state);
    for (int round = 0; round < ROUNDS; round++) {
        size_t len = round % 4 == 0 ? (512 << 10) + next(&state) % (1 << 20) : length(&state);
        size_t from = next(&state) % (ROOM - len);
        size_t near = next(&state) % 3 ? next(&state) % (ROOM - len) : from + next(&state) % 200;
        size_t to = near > ROOM - len ? ROOM - len : near;
        int apart = from + len <= to || to + len <= from;
        void *result = apart && round % 2 ? memcpy(fast + to, fast + from, len)
                                          : memmove(fast + to, fast + from, len);
        if (result != fast + to) abort();
        slow_move(slow + to, slow + from, len);
    }
    if (memcmp(fast, slow, ROOM) != 0) abort();
    uint64_t *sum = malloc(sizeof *sum);
    *sum = digest(fast, ROOM);
    free(fast);
    free(slow);
    return sum;
}

static unsigned char handled[2][1 << 20];
static void handler(int signal) {
    (void)signal;
    memcpy(handled[1], handled[0], sizeof handled[0]);
}

/* The compiler knows this size, so a fortified build calls __memcpy_chk and __memmove_chk. */
static char known[3 << 20];
static uint64_t fortified(size_t len) {
    char *from = malloc(len);
    memset(from, (int)(seed & 127), len);
    memcpy(known, from, len);
    memmove(known + 5, known, len);
    free(from);
    return digest((unsigned char *)known, sizeof known);
}

/* A thread that is cancelled while it reads leaves through the library. */
static int cleaned;
static void clean(void *unused) {
    (void)unused;
    cleaned = 1;
}

static void *blocked(void *pipe) {
    pthread_cleanup_push(clean, 0);
    char *room = malloc(1 << 20);
    if (read(*(int *)pipe, room, 1 << 20) >= 0) abort();
    pthread_cleanup_pop(0);
    return 0;
}

static void cancel(void) {
    int pipes[2];
    pthread_t thread;
    void *result;
    if (pipe(pipes) != 0) abort();
    pthread_create(&thread, 0, blocked, pipes);
    usleep(100000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED || !cleaned) abort();
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], 0, 10) : 1;
    memset(handled[0], 7, sizeof handled[0]);
    signal(SIGALRM, handler);
    pthread_t threads[THREADS];
    for (uintptr_t at = 0; at < THREADS; at++) pthread_create(&threads[at], 0, copies, (void *)at);
    for (int at = 0; at < 20; at++) {
        raise(SIGALRM);
        pid_t child = at % 2 ? fork() : vfork();
        if (child == 0) {
            if (at % 2) memcpy(handled[1], handled[0], sizeof handled[0]);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) abort();
    }
    for (int at = 0; at < THREADS; at++) {
        uint64_t *sum;
        pthread_join(threads[at], (void **)&sum);
        printf("%016llx\n", (unsigned long long)*sum);
    }
    printf("%016llx\n", (unsigned long long)digest(handled[1], sizeof handled[1]));
    cancel();
    printf("%016llx\n", (unsigned long long)fortified((size_t)2 << 20));
    return 0;
}
