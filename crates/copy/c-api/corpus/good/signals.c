/* Signals for the process go to the program's threads: those of the library block them. */
#include "../corpus.h"
#include <dirent.h>
#include <signal.h>

static volatile sig_atomic_t handled;

static void handle(int signal)
{
    (void)signal;
    handled = 1;
}

/* Returns the blocked signals of a thread, a bit for each. */
static unsigned long blocked_by(const char *thread)
{
    char path[300], line[300];
    unsigned long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *status = fopen(path, "r");
    if (!status)
        return ~0UL; /* It has ended. */
    while (fgets(line, sizeof line, status))
        sscanf(line, "SigBlk: %lx", &blocked);
    fclose(status);
    return blocked;
}

int main(void)
{
    unsigned char *src = filled(N, 1), *dst = filled(N, 2);
    struct sigaction action = {.sa_handler = handle};
    sigset_t blocked, before;
    assert(sigaction(SIGUSR1, &action, NULL) == 0);
    assert(_amemcpy(dst, src, N, -1, NULL, NULL, NULL) == 0);
    assert(csync(dst, N) == 0 && holds(dst, 0, N, 1));
    assert(csync_write(src, N) == 0);
    DIR *threads = opendir("/proc/self/task");
    assert(threads);
    for (struct dirent *thread; (thread = readdir(threads));)
        if (thread->d_name[0] != '.' && atoi(thread->d_name) != getpid())
            assert(blocked_by(thread->d_name) & 1UL << (SIGUSR1 - 1));
    closedir(threads);
    /* So a wait for a signal ends. */
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    assert(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
    assert(kill(getpid(), SIGUSR1) == 0);
    sigdelset(&before, SIGUSR1);
    sigsuspend(&before);
    assert(handled);
    free(src);
    free(dst);
    return 0;
}
