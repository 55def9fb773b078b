/* Bad addresses end in EFAULT, in the service, in a waiter, and in the submitter. */
#include "../corpus.h"
#include <signal.h>

enum { PAGE = 4096 };

static volatile sig_atomic_t faults;
static volatile unsigned char *volatile faulty;

/* The program's handler, installed before the first copy: it gets the program's faults. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    assert(info->si_addr == (void *)faulty);
    faults++;
    mprotect((void *)faulty, PAGE, PROT_READ | PROT_WRITE);
}

static unsigned char *mapped(size_t n, int protection)
{
    void *pages = mmap(NULL, n, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(pages != MAP_FAILED);
    return pages;
}

static unsigned char *hole(void)
{
    unsigned char *pages = mapped(N, PROT_NONE);
    return pages;
}

static unsigned char *cut_file(void)
{
    FILE *file = tmpfile();
    void *pages;
    assert(file);
    pages = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    assert(pages != MAP_FAILED);
    fclose(file);
    return pages;
}

static void fails(const void *dst, size_t n)
{
    errno = 0;
    assert(csync(dst, n) == -1 && errno == EFAULT);
    /* The error is reported once for each byte. */
    assert(csync(dst, n) == 0);
}

static int handled;

static void on_end(void *unused)
{
    (void)unused;
    handled++;
}

static void wrong(unsigned char *dst, const unsigned char *src, size_t n)
{
    struct copier_task_opts queued = {.size = sizeof(queued), .flags = COPIER_QUEUED};
    struct copier_task_opts lazy = {.size = sizeof(lazy), .flags = COPIER_LAZY, .lazy_us = 60000000};
    struct copier_func func = {on_end, NULL};
    struct copier_descr descr = {0};

    amemcpy(dst, src, n);
    fails(dst, n);
    amemmove(dst, src, n);
    fails(dst, n);
    assert(_amemcpy(dst, src, n, -1, NULL, NULL, &queued) == 0);
    fails(dst, n);
    assert(_amemcpy(dst, src, n, -1, NULL, &descr, &queued) == 0);
    assert(_csync(0, n, -1, &descr, NULL) == -1 && errno == EFAULT);
    assert(_amemcpy(dst, src, n, -1, NULL, &descr, NULL) == 0);
    assert(_csync(0, n, -1, &descr, NULL) == -1 && errno == EFAULT);
    assert(csync_all() == 0);
    assert(_amemcpy(dst, src, n, -1, NULL, NULL, &lazy) == 0);
    fails(dst, n);
    assert(_amemcpy(dst, src, n, -1, NULL, NULL, NULL) == 0);
    assert(csync_all() == -1 && errno == EFAULT);
    handled = 0;
    assert(_amemcpy(dst, src, n, -1, &func, NULL, NULL) == 0);
    assert(csync_all() == -1 && errno == EFAULT && handled == 1);
}

static unsigned char *shared_dst;

static void *wait_for_it(void *unused)
{
    (void)unused;
    fails(shared_dst, N);
    return NULL;
}

int main(void)
{
    unsigned char *good = filled(8 << 20, 1), *half = mapped(2 * N, PROT_READ | PROT_WRITE);
    const size_t lengths[] = {1, 100, 1000, 4096, 20000, N};
    unsigned char *nowhere = (unsigned char *)64;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    pthread_t thread;

    assert(sigaction(SIGSEGV, &action, NULL) == 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        size_t n = lengths[i];
        wrong(good, nowhere, n);
        wrong(nowhere, good, n);
        wrong(good, NULL, n);
        wrong(good, hole(), n);
        wrong(mapped(N, PROT_READ), good, n);
        wrong(good, cut_file(), n);
        wrong(cut_file(), good, n);
    }
    /* Long copies of several tasks: the bytes behind the bad address fail, too. */
    amemcpy(good, nowhere, 8 << 20);
    assert(csync(good + (7 << 20), 100) == -1 && errno == EFAULT);
    assert(csync(good, 100) == -1 && errno == EFAULT);
    assert(csync_all() == 0 || errno == EFAULT);
    /* More bytes than are mapped behind any address. */
    amemcpy(nowhere, good, (size_t)1 << 46);
    assert(csync(nowhere, (size_t)1 << 46) == -1 && errno == EFAULT);
    assert(csync_all() == 0 || errno == EFAULT);
    assert(csync_all() == 0);

    /* The sync is in another thread than the submission. */
    free(good);
    good = filled(N, 1);
    shared_dst = good;
    amemcpy(good, nowhere, N);
    assert(pthread_create(&thread, NULL, wait_for_it, NULL) == 0);
    assert(pthread_join(thread, NULL) == 0);

    /* Bytes before the bad address are copied; other copies are not affected. */
    memset(half, 9, N);
    assert(mprotect(half + N, N, PROT_NONE) == 0);
    amemcpy(good, half + N - 100, 200);
    assert(csync(good, 200) == -1 && errno == EFAULT && good[0] == 9 && good[99] == 9);
    amemcpy(good, half, N);
    assert(csync(good, N) == 0 && good[0] == 9 && good[N - 1] == 9);

    /* The program still gets its own faults. */
    faulty = mapped(PAGE, PROT_NONE);
    assert(faults == 0);
    *faulty = 1;
    assert(faults == 1 && *faulty == 1);
    free(good);
    return 0;
}
