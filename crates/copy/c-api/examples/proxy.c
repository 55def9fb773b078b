/*
 * A proxy: messages come through one socket and leave through another one, with a head of their
 * own. Each body is copied behind its new head, and sent from there. Nothing looks at it in between:
 * the copy is never made, and the bytes are sent from where they were received.
 *
 *   cc proxy.c $(pkg-config --cflags --libs unlade-copier) -pthread && ./a.out
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unlade/copier.h>

enum { MESSAGES = 64, BODY = 200 << 10, HALVES = 2 };

struct head {
    uint32_t number;
    uint32_t body_bytes;
    char from[24];
};

enum { MESSAGE = sizeof(struct head) + BODY };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned char byte_of(uint32_t number, size_t i)
{
    return (unsigned char)(i * (number + 3) + (i >> 9));
}

static void *client(void *argument)
{
    int socket = *(int *)argument;
    unsigned char *message = malloc(MESSAGE);

    if (!message)
        fail("malloc");
    for (uint32_t number = 0; number < MESSAGES; number++) {
        struct head head = {number, BODY, "client"};
        memcpy(message, &head, sizeof head);
        for (size_t i = 0; i < BODY; i++)
            message[sizeof head + i] = byte_of(number, i);
        for (size_t at = 0; at < MESSAGE;) {
            ssize_t sent = send(socket, message + at, MESSAGE - at, MSG_NOSIGNAL);
            if (sent <= 0)
                fail("send");
            at += (size_t)sent;
        }
    }
    free(message);
    return NULL;
}

/* Counts the messages that are right. */
static void *server(void *argument)
{
    int socket = *(int *)argument;
    unsigned char *message = malloc(MESSAGE);
    uintptr_t right = 0;

    if (!message)
        fail("malloc");
    for (uint32_t number = 0; number < MESSAGES; number++) {
        struct head head;
        if (recv(socket, message, MESSAGE, MSG_WAITALL) != MESSAGE)
            fail("recv");
        memcpy(&head, message, sizeof head);
        size_t same = 0;
        while (same < BODY && message[sizeof head + same] == byte_of(number, same))
            same++;
        right += same == BODY && head.number == number && strcmp(head.from, "proxy") == 0;
    }
    free(message);
    return (void *)right;
}

/* Receives a message. Returns when its head is there; the body may still come. */
static struct head receive(int socket, unsigned char *input)
{
    struct head head;

    for (size_t at = 0; at < MESSAGE;) {
        ssize_t got = arecv(socket, input + at, MESSAGE - at, 0);
        if (got <= 0)
            fail("arecv");
        at += (size_t)got;
    }
    if (csync(input, sizeof head) != 0)
        fail("csync");
    memcpy(&head, input, sizeof head);
    return head;
}

int main(void)
{
    int in[2], out[2];
    unsigned char *input[HALVES], *output[HALVES];
    struct copier_descr sent[HALVES] = {{0}};
    pthread_t threads[2];
    void *right;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, in) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, out) != 0)
        fail("socketpair");
    for (int i = 0; i < HALVES; i++) {
        input[i] = malloc(MESSAGE);
        output[i] = malloc(MESSAGE);
        if (!input[i] || !output[i])
            fail("malloc");
    }
    if (pthread_create(&threads[0], NULL, client, &in[0]) != 0 ||
        pthread_create(&threads[1], NULL, server, &out[1]) != 0)
        fail("pthread_create");
    for (int i = 0; i < MESSAGES; i++) {
        int half = i % HALVES;
        /* Both buffers are used again now: the last send from them must not need them. */
        if (_csync(0, MESSAGE, -1, &sent[half], NULL) != 0)
            fail("asend");
        if (csync_write(input[half], MESSAGE) != 0 || csync_write(output[half], MESSAGE) != 0)
            fail("csync_write");
        struct head head = receive(in[1], input[half]);
        strcpy(head.from, "proxy");
        memcpy(output[half], &head, sizeof head);
        amemcpy_lazily(output[half] + sizeof head, input[half] + sizeof head, BODY);
        if (_asend(out[0], output[half], MESSAGE, 0, -1, NULL, &sent[half], NULL) != MESSAGE)
            fail("asend");
        /* The copy is left out, also if the input changes. */
        if (cdiscard(output[half] + sizeof head, BODY) != 0)
            fail("cdiscard");
    }
    if (csync_all() != 0)
        fail("csync_all");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], &right);
    struct copier_stats stats = {.size = sizeof stats};
    if (copier_get_stats(-1, &stats) != 0)
        fail("copier_get_stats");
    int is_past = stats.forwarded_bytes == (uint64_t)MESSAGES * BODY;
    printf("proxy: %u of %u messages are right, %s\n", (unsigned)(uintptr_t)right,
           (unsigned)MESSAGES, is_past ? "and no body was copied" : "and bodies were copied");
    for (int i = 0; i < HALVES; i++) {
        free(input[i]);
        free(output[i]);
        close(in[i]);
        close(out[i]);
    }
    return (uintptr_t)right != MESSAGES || (stats.served && !is_past);
}
