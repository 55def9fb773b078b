/*
 * A receiver: messages come through a socket into one receive buffer. Each message is copied out of
 * it with a descriptor, its header is used first and its body later, while the next message is
 * received. A handler counts the copies that no longer read the receive buffer.
 *
 *   cc receive.c $(pkg-config --cflags --libs unlade-copier) -pthread && ./a.out
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

struct header {
    uint32_t number;
    uint32_t body_bytes;
    uint64_t sum;
};

enum { MESSAGE = sizeof(struct header) + BODY };

/* A message that was copied, and whose body is processed later. */
struct message {
    unsigned char *bytes;
    struct copier_descr descr;
    uint64_t sum;
};

static unsigned over;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void count(void *argument)
{
    ++*(unsigned *)argument;
}

static uint64_t sum_of(const unsigned char *bytes, size_t n)
{
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < n; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

static void *send_messages(void *argument)
{
    int socket = *(int *)argument;
    unsigned char *message = malloc(MESSAGE);

    if (!message)
        fail("malloc");
    for (uint32_t number = 0; number < MESSAGES; number++) {
        unsigned char *body = message + sizeof(struct header);
        for (size_t i = 0; i < BODY; i++)
            body[i] = (unsigned char)(i * (number + 3) + (i >> 9));
        struct header header = {number, BODY, sum_of(body, BODY)};
        memcpy(message, &header, sizeof header);
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

static void receive_into(int socket, unsigned char *buffer)
{
    /* The buffer is overwritten now: the copies out of it must be over. */
    if (csync_write(buffer, MESSAGE) != 0)
        fail("csync_write");
    for (size_t at = 0; at < MESSAGE;) {
        ssize_t got = recv(socket, buffer + at, MESSAGE - at, 0);
        if (got <= 0)
            fail("recv");
        at += (size_t)got;
    }
}

/* Copies the message, and looks at its header only. */
static void take(struct message *message, const unsigned char *buffer, uint32_t number)
{
    struct copier_func handler = {count, &over};
    struct header header;

    if (_amemcpy(message->bytes, buffer, MESSAGE, -1, &handler, &message->descr, NULL) != 0)
        fail("_amemcpy");
    if (_csync(0, sizeof header, -1, &message->descr, NULL) != 0)
        fail("_csync");
    memcpy(&header, message->bytes, sizeof header);
    if (header.number != number || header.body_bytes != BODY) {
        fprintf(stderr, "receive: wrong header of message %u\n", number);
        exit(1);
    }
    message->sum = header.sum;
}

/* Uses the body, in pieces, each as soon as it is copied. Returns 1 if it is right. */
static int process(struct message *message)
{
    if (_csync(sizeof(struct header), BODY, -1, &message->descr, NULL) != 0)
        fail("_csync");
    return sum_of(message->bytes + sizeof(struct header), BODY) == message->sum;
}

int main(void)
{
    int sockets[2];
    pthread_t sender;
    struct message messages[HALVES] = {{0}};
    unsigned char *buffers[HALVES];
    unsigned right = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        fail("socketpair");
    for (int i = 0; i < HALVES; i++) {
        buffers[i] = malloc(MESSAGE);
        messages[i].bytes = malloc(MESSAGE);
        if (!buffers[i] || !messages[i].bytes)
            fail("malloc");
    }
    if (pthread_create(&sender, NULL, send_messages, &sockets[0]) != 0)
        fail("pthread_create");
    for (uint32_t number = 0; number < MESSAGES; number++) {
        int half = number % HALVES;
        receive_into(sockets[1], buffers[half]);
        if (number >= HALVES)
            right += (unsigned)process(&messages[half]);
        take(&messages[half], buffers[half], number);
        post_handlers();
    }
    for (int i = 0; i < HALVES; i++)
        right += (unsigned)process(&messages[i]);
    pthread_join(sender, NULL);
    if (csync_all() != 0) /* runs the handlers that are left */
        fail("csync_all");
    printf("receive: %u of %u messages are right, %u copies are over\n", right,
           (unsigned)MESSAGES, over);
    for (int i = 0; i < HALVES; i++) {
        free(buffers[i]);
        free(messages[i].bytes);
    }
    close(sockets[0]);
    close(sockets[1]);
    return right != MESSAGES || over != MESSAGES;
}
