/* Receives and sends as tasks: order, errors, descriptors, handlers, sends past lazy copies. */
#include "../corpus.h"
#include <fcntl.h>
#include <sys/socket.h>

enum { BIG = 3 << 20, HEAD = 100 };

struct stream {
    int socket;
    unsigned char *bytes;
    size_t n;
};

static void *send_plainly(void *argument)
{
    struct stream *stream = argument;

    for (size_t at = 0; at < stream->n;) {
        ssize_t sent = send(stream->socket, stream->bytes + at, stream->n - at, MSG_NOSIGNAL);
        assert(sent > 0);
        at += (size_t)sent;
    }
    return NULL;
}

static void *receive_plainly(void *argument)
{
    struct stream *stream = argument;

    for (size_t at = 0; at < stream->n;) {
        ssize_t got = recv(stream->socket, stream->bytes + at, stream->n - at, 0);
        assert(got > 0);
        at += (size_t)got;
    }
    return NULL;
}

static void count(void *argument)
{
    ++*(int *)argument;
}

/* Receives all n bytes with given options, each part synced by address. */
static void receive_all(int socket, unsigned char *to, size_t n, const struct copier_task_opts *opts)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = _arecv(socket, to + at, n - at, 0, -1, NULL, NULL, opts);
        assert(got > 0 && csync(to + at, (size_t)got) == 0);
        at += (size_t)got;
    }
}

static void receives(void)
{
    const struct copier_task_opts lazily = {.size = sizeof(lazily), .flags = COPIER_LAZY};
    const struct copier_task_opts queued = {.size = sizeof(queued), .flags = COPIER_QUEUED};
    const struct copier_task_opts *ways[] = {NULL, &queued, &lazily};
    int pair[2];

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int way = 0; way < 3; way++) {
        unsigned char *to = filled(BIG, 9);
        struct stream from = {pair[0], filled(BIG, (unsigned)way), BIG};
        pthread_t sender;

        assert(pthread_create(&sender, NULL, send_plainly, &from) == 0);
        receive_all(pair[1], to, BIG, ways[way]);
        assert(holds(to, 0, BIG, (unsigned)way));
        pthread_join(sender, NULL);
        free(from.bytes);
        assert(csync_write(to, BIG) == 0);
        free(to);
    }

    /* Flags, a handler, a descriptor, the end, errors. */
    unsigned char *to = filled(N, 9), *from = filled(N, 4);
    struct copier_descr descr = {0};
    int calls = 0;
    struct copier_func handler = {count, &calls};

    errno = 0;
    assert(arecv(pair[1], to, N, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    assert(send(pair[0], from, N / 2, 0) == N / 2);
    assert(arecv(pair[1], to, 10, MSG_PEEK) == 10 && csync(to, 10) == 0);
    ssize_t got = _arecv(pair[1], to, N, 0, -1, &handler, &descr, &queued);
    assert(got > 0 && _csync(0, (size_t)got, -1, &descr, NULL) == 0);
    receive_all(pair[1], to + got, N / 2 - (size_t)got, NULL);
    assert(holds(to, 0, N / 2, 4) && csync_all() == 0 && calls == 1);
    close(pair[0]);
    assert(arecv(pair[1], to, N, 0) == 0);
    errno = 0;
    assert(arecv(-1, to, N, 0) == -1 && errno == EBADF);
    assert(_arecv(pair[1], to, N, 0, 12345, NULL, NULL, NULL) == -1 && errno == EBADF);
    const struct copier_task_opts unknown = {.size = sizeof(unknown), .flags = 64};
    assert(_arecv(pair[1], to, N, 0, -1, NULL, NULL, &unknown) == -1 && errno == EINVAL);
    close(pair[1]);
    assert(csync_write(to, N) == 0);
    free(to);
    free(from);
}

static void sends(void)
{
    int pair[2];
    unsigned char *from = filled(BIG, 7), *short_one = filled(10, 3);
    struct stream to = {0, filled(BIG + 10, 9), BIG + 10};
    struct copier_descr descr = {0};
    pthread_t receiver;
    int calls = 0;
    struct copier_func handler = {count, &calls};

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    to.socket = pair[1];
    /* The calls return though the socket is full and nobody reads; not without a service. */
    assert(pthread_create(&receiver, NULL, receive_plainly, &to) == 0);
    assert(_asend(pair[0], from, BIG, 0, -1, &handler, &descr, NULL) == BIG);
    assert(asend(pair[0], short_one, 10, 0) == 10);
    assert(_csync(0, BIG, -1, &descr, NULL) == 0);
    pthread_join(receiver, NULL);
    assert(csync(short_one, 10) == 0);
    assert(holds(to.bytes, 0, BIG, 7) && memcmp(to.bytes + BIG, short_one, 10) == 0);
    assert(csync_all() == 0 && calls == 1);

    /* An abort, and a broken socket. */
    struct copier_stats stats = {.size = sizeof(stats)};
    assert(copier_get_stats(-1, &stats) == 0);
    if (stats.served) {
        assert(_asend(pair[0], from, BIG, 0, -1, NULL, &descr, NULL) == BIG);
        const struct copier_sync_opts try = {.size = sizeof(try), .flags = COPIER_SYNC_TRY};
        errno = 0;
        assert(_csync(0, BIG, -1, &descr, &try) == -1 && errno == EAGAIN);
        assert(asend(pair[0], short_one, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        assert(copier_abort(&descr, -1) == 0);
        memset(from, 1, BIG);
    }
    close(pair[1]);
    errno = 0;
    ssize_t sent = _asend(pair[0], from, N, 0, -1, NULL, &descr, NULL);
    assert(sent == -1 || _csync(0, N, -1, &descr, NULL) == -1);
    assert(errno == EPIPE || errno == ECONNRESET);
    errno = 0;
    assert(asend(-1, from, 1, 0) == -1 && errno == EBADF);
    const struct copier_task_opts lazily = {.size = sizeof(lazily), .flags = COPIER_LAZY};
    assert(_asend(pair[0], from, 1, 0, -1, NULL, NULL, &lazily) == -1 && errno == EINVAL);
    close(pair[0]);
    csync_all();
    assert(csync_write(from, BIG) == 0 && csync_write(short_one, 10) == 0);
    free(from);
    free(short_one);
    free(to.bytes);
}

/* A message is received, copied behind another head, and sent on; nobody looks at it. */
static void forwards(void)
{
    int in[2], out[2];
    unsigned char *source = filled(N, 5), *input = filled(N, 8), *output = filled(HEAD + N, 6);
    struct stream to = {0, filled(HEAD + N, 9), HEAD + N};
    struct copier_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, in) == 0);
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, out) == 0);
    to.socket = out[1];
    assert(copier_get_stats(-1, &before) == 0);
    for (int round = 0; round < 10; round++) {
        pthread_t receiver;
        assert(send(in[0], source, N, 0) == N);
        receive_all(in[1], input, N, NULL);
        amemcpy_lazily(output + HEAD, input, N);
        assert(pthread_create(&receiver, NULL, receive_plainly, &to) == 0);
        assert(asend(out[0], output, HEAD + N, 0) == HEAD + N);
        assert(cdiscard(output + HEAD, N) == 0);
        if (round % 2 == 1) {
            /* The input is used again at once. */
            assert(csync_write(input, N) == 0);
            memset(input, 1, N);
        }
        pthread_join(receiver, NULL);
        assert(holds(to.bytes, 0, HEAD, 6) && memcmp(to.bytes + HEAD, source, N) == 0);
        assert(csync_write(output, HEAD + N) == 0 && csync_write(input, N) == 0);
    }
    assert(copier_get_stats(-1, &after) == 0);
    if (after.served) {
        assert(after.forwarded_bytes - before.forwarded_bytes == 10 * (size_t)N);
        assert(after.never_made_bytes - before.never_made_bytes == 10 * (size_t)N);
    }

    /* Bytes that are still in the socket, and that nothing looks at again. */
    const struct copier_task_opts lazily = {.size = sizeof(lazily), .flags = COPIER_LAZY};
    const struct copier_task_opts last = {.size = sizeof(last), .flags = COPIER_LAST_USE};
    struct copier_descr descr = {0};
    pthread_t receiver;

    assert(send(in[0], source, N, 0) == N);
    ssize_t got = _arecv(in[1], input, N, 0, -1, NULL, NULL, &lazily);
    assert(got == N && csync(input, 1) == 0 && input[0] == source[0]);
    amemcpy_lazily(output, input, N);
    to.n = N;
    assert(pthread_create(&receiver, NULL, receive_plainly, &to) == 0);
    assert(_asend(out[0], output, N, 0, -1, NULL, &descr, &last) == N);
    assert(_csync(0, N, -1, &descr, NULL) == 0);
    pthread_join(receiver, NULL);
    assert(memcmp(to.bytes, source, N) == 0);
    assert(csync_write(output, HEAD + N) == 0 && csync_write(input, N) == 0);
    for (int i = 0; i < 2; i++) {
        close(in[i]);
        close(out[i]);
    }
    free(source);
    free(input);
    free(output);
    free(to.bytes);
}

/* A fork does not wait for a peer. */
static void forks(void)
{
    int pair[2];
    unsigned char *from = filled(BIG, 2);
    struct stream to = {0, filled(BIG, 9), BIG};
    struct copier_descr descr = {0};
    pthread_t receiver;

    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    to.socket = pair[1];
    struct copier_stats stats = {.size = sizeof(stats)};
    assert(copier_get_stats(-1, &stats) == 0);
    if (stats.served) {
        assert(_asend(pair[0], from, BIG, 0, -1, NULL, &descr, NULL) == BIG);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        assert(child > 0);
        assert(pthread_create(&receiver, NULL, receive_plainly, &to) == 0);
        assert(_csync(0, BIG, -1, &descr, NULL) == 0);
        pthread_join(receiver, NULL);
        assert(holds(to.bytes, 0, BIG, 2));
    }
    close(pair[0]);
    close(pair[1]);
    assert(csync_write(from, BIG) == 0);
    free(from);
    free(to.bytes);
}

int main(void)
{
    receives();
    sends();
    forwards();
    forks();
    return 0;
}
