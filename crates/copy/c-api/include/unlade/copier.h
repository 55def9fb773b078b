/*
 * libunlade_copier: copies that a service makes while the program goes on.
 * Link with -lunlade_copier; see unlade_copier(3).
 *
 * Made by cbindgen from crates/copy/c-api/src: do not edit.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */


#ifndef UNLADE_COPIER_H
#define UNLADE_COPIER_H

#include <stddef.h>
#include <stdint.h>

/**
 * Major version of the interface.
 */
#define COPIER_VERSION_MAJOR 0

/**
 * Minor version of the interface.
 */
#define COPIER_VERSION_MINOR 1

/**
 * Patch version of the interface.
 */
#define COPIER_VERSION_PATCH 0

/**
 * Flag of a copy: put off for `lazy_us` microseconds, or until something needs the bytes.
 */
#define COPIER_LAZY 1

/**
 * Flag of a copy: queue it, however small it is.
 */
#define COPIER_QUEUED 2

/**
 * Flag of `_csync`: wait also until nobody reads the bytes, before they are changed or freed.
 */
#define COPIER_SYNC_WRITE 1

/**
 * Flag of `_csync`: do not wait; EAGAIN where the bytes are not there.
 */
#define COPIER_SYNC_TRY 2

/**
 * Polling: a service thread without work sleeps after a while. The default.
 */
#define COPIER_POLL_ADAPTIVE 1

/**
 * Polling: it sleeps at once, but never while the scenario is on.
 */
#define COPIER_POLL_SCENARIO 2

/**
 * Polling: it never sleeps.
 */
#define COPIER_POLL_ALWAYS 3

/**
 * In a field of `struct copier_opt` that switches: on.
 */
#define COPIER_ON 1

/**
 * In a field of `struct copier_opt` that switches: off.
 */
#define COPIER_OFF 2

/**
 * A place in the program that asks for copies. Its address tells places apart, so it is static;
 * the header's macros make it.
 */
struct copier_site {
    /**
     * The source file, or NULL.
     */
    const char *file;
    /**
     * The line.
     */
    uint32_t line;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * A function that is called once when a copy is over and nobody reads its source any more: in
 * post_handlers(), csync_all(), or, for a copy made at once, in the submitting call.
 */
struct copier_func {
    /**
     * The function.
     */
    void (*function)(void *argument);
    /**
     * What it is called with.
     */
    void *argument;
};

/**
 * A copy's descriptor, in the program's memory: _csync() with it looks nothing up. Zero it before
 * its first use; each copy fills it anew. It may be copied, and used by several threads.
 */
struct copier_descr {
    /**
     * 0: no copy yet. Otherwise the library's, as all that follows.
     */
    uint32_t state;
    /**
     * How many tokens are in `data`.
     */
    uint32_t tokens;
    /**
     * Number of the queue.
     */
    uint64_t queue;
    /**
     * The destination.
     */
    void *dst;
    /**
     * Bytes of the copy.
     */
    size_t len_bytes;
    /**
     * Bytes of each part of the copy.
     */
    size_t part_bytes;
    /**
     * The tokens.
     */
    uint64_t data[32];
};

/**
 * How a copy is made; NULL stands for all zeroes.
 */
struct copier_task_opts {
    /**
     * sizeof(struct copier_task_opts).
     */
    uint32_t size;
    /**
     * COPIER_LAZY, COPIER_QUEUED.
     */
    uint32_t flags;
    /**
     * With COPIER_LAZY: for so many microseconds.
     */
    uint32_t lazy_us;
    /**
     * Progress is told in segments of at most so many bytes, where that is 1024 or more; 0: the
     * library chooses.
     */
    uint32_t granularity_bytes;
};

/**
 * How a copy is waited for; NULL stands for all zeroes.
 */
struct copier_sync_opts {
    /**
     * sizeof(struct copier_sync_opts).
     */
    uint32_t size;
    /**
     * COPIER_SYNC_WRITE, COPIER_SYNC_TRY.
     */
    uint32_t flags;
};

/**
 * What is set for the whole process; a field that is 0 stays as it is.
 */
struct copier_opt {
    /**
     * sizeof(struct copier_opt).
     */
    uint32_t size;
    /**
     * COPIER_ON or COPIER_OFF: whether there is a service at all. Only before the first copy.
     */
    uint32_t enabled;
    /**
     * Threads that copy, at most. Only before the first copy.
     */
    uint32_t threads;
    /**
     * Tasks that a queue holds: a power of two, 16 to 4096. Only before the first copy.
     */
    uint32_t queue_len;
    /**
     * COPIER_POLL_...: when a thread without work sleeps. Only before the first copy.
     */
    uint32_t polling;
    /**
     * COPIER_ON while much is copied, COPIER_OFF afterwards: keeps the threads awake, with
     * COPIER_POLL_SCENARIO. At any time.
     */
    uint32_t scenario;
};

/**
 * What a queue has done.
 */
struct copier_stats {
    /**
     * sizeof(struct copier_stats), set by the caller.
     */
    uint32_t size;
    /**
     * 1 where a service serves the queue, 0 where everything is copied at once.
     */
    uint32_t served;
    /**
     * Copies made at once.
     */
    uint64_t at_once;
    /**
     * Copies that were queued.
     */
    uint64_t queued;
    /**
     * Bytes that were queued.
     */
    uint64_t queued_bytes;
    /**
     * Bytes of queued copies that a waiter copied itself.
     */
    uint64_t helped_bytes;
    /**
     * Times that a waiter had to wait.
     */
    uint64_t waits;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Copies n bytes, as memcpy(3) does, but perhaps later; returns dst.
 *
 * Before bytes of dst are read or written csync() them; before bytes of src are written, or memory
 * of either is freed, csync_write() them. A bad address, or ranges that overlap, are told by
 * csync(), whoever copies, and whether it is done before this returns or not.
 *
 * # Safety
 * As memcpy(3), until the bytes are synced.
 */
void *amemcpy(void *dst,
              const void *src,
              size_t n);

/**
 * Copies n bytes between ranges that may overlap, as memmove(3) does, but perhaps later; returns
 * dst. Otherwise as amemcpy().
 *
 * # Safety
 * As memmove(3), until the bytes are synced.
 */
void *amemmove(void *dst,
               const void *src,
               size_t n);

/**
 * amemcpy(), from a place in the program, or NULL. The macro amemcpy calls this.
 *
 * # Safety
 * As amemcpy(). The place is static.
 */
void *copier_amemcpy_at(void *dst, const void *src, size_t n, const struct copier_site *site);

/**
 * amemmove(), from a place in the program, or NULL. The macro amemmove calls this.
 *
 * # Safety
 * As amemmove(). The place is static.
 */
void *copier_amemmove_at(void *dst, const void *src, size_t n, const struct copier_site *site);

/**
 * Waits until n bytes from addr on are what the copies submitted before, by amemcpy() and
 * amemmove(), make of them. 0, or -1 with errno.
 *
 * # Errors
 * EFAULT: a copy met an address that is not mapped, or may not be accessed. EINVAL: its ranges
 * overlap, wrap, or are longer than SSIZE_MAX, and nothing of it was copied.
 * EOWNERDEAD: the process that copies into this shared memory has died. A copy's error is
 * told however late, once for each byte, unless a later copy writes that.
 *
 * # Safety
 * None is needed: the address is only compared.
 */
int csync(const void *addr, size_t n);

/**
 * As csync(), and until no copy reads the bytes any more: before they are changed or freed. 0, or
 * -1 with errno.
 *
 * # Errors
 * As csync().
 *
 * # Safety
 * None is needed: the address is only compared.
 */
int csync_write(const void *addr,
                size_t n);

/**
 * Waits for all copies of all queues of the process, and runs their handlers. 0, or -1 with errno.
 *
 * # Errors
 * As csync().
 */
int csync_all(void);

/**
 * Runs the handlers that are due, of all queues, in the calling thread; how many.
 */
int post_handlers(void);

/**
 * amemcpy() with everything that can be said: the queue (fd, or -1 for the default one), a handler
 * (or NULL), a descriptor to be filled (or NULL), options (or NULL). 0, or -1 with errno: then
 * nothing is copied.
 *
 * # Errors
 * EBADF: fd is no queue. EINVAL, E2BIG: the options make no sense.
 *
 * # Safety
 * As amemcpy(); func, desc and opts are NULL or such structures, and the handler may be called
 * with its argument.
 */
int _amemcpy(void *dst,
             const void *src,
             size_t n,
             int fd,
             const struct copier_func *func,
             struct copier_descr *desc,
             const struct copier_task_opts *opts);

/**
 * amemmove() with everything that can be said; see _amemcpy(). A move has no tokens in its
 * descriptor: _csync() finds it by address, and it cannot be given up.
 *
 * # Errors
 * As _amemcpy().
 *
 * # Safety
 * As _amemcpy(), but that the ranges may overlap.
 */
int _amemmove(void *dst,
              const void *src,
              size_t n,
              int fd,
              const struct copier_func *func,
              struct copier_descr *desc,
              const struct copier_task_opts *opts);

/**
 * _amemcpy(), from a place in the program, or NULL. The macro _amemcpy calls this.
 *
 * # Safety
 * As _amemcpy(). The place is static.
 */
int copier_amemcpy_on(void *dst,
                      const void *src,
                      size_t n,
                      int fd,
                      const struct copier_func *func,
                      struct copier_descr *desc,
                      const struct copier_task_opts *opts,
                      const struct copier_site *site);

/**
 * _amemmove(), from a place in the program, or NULL. The macro _amemmove calls this.
 *
 * # Safety
 * As _amemmove(). The place is static.
 */
int copier_amemmove_on(void *dst,
                       const void *src,
                       size_t n,
                       int fd,
                       const struct copier_func *func,
                       struct copier_descr *desc,
                       const struct copier_task_opts *opts,
                       const struct copier_site *site);

/**
 * Waits for size bytes from offset on, of the copy that filled the descriptor, on its queue (fd,
 * or -1 for the default one). With NULL for the descriptor the offset is an address. 0, or -1 with
 * errno.
 *
 * # Errors
 * As csync(). EBADF: fd is no queue. EINVAL: the descriptor is of another queue, the offset is
 * beyond the copy, or the options make no sense (also E2BIG). EAGAIN: with COPIER_SYNC_TRY, the
 * bytes are not there. ENOTSUP: with COPIER_SYNC_TRY, that cannot be said without waiting: for
 * moves, for readers, without a descriptor, and beyond 4 MiB of a copy.
 *
 * # Safety
 * The descriptor is NULL, zeroed, or was filled by the library; opts is NULL or such a structure.
 */
int _csync(size_t offset,
           size_t size,
           int fd,
           const struct copier_descr *desc,
           const struct copier_sync_opts *opts);

/**
 * csync_all() of one queue (fd, or -1 for the default one). 0, or -1 with errno.
 *
 * # Errors
 * As csync(). EBADF: fd is no queue.
 */
int _csync_all(int fd);

/**
 * post_handlers() of one queue (fd, or -1 for the default one). How many, or -1 with errno.
 *
 * # Errors
 * EBADF: fd is no queue.
 */
int _post_handlers(int fd);

/**
 * Gives up the copy that filled the descriptor: what nobody depends on is not made, and its
 * destination holds anything. Neither range is touched any more when this returns. Its handler
 * runs nevertheless. 0, or -1 with errno.
 *
 * # Errors
 * EBADF: fd is no queue. EINVAL: the descriptor is NULL, or of another queue.
 *
 * # Safety
 * As _csync().
 */
int copier_abort(const struct copier_descr *desc, int fd);

/**
 * Makes a queue that holds len tasks at least; its file descriptor, or -1 with errno. Order is
 * kept within a queue only. Where no service runs, copies of the queue are made at once. The
 * descriptor is readable when handlers of the queue may be due, until _post_handlers(fd).
 *
 * # Errors
 * EINVAL: len is 0, or more than the process's queues hold (queue_len, 1024 if not set). EMFILE:
 * there are 256 queues, or the process has no descriptors left. ENOMEM: no memory.
 */
int copier_create_queue(size_t len);

/**
 * copier_create_queue(): a queue is in the program's memory anyway.
 *
 * # Errors
 * As copier_create_queue().
 */
int copier_create_mapped_queue(size_t len);

/**
 * Waits for a queue's copies, runs its handlers, and closes it. 0, or -1 with errno.
 *
 * A queue that is closed by close(2) is settled when the next one is made.
 *
 * # Errors
 * EBADF: fd is no queue. As csync(), but the queue is closed.
 */
int copier_close_queue(int fd);

/**
 * Sets what concerns the whole process. 0, or -1 with errno: then nothing is set.
 *
 * # Errors
 * EINVAL, E2BIG: the options make no sense. EBUSY: one of them can be set only before the first
 * copy.
 *
 * # Safety
 * opts is NULL or such a structure.
 */
int set_copier_opt(const struct copier_opt *opts);

/**
 * Wakes the service's threads: copies are coming. 0, or -1 with errno.
 *
 * # Errors
 * EBADF: fd is neither -1 nor a queue.
 */
int copier_awaken(int fd);

/**
 * What a queue (fd, or -1 for the default one) has done. stats->size is set by the caller. 0, or
 * -1 with errno.
 *
 * # Errors
 * EBADF: fd is no queue. EINVAL: stats is NULL, or smaller than this structure.
 *
 * # Safety
 * stats is NULL, or as large as its size says.
 */
int copier_get_stats(int fd,
                     struct copier_stats *stats);

/**
 * Bytes that the descriptors of shm_len bytes in segments of segment_len take; 0 where the lengths
 * make no sense: segments are powers of two, 64 to 2^30, at most 2^24 of them.
 */
size_t copier_shm_descr_size(size_t shm_len,
                             size_t segment_len);

/**
 * Makes zeroed or used memory into descriptors of shm_len bytes in segments of segment_len; one of
 * the processes does it, before any binds them. 0, or -1 with errno.
 *
 * # Errors
 * EINVAL: the lengths make no sense, or the address is not a multiple of 8.
 *
 * # Safety
 * There are copier_shm_descr_size() bytes at descr, and nobody uses them.
 */
int copier_shm_descr_init(void *descr,
                          size_t shm_len,
                          size_t segment_len);

/**
 * Binds descriptors, in shared memory, to the shared memory at shm. From then on copies into it
 * are told to all processes that have bound it, and csync() of its bytes waits for them, whichever
 * process makes them; one process copies at a time. 0, or -1 with errno.
 *
 * # Errors
 * EINVAL: descr is not what copier_shm_descr_init() made for such segments, or shm overlaps
 * another memory that is bound. ENOSPC: 64 memories are bound.
 *
 * # Safety
 * Both stay mapped until shm_descr_unbind().
 */
int shm_descr_bind(void *shm,
                   void *descr,
                   size_t segment_len);

/**
 * Undoes shm_descr_bind(), when the copies of this process into the memory are over. 0, or -1 with
 * errno.
 *
 * # Errors
 * EINVAL: nothing is bound there.
 */
int shm_descr_unbind(void *shm);

/**
 * What an error number of this library means, in words; a constant string.
 */
const char *copier_strerror(int errnum);

/**
 * The library's version, as a constant string: "0.1.0".
 */
const char *copier_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNLADE_COPIER_H */

/*
 * The calls below tell the library where in the program they are: it learns for each place whether
 * copies from there are worth queueing, and the sanitizer's reports name the line. Define
 * COPIER_NO_SITES before the header is included to have the plain functions.
 */
#if defined(__GNUC__) && !defined(COPIER_NO_SITES)
#define COPIER_SITE \
    (__extension__({ \
        static const struct copier_site copier_site_here = {__FILE__, __LINE__, 0}; \
        &copier_site_here; \
    }))
#define amemcpy(dst, src, n) copier_amemcpy_at((dst), (src), (n), COPIER_SITE)
#define amemmove(dst, src, n) copier_amemmove_at((dst), (src), (n), COPIER_SITE)
#define _amemcpy(dst, src, n, fd, func, desc, opts) \
    copier_amemcpy_on((dst), (src), (n), (fd), (func), (desc), (opts), COPIER_SITE)
#define _amemmove(dst, src, n, fd, func, desc, opts) \
    copier_amemmove_on((dst), (src), (n), (fd), (func), (desc), (opts), COPIER_SITE)
#endif
