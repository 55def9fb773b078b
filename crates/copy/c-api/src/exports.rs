//! The exported C functions.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use unlade_copy::is_refused;

use crate::abi::{CallSite, CopierStats, Descr, Func, Opt, SyncOpts, TaskOpts, read_sized};
use crate::descriptor::{self, Descriptors};
use crate::process::{self, Process};
use crate::ranges::Access;
use crate::socket::{self, SocketRequest};
use crate::submit::{self, CopyRequest};
use crate::sync_all::sync_all;
use crate::{errno, shm, site, sync};

/// Copies n bytes, as memcpy(3) does, possibly later; returns dst.
///
/// Call csync() on bytes of dst before reading or writing them. Call csync_write() on bytes of src
/// before writing them, and on bytes of either range before freeing their memory. csync() reports
/// bad addresses and overlapping ranges, for synchronous and for queued copies.
///
/// # Safety
/// As memcpy(3), until the bytes are synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amemcpy(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copier_amemcpy_at(dst, src, n, std::ptr::null()) }
}

/// Copies n bytes between ranges that may overlap, as memmove(3) does, possibly later; returns
/// dst. Otherwise as amemcpy().
///
/// # Safety
/// As memmove(3), until the bytes are synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amemmove(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copier_amemmove_at(dst, src, n, std::ptr::null()) }
}

/// amemcpy() with a call site, or NULL. The macro amemcpy calls this.
///
/// # Safety
/// As amemcpy(). The call site is static.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_amemcpy_at(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    site: *const CallSite,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { site::copy(dst.cast(), src.cast(), n, site) };
    dst
}

/// As amemcpy(), but the copy is made only when something needs the bytes: a sync of some of them,
/// or a change of the source. A copy from dst then reads from src instead. The copy is never made
/// if another one overwrites all of dst before, or after cdiscard(). Returns dst.
///
/// # Safety
/// As amemcpy().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amemcpy_lazily(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { site::copy_lazily(dst.cast(), src.cast(), n) };
    dst
}

/// Says that nothing will look at the n bytes from addr on: copies into them by amemcpy_lazily() are
/// dropped. Then as csync_write(): the bytes may be changed or freed; their content is undefined.
/// Returns 0, or -1 with errno.
///
/// # Errors
/// As csync().
///
/// # Safety
/// No requirements: the address is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn cdiscard(addr: *const c_void, n: usize) -> c_int {
    errno::status(sync::discard(&process::get().default, addr.addr(), n))
}

/// amemmove() with a call site, or NULL. The macro amemmove calls this.
///
/// # Safety
/// As amemmove(). The call site is static.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_amemmove_at(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    site: *const CallSite,
) -> *mut c_void {
    if is_refused(dst.addr(), src.addr(), n) {
        let request = CopyRequest::plain(dst.cast(), src.cast(), n, site.addr());
        // SAFETY: the caller's promise.
        unsafe { submit::move_bytes(&process::get().default, request) };
    } else {
        // SAFETY: the caller's promise; the ranges do not overlap.
        unsafe { site::copy(dst.cast(), src.cast(), n, site) };
    }
    dst
}

/// Waits until all earlier copies and receives, by amemcpy(), amemmove() and arecv(), have written
/// their part of the n bytes from addr on. Returns 0, or -1 with errno.
///
/// # Errors
/// EFAULT: a copy used an address that is not mapped, or not accessible. EINVAL: its ranges
/// overlap, wrap, or are longer than SSIZE_MAX, and nothing of it was copied. ENODATA, or a
/// socket's error: a receive did not get the bytes. EOWNERDEAD: the process that copies into this
/// shared memory has died. A copy's error does not expire; it is reported once for each byte,
/// unless a later copy writes that byte.
///
/// # Safety
/// No requirements: the address is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn csync(addr: *const c_void, n: usize) -> c_int {
    errno::status(sync::range(&process::get().default, addr.addr(), n, Access::Read))
}

/// As csync(), and also waits until no copy reads the bytes: call it before they are changed or
/// freed. Returns 0, or -1 with errno.
///
/// # Errors
/// As csync().
///
/// # Safety
/// No requirements: the address is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn csync_write(addr: *const c_void, n: usize) -> c_int {
    errno::status(sync::range(&process::get().default, addr.addr(), n, Access::Write))
}

/// Waits for all copies of all queues of the process, and runs their handlers. Returns 0, or -1
/// with errno.
///
/// # Errors
/// As csync().
#[unsafe(no_mangle)]
pub extern "C" fn csync_all() -> c_int {
    let Some(process) = process::started() else { return 0 };
    let mut result = Ok(());
    for channel in process.channels() {
        // Sync all queues, even after a failure.
        result = result.and(sync_all(&channel));
    }
    errno::status(result)
}

/// Runs the handlers that are due, of all queues, in the calling thread. Returns their number.
#[unsafe(no_mangle)]
pub extern "C" fn post_handlers() -> c_int {
    let Some(process) = process::started() else { return 0 };
    let count: usize = process.channels().iter().map(|channel| channel.run_handlers()).sum();
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Receives what the socket has, at most n bytes, as recv(2) does. Returns their number at once,
/// possibly before they are in buf: call csync() before they are used. 0 is the end of the stream,
/// -1 an error, with errno.
///
/// A task receives if flags are 0 or MSG_DONTWAIT and the socket has enough bytes; otherwise this
/// call does. Receives of a socket come in order. Nothing else may receive from it, and it stays
/// open, until the bytes are synced.
///
/// # Errors
/// As recv(2): EAGAIN, if there is nothing and the socket is non-blocking.
///
/// # Safety
/// As recv(2), until the bytes are synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn arecv(
    sockfd: c_int,
    buf: *mut c_void,
    n: usize,
    flags: c_int,
) -> libc::ssize_t {
    let (func, desc, opts) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null());
    // SAFETY: the caller's promise.
    unsafe { copier_arecv_on(sockfd, buf, n, flags, -1, func, desc, opts, std::ptr::null()) }
}

/// Sends n bytes, as send(2) does. Returns their number at once, at most 4 MiB, while the service
/// waits for the socket as long as necessary, also if it is non-blocking. -1 is an error, with
/// errno.
///
/// Call csync_write() on bytes of buf before changing or freeing them. Bytes that amemcpy_lazily()
/// would copy are sent from their source, and not copied. Sends to a socket go in order. Nothing
/// else may send to it, and it stays open, until they are over. No signal is raised. Errors are
/// those of _csync() with a descriptor (_asend()), or of csync_all(). Flags other than MSG_NOSIGNAL
/// have the bytes sent by this call, once, after earlier sends to the socket.
///
/// # Errors
/// As send(2), if this call sends. EAGAIN: with MSG_DONTWAIT, also if an earlier send is pending.
///
/// # Safety
/// As send(2), until the bytes are sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn asend(
    sockfd: c_int,
    buf: *const c_void,
    n: usize,
    flags: c_int,
) -> libc::ssize_t {
    let (func, desc, opts) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null());
    // SAFETY: the caller's promise.
    unsafe { copier_asend_on(sockfd, buf, n, flags, -1, func, desc, opts, std::ptr::null()) }
}

/// arecv() with all options: the queue (fd, or -1 for the default one), a handler (or NULL), a
/// descriptor to be filled (or NULL), options (or NULL). Returns as arecv(). The handler is called
/// when the bytes are there, or not to come, unless -1 is returned. With COPIER_LAZY, and without a
/// handler, the bytes stay in the socket until something needs them.
///
/// # Errors
/// As arecv(). EBADF: also if fd is not a queue. EINVAL, E2BIG: the options are invalid.
///
/// # Safety
/// As arecv(). func, desc and opts are NULL or point to such structures, and the handler may be
/// called with its argument.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn _arecv(
    sockfd: c_int,
    buf: *mut c_void,
    n: usize,
    flags: c_int,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
) -> libc::ssize_t {
    // SAFETY: the caller's promise.
    unsafe { copier_arecv_on(sockfd, buf, n, flags, fd, func, desc, opts, std::ptr::null()) }
}

/// asend() with all options: the queue (fd, or -1 for the default one), a handler (or NULL), a
/// descriptor to be filled (or NULL), options (or NULL). Returns as asend(). _csync() with the
/// descriptor waits until the socket has taken the bytes, and returns its error; copier_abort()
/// gives up those that it has not taken. The handler is called when buf is not read any more,
/// unless -1 is returned; it may free buf, so bytes of amemcpy_lazily() are then copied before.
///
/// # Errors
/// As asend(). EBADF: also if fd is not a queue. EINVAL, E2BIG: the options are invalid, or have
/// COPIER_LAST_USE with a handler.
///
/// # Safety
/// As asend(). func, desc and opts are NULL or point to such structures, and the handler may be
/// called with its argument.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn _asend(
    sockfd: c_int,
    buf: *const c_void,
    n: usize,
    flags: c_int,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
) -> libc::ssize_t {
    // SAFETY: the caller's promise.
    unsafe { copier_asend_on(sockfd, buf, n, flags, fd, func, desc, opts, std::ptr::null()) }
}

/// _arecv() with a call site, or NULL. The macros arecv and _arecv call this.
///
/// # Safety
/// As _arecv(). The call site is static.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn copier_arecv_on(
    sockfd: c_int,
    buf: *mut c_void,
    n: usize,
    flags: c_int,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    site: *const CallSite,
) -> libc::ssize_t {
    let request = SocketRequest::plain(sockfd, buf.cast(), n, flags, site.addr());
    // SAFETY: the caller's promise.
    unsafe { at_socket(request, fd, func, desc, opts, |on, all| socket::receive(on, all)) }
}

/// _asend() with a call site, or NULL. The macros asend and _asend call this.
///
/// # Safety
/// As _asend(). The call site is static.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn copier_asend_on(
    sockfd: c_int,
    buf: *const c_void,
    n: usize,
    flags: c_int,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    site: *const CallSite,
) -> libc::ssize_t {
    let request = SocketRequest::plain(sockfd, buf.cast_mut().cast(), n, flags, site.addr());
    // SAFETY: the caller's promise.
    unsafe { at_socket(request, fd, func, desc, opts, |on, all| socket::send(on, all)) }
}

/// # Safety
/// `func`, `desc` and `opts` are null or point to such structures.
unsafe fn at_socket(
    request: SocketRequest<'static>,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    call: impl FnOnce(&Arc<crate::channel::Channel>, SocketRequest<'_>) -> Result<isize, c_int>,
) -> libc::ssize_t {
    let begin = || {
        // SAFETY: the caller's promise.
        let (opts, func, descr) =
            unsafe { (read_sized(opts)?, func.as_ref().copied(), desc.as_mut()) };
        let channel = process::get().channel(fd)?;
        call(&channel, SocketRequest { opts, func, descr, ..request })
    };
    socket::value(begin())
}

/// amemcpy() with all options: the queue (fd, or -1 for the default one), a handler (or NULL), a
/// descriptor to be filled (or NULL), options (or NULL). Returns 0, or -1 with errno if nothing is
/// copied.
///
/// # Errors
/// EBADF: fd is not a queue. EINVAL, E2BIG: the options are invalid.
///
/// # Safety
/// As amemcpy(). func, desc and opts are NULL or point to such structures, and the handler may be
/// called with its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _amemcpy(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copier_amemcpy_on(dst, src, n, fd, func, desc, opts, std::ptr::null()) }
}

/// amemmove() with all options; see _amemcpy(). A move has no tokens in its descriptor: _csync()
/// finds it by address, and it cannot be aborted.
///
/// # Errors
/// As _amemcpy().
///
/// # Safety
/// As _amemcpy(), except that the ranges may overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _amemmove(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copier_amemmove_on(dst, src, n, fd, func, desc, opts, std::ptr::null()) }
}

/// _amemcpy() with a call site, or NULL. The macro _amemcpy calls this.
///
/// # Safety
/// As _amemcpy(). The call site is static.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn copier_amemcpy_on(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    site: *const CallSite,
) -> c_int {
    let request = CopyRequest::plain(dst.cast(), src.cast(), n, site.addr());
    // SAFETY: the caller's promise.
    errno::status(unsafe {
        submit_on(request, fd, func, desc, opts, |channel, request| submit::copy(channel, request))
    })
}

/// _amemmove() with a call site, or NULL. The macro _amemmove calls this.
///
/// # Safety
/// As _amemmove(). The call site is static.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn copier_amemmove_on(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    site: *const CallSite,
) -> c_int {
    let request = CopyRequest::plain(dst.cast(), src.cast(), n, site.addr());
    // SAFETY: the caller's promise.
    errno::status(unsafe {
        submit_on(request, fd, func, desc, opts, |channel, request| {
            submit::move_bytes(channel, request)
        })
    })
}

/// # Safety
/// `func`, `desc` and `opts` are null or point to such structures.
unsafe fn submit_on(
    request: CopyRequest<'static>,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    submit: impl FnOnce(&Arc<crate::channel::Channel>, CopyRequest<'_>),
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let (opts, func, descr) = unsafe { (read_sized(opts)?, func.as_ref().copied(), desc.as_mut()) };
    let request = request.with(&opts)?;
    let channel = process::get().channel(fd)?;
    submit(&channel, CopyRequest { func, descr, ..request });
    Ok(())
}

/// Waits for size bytes from offset on, of the copy that filled the descriptor, on its queue (fd,
/// or -1 for the default one). If the descriptor is NULL, offset is an address. Returns 0, or -1
/// with errno.
///
/// # Errors
/// As csync(). EBADF: fd is not a queue. EINVAL: the descriptor is of another queue, the offset is
/// beyond the copy, or the options are invalid (also E2BIG). EAGAIN: with COPIER_SYNC_TRY, the
/// bytes are not copied yet. ENOTSUP: with COPIER_SYNC_TRY, the state cannot be determined without
/// waiting: for moves, for readers, without a descriptor, and beyond 4 MiB of a copy.
///
/// # Safety
/// The descriptor is NULL, zeroed, or was filled by the library; opts is NULL or points to such a
/// structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _csync(
    offset: usize,
    size: usize,
    fd: c_int,
    desc: *const Descr,
    opts: *const SyncOpts,
) -> c_int {
    let sync = || {
        // SAFETY: the caller's promise.
        let flags = unsafe { read_sized(opts) }?.flags;
        let process = process::get();
        let channel = process.channel(fd)?;
        // SAFETY: the caller's promise.
        match unsafe { desc.as_ref() } {
            // SAFETY: the caller's promise.
            Some(desc) => unsafe { sync::descr(process, &channel, desc, offset, size, flags) },
            None => sync::address(&channel, offset, size, flags),
        }
    };
    errno::status(sync())
}

/// csync_all() for one queue (fd, or -1 for the default one). Returns 0, or -1 with errno.
///
/// # Errors
/// As csync(). EBADF: fd is not a queue.
#[unsafe(no_mangle)]
pub extern "C" fn _csync_all(fd: c_int) -> c_int {
    errno::status(process::get().channel(fd).and_then(|channel| sync_all(&channel)))
}

/// post_handlers() for one queue (fd, or -1 for the default one). Returns the number of handlers,
/// or -1 with errno.
///
/// # Errors
/// EBADF: fd is not a queue.
#[unsafe(no_mangle)]
pub extern "C" fn _post_handlers(fd: c_int) -> c_int {
    let count = process::get().channel(fd).map(|channel| channel.run_handlers());
    errno::value(count.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)))
}

/// Aborts the copy that filled the descriptor. Bytes on which no other copy depends are not
/// copied, and the content of the destination is undefined. When this returns, neither range is
/// accessed any more. The handler runs nevertheless. Returns 0, or -1 with errno.
///
/// # Errors
/// EBADF: fd is not a queue. EINVAL: the descriptor is NULL, or of another queue.
///
/// # Safety
/// As _csync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_abort(desc: *const Descr, fd: c_int) -> c_int {
    let abort = || {
        let process = process::get();
        let channel = process.channel(fd)?;
        // SAFETY: the caller's promise.
        let desc = unsafe { desc.as_ref() }.ok_or(libc::EINVAL)?;
        // SAFETY: the caller's promise.
        unsafe { sync::abort(process, &channel, desc) }
    };
    errno::status(abort())
}

/// Creates a queue with a capacity of at least len tasks. Returns its file descriptor, or -1 with
/// errno. Copies are ordered within a queue only. Without a service, copies of the queue are
/// synchronous. The descriptor is readable when handlers of the queue may be due, until
/// _post_handlers(fd).
///
/// # Errors
/// EINVAL: len is 0, or exceeds the capacity of the process's queues (queue_len, 1024 if not set).
/// EMFILE: there are 256 queues, or the process has no descriptors left. ENOMEM: no memory.
#[unsafe(no_mangle)]
pub extern "C" fn copier_create_queue(len: usize) -> c_int {
    let add = |process: &Process| process.queues.add(process.new_channel(len)?);
    errno::value(add(process::get()))
}

/// Same as copier_create_queue(), since queues are in the program's memory.
///
/// # Errors
/// As copier_create_queue().
#[unsafe(no_mangle)]
pub extern "C" fn copier_create_mapped_queue(len: usize) -> c_int {
    copier_create_queue(len)
}

/// Waits for a queue's copies, runs its handlers, and closes it. Returns 0, or -1 with errno.
///
/// A queue that is closed by close(2) is completed when the next one is created.
///
/// # Errors
/// EBADF: fd is not a queue. As csync(), but the queue is closed.
#[unsafe(no_mangle)]
pub extern "C" fn copier_close_queue(fd: c_int) -> c_int {
    let removed = process::get().queues.remove(fd);
    errno::status(removed.and_then(|channel| sync_all(&channel)))
}

/// Sets options of the whole process. Returns 0, or -1 with errno if nothing is set.
///
/// # Errors
/// EINVAL, E2BIG: the options are invalid. EBUSY: one of them can be set only before the first
/// copy.
///
/// # Safety
/// opts is NULL or points to such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_copier_opt(opts: *const Opt) -> c_int {
    // SAFETY: the caller's promise.
    errno::status(unsafe { read_sized(opts) }.and_then(|opt| process::set(&opt)))
}

/// Wakes the service's threads before copies are submitted. Returns 0, or -1 with errno.
///
/// # Errors
/// EBADF: fd is neither -1 nor a queue.
#[unsafe(no_mangle)]
pub extern "C" fn copier_awaken(fd: c_int) -> c_int {
    let process = process::get();
    errno::status(process.channel(fd).map(|channel| channel.ring()))
}

/// Gets the statistics of a queue (fd, or -1 for the default one). The caller sets stats->size.
/// Returns 0, or -1 with errno.
///
/// # Errors
/// EBADF: fd is not a queue. EINVAL: stats is NULL, or smaller than this structure.
///
/// # Safety
/// stats is NULL, or has the size in its first field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_get_stats(fd: c_int, stats: *mut CopierStats) -> c_int {
    let get = || {
        // SAFETY: the caller's promise; the first field is the size.
        let size = unsafe { stats.cast::<u32>().as_ref() }.map_or(0, |size| *size as usize);
        if size < CopierStats::SIZE_MIN {
            return Err(libc::EINVAL);
        }
        let channel = process::get().channel(fd)?;
        let read = channel.stats();
        let (never_made, never_made_bytes) = channel.never_made();
        let now = CopierStats {
            size: size.min(size_of::<CopierStats>()) as u32,
            served: channel.is_served().into(),
            at_once: read.at_once,
            queued: read.queued,
            queued_bytes: read.queued_bytes,
            helped_bytes: read.helped_bytes,
            waits: read.waits,
            never_made,
            never_made_bytes,
            forwarded_bytes: read.forwarded_bytes,
            saved_bytes: read.saved_bytes,
            remapped: read.remapped,
            remapped_bytes: read.remapped_bytes,
            remaps_refused: read.remaps_refused,
            last_use_copied_bytes: read.last_use_copied_bytes,
        };
        let bytes = size.min(size_of::<CopierStats>());
        // SAFETY: the caller has `size` bytes there; `now` has no padding.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const now).cast::<u8>(), stats.cast::<u8>(), bytes);
        }
        Ok(())
    };
    errno::status(get())
}

/// Size in bytes of the descriptors of shm_len bytes in segments of segment_len. 0 if the lengths
/// are invalid: the segment size is a power of two, 64 to 2^30, and there are at most 2^24
/// segments.
#[unsafe(no_mangle)]
pub extern "C" fn copier_shm_descr_size(shm_len: usize, segment_len: usize) -> usize {
    descriptor::size(shm_len, segment_len).unwrap_or(0)
}

/// Initialises memory as descriptors of shm_len bytes in segments of segment_len. One of the
/// processes does this, before any of them binds the descriptors. Returns 0, or -1 with errno.
///
/// # Errors
/// EINVAL: the lengths are invalid, or the address is not a multiple of 8.
///
/// # Safety
/// There are copier_shm_descr_size() bytes at descr, and they are not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_shm_descr_init(
    descr: *mut c_void,
    shm_len: usize,
    segment_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    errno::status(unsafe { Descriptors::init(descr.cast(), shm_len, segment_len) })
}

/// Binds descriptors, in shared memory, to the shared memory at shm. From then on copies into it
/// are visible to all processes that have bound it: csync() of its bytes waits for the copies of
/// all these processes. One process may copy at a time. Returns 0, or -1 with errno.
///
/// # Errors
/// EINVAL: descr was not initialised by copier_shm_descr_init() for such segments, or shm overlaps
/// another bound memory. ENOSPC: 64 memories are bound.
///
/// # Safety
/// Both stay mapped until shm_descr_unbind().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shm_descr_bind(
    shm: *mut c_void,
    descr: *mut c_void,
    segment_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let bound = unsafe { shm::bind(shm.addr(), descr.cast(), segment_len) };
    process::watch_copies();
    errno::status(bound)
}

/// Undoes shm_descr_bind(), after the copies of this process into the memory are over. Returns 0,
/// or -1 with errno.
///
/// # Errors
/// EINVAL: nothing is bound there.
#[unsafe(no_mangle)]
pub extern "C" fn shm_descr_unbind(shm: *mut c_void) -> c_int {
    errno::status(shm::unbind(shm.addr()))
}

/// Describes an error number of this library; returns a constant string.
#[unsafe(no_mangle)]
pub extern "C" fn copier_strerror(errnum: c_int) -> *const c_char {
    let text = match errnum {
        0 => c"no error",
        libc::EFAULT => c"a copy used an address that is not mapped, or not accessible",
        libc::EINVAL => c"an argument is invalid, or a copy's ranges overlap or wrap",
        libc::E2BIG => c"a structure uses fields that this version of the library does not have",
        libc::EBADF => c"the file descriptor is not a queue of this process",
        libc::EBUSY => c"this can be set only before the first copy",
        libc::EAGAIN => c"the bytes are not copied yet",
        libc::ENOTSUP => c"the state of the bytes cannot be determined without waiting",
        libc::EMFILE => c"the limit of queues, or of open files, is reached",
        libc::ENOSPC => c"the limit of bound shared memories is reached",
        libc::ENOMEM => c"no memory, or the limit of queues of the service is reached",
        libc::EOWNERDEAD => c"the process that copied into the shared memory has died",
        libc::EIO => c"the copy failed",
        libc::ENODATA => c"the peer ended the stream before all bytes came",
        libc::ECANCELED => c"the task was aborted, or its service has ended",
        _ => c"not an error of this library: see strerror(3)",
    };
    text.as_ptr()
}

/// The version of the library, as a constant string: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn copier_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
