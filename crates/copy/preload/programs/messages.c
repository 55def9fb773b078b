/* A server that reads messages as many do: header and body into one buffer, the body moved down over
 * the header, the rest read to its place. A thread sends. Prints a digest of all messages.
 *
 * messages SEED MODE: level, edge, hang-up, low-water, or packets (the descriptor becomes another socket). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER = 32, MESSAGES = 300, ROOM = 2 << 20 };
static uint64_t seed;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t length(uint64_t *state) {
    return next(state) % 8 ? (200 << 10) + next(state) % (300 << 10) : next(state) % 40000 + 1;
}

static void *sender(void *socket) {
    uint64_t state = seed;
    char *message = malloc(HEADER + ROOM);
    for (int at = 0; at < MESSAGES; at++) {
        size_t len = length(&state);
        memset(message, 0, HEADER);
        sprintf(message, "%zu", len);
        for (size_t byte = 0; byte < len; byte += 8) {
            uint64_t word = next(&state);
            memcpy(message + HEADER + byte, &word, 8);
        }
        for (size_t sent = 0; sent < HEADER + len;) {
            ssize_t n = write((int)(intptr_t)socket, message + sent, HEADER + len - sent);
            if (n <= 0) abort();
            sent += (size_t)n;
        }
    }
    free(message);
    return 0;
}

static uint64_t counter(const char *name) {
    uint64_t (*get)(const char *) = (uint64_t(*)(const char *))dlsym(RTLD_DEFAULT, "unlade_preload_counter");
    return get ? get(name) : 0;
}

static int epoll, is_edge;
static ssize_t some(int fd, char *at, size_t room) {
    for (;;) {
        /* An edge is announced once: this program waits again only after an incomplete read. */
        static int was_full;
        struct epoll_event event;
        if (!(is_edge && was_full) && epoll_wait(epoll, &event, 1, 5000) != 1) {
            fprintf(stderr, "no event\n");
            exit(1);
        }
        ssize_t n = seed % 2 ? read(fd, at, room) : recv(fd, at, room, 0);
        if (n < 0 && errno == EAGAIN) { was_full = 0; continue; }
        if (n <= 0) abort();
        was_full = (size_t)n == room;
        return n;
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    seed = strtoull(argv[1], 0, 10);
    is_edge = strcmp(argv[2], "edge") == 0;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) abort();
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    if (strcmp(argv[2], "low-water") == 0) {
        int mark = 1;
        setsockopt(pair[0], SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark);
    }
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | (is_edge ? EPOLLET : 0) |
                                          (strcmp(argv[2], "hang-up") == 0 ? EPOLLRDHUP : 0)};
    epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
    pthread_t thread;
    pthread_create(&thread, 0, sender, (void *)(intptr_t)pair[1]);
    char *buffer = malloc(HEADER + ROOM);
    uint64_t sum = 14695981039346656037u;
    size_t have = 0;
    for (int at = 0; at < MESSAGES; at++) {
        while (have < HEADER) have += (size_t)some(pair[0], buffer + have, ROOM - have);
        size_t len = strtoull(buffer, 0, 10);
        memmove(buffer, buffer + HEADER, have - HEADER);
        have -= HEADER;
        while (have < len) have += (size_t)some(pair[0], buffer + have, len - have);
        for (size_t byte = 0; byte < len; byte++) sum = (sum ^ (unsigned char)buffer[byte]) * 1099511628211u;
        have -= len;
        memmove(buffer, buffer + len, have);
    }
    pthread_join(thread, 0);
    if (strcmp(argv[2], "packets") == 0) {
        /* The same number, in the same epoll instance, is now a socket with packets. */
        int packets[2], size = 1 << 20;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets) != 0) abort();
        setsockopt(packets[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        if (dup2(packets[0], pair[0]) != pair[0]) abort();
        memset(buffer, 9, 100000);
        if (write(packets[1], buffer, 100000) != 100000) abort();
        if (read(pair[0], buffer, ROOM) != 100000) { fprintf(stderr, "the packet was cut\n"); return 1; }
    }
    printf("%016llx\n", (unsigned long long)sum);
    fprintf(stderr, "shortened %llu not_stream %llu\n", (unsigned long long)counter("reads_shortened"),
            (unsigned long long)counter("not_stream"));
    return 0;
}
