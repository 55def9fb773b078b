/* A queue of the copy daemon at argv[1]: shared memory, copies, and a passed socket whose bytes are
 * compared with those of recv(2) and send(2). argv[2] is the seed. */
#include "corpus.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { AREA = 1 << 20, TOTAL = 12 << 20, LIMIT = 4096 };

static unsigned long long state;

static size_t below(size_t limit)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (size_t)((state >> 33) % limit);
}

static unsigned char byte_at(size_t at)
{
    return (unsigned char)((at * 0x9e3779b97f4a7c15ull) >> 56);
}

static void connect_pair(int pair[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0);
    assert(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    assert(connect(pair[0], (struct sockaddr *)&address, size) == 0);
    pair[1] = accept(listener, NULL, NULL);
    assert(pair[1] >= 0 && close(listener) == 0);
}

/* The peer: sends the stream by send(2), and expects it by recv(2). */
static void *send_plainly(void *argument)
{
    static unsigned char bytes[AREA];

    for (size_t at = 0; at < TOTAL;) {
        size_t n = at + AREA < TOTAL ? AREA : TOTAL - at;
        for (size_t i = 0; i < n; i++)
            bytes[i] = byte_at(at + i);
        for (size_t done = 0; done < n;) {
            ssize_t sent = send(*(int *)argument, bytes + done, n - done, MSG_NOSIGNAL);
            assert(sent > 0);
            done += (size_t)sent;
        }
        at += n;
    }
    return NULL;
}

static void *receive_plainly(void *argument)
{
    static unsigned char bytes[AREA];

    for (size_t at = 0; at < TOTAL;) {
        ssize_t got = recv(*(int *)argument, bytes, AREA, 0);
        assert(got > 0);
        for (ssize_t i = 0; i < got; i++)
            assert(bytes[i] == byte_at(at + (size_t)i));
        at += (size_t)got;
    }
    return NULL;
}

static void count(void *argument)
{
    ++*(int *)argument;
}

static void exchange(int queue, unsigned char *area, int socket)
{
    const struct copier_task_opts queued = {.size = sizeof(queued), .flags = COPIER_QUEUED};
    int calls = 0, expected = 0;
    struct copier_func handler = {count, &calls};
    struct copier_descr descr = {0};

    for (size_t received = 0, sent = 0; received < TOTAL || sent < TOTAL;) {
        size_t n = 1 + below(AREA / 2);

        if (received < TOTAL && (sent == TOTAL || below(2))) {
            ssize_t got = _arecv(socket, area, n, 0, queue, &handler, &descr, &queued);
            if (got == -1 && errno == EAGAIN) {
                struct pollfd readable = {.fd = socket, .events = POLLIN};
                assert(poll(&readable, 1, -1) == 1);
                continue;
            }
            assert(got > 0 && (size_t)got <= n);
            expected++;
            assert(_csync(0, (size_t)got, queue, &descr, NULL) == 0);
            for (ssize_t i = 0; i < got; i++)
                assert(area[i] == byte_at(received + (size_t)i));
            received += (size_t)got;
        } else {
            unsigned char *from = area + AREA / 2;
            n = sent + n < TOTAL ? n : TOTAL - sent;
            for (size_t i = 0; i < n; i++)
                from[i] = byte_at(sent + i);
            assert(_asend(socket, from, n, 0, queue, NULL, &descr, &queued) == (ssize_t)n);
            assert(_csync(0, n, queue, &descr, NULL) == 0);
            sent += n;
        }
    }
    assert(_csync_all(queue) == 0);
    _post_handlers(queue);
    assert(calls == expected);
}

static void wrong_calls(int queue, const char *path)
{
    int pair[2];
    const int plain = copier_create_queue(16);

    assert(copier_create_daemon_queue("/nonexistent/copyd.sock", 16) == -1 && errno == ENOENT);
    assert(copier_create_daemon_queue(path, 0) == -1 && errno == EINVAL);
    assert(copier_create_daemon_queue(path, LIMIT + 1) == -1 && errno == EINVAL);
    assert(!copier_alloc(plain, 100) && errno == EINVAL);
    assert(!copier_alloc(-2, 100) && errno == EBADF);
    assert(!copier_alloc(queue, 0) && errno == EINVAL);
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    assert(copier_pass(queue, pair[0]) == -1 && errno == EOPNOTSUPP);
    assert(copier_pass(queue, -1) == -1 && errno == EBADF);
    assert(copier_pass(plain, pair[0]) == -1 && errno == EINVAL);
    assert(copier_forget(queue, pair[0]) == 0);
    assert(close(pair[0]) == 0 && close(pair[1]) == 0);
    assert(copier_close_queue(plain) == 0);
}

int main(int argc, char **argv)
{
    assert(argc == 3);
    state = strtoull(argv[2], NULL, 10);
    const int queue = copier_create_daemon_queue(argv[1], 64);
    assert(queue >= 0);
    unsigned char *area = copier_alloc(queue, AREA);
    assert(area && area[0] == 0 && area[AREA - 1] == 0);

    const struct copier_task_opts queued = {.size = sizeof(queued), .flags = COPIER_QUEUED};
    struct copier_descr descr = {0};
    unsigned char *bytes = filled(AREA / 2, 3);
    memcpy(area, bytes, AREA / 2);
    _amemcpy(area + AREA / 2, area, AREA / 2, queue, NULL, &descr, &queued);
    assert(_csync(0, AREA / 2, queue, &descr, NULL) == 0);
    assert(memcmp(area + AREA / 2, bytes, AREA / 2) == 0);
    free(bytes);

    for (int blocking = 0; blocking < 2; blocking++) {
        pthread_t sender, receiver;
        int pair[2];
        char end;

        connect_pair(pair);
        assert(fcntl(pair[0], F_SETFL, blocking ? 0 : O_NONBLOCK) == 0);
        assert(copier_pass(queue, pair[0]) == 0 && copier_pass(queue, pair[0]) == 0);
        assert(pthread_create(&sender, NULL, send_plainly, &pair[1]) == 0);
        assert(pthread_create(&receiver, NULL, receive_plainly, &pair[1]) == 0);
        exchange(queue, area, pair[0]);
        pthread_join(sender, NULL);
        pthread_join(receiver, NULL);
        assert(copier_forget(queue, pair[0]) == 0 && close(pair[0]) == 0);
        assert(recv(pair[1], &end, 1, 0) == 0);
        assert(close(pair[1]) == 0);
    }
    wrong_calls(queue, argv[1]);
    assert(copier_close_queue(queue) == 0);
    puts("right");
    return 0;
}
