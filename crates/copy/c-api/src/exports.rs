//! The functions that C programs call.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use unlade_copy::TASK_BYTES_MAX;

use crate::abi::{CopierStats, Descr, Func, Opt, Site, SyncOpts, TaskOpts, read_sized};
use crate::descriptor::{self, Descriptors};
use crate::process::{self, Process};
use crate::ranges::Access;
use crate::submit::{self, Job};
use crate::{errno, sanitize, shm, sync};

/// Copies n bytes, as memcpy(3) does, but perhaps later; returns dst.
///
/// Before bytes of dst are read or written csync() them; before bytes of src are written, or memory
/// of either is freed, csync_write() them. A bad address, or ranges that overlap, are told by
/// csync(), whoever copies, and whether it is done before this returns or not.
///
/// # Safety
/// As memcpy(3), until the bytes are synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amemcpy(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copier_amemcpy_at(dst, src, n, std::ptr::null()) }
}

/// Copies n bytes between ranges that may overlap, as memmove(3) does, but perhaps later; returns
/// dst. Otherwise as amemcpy().
///
/// # Safety
/// As memmove(3), until the bytes are synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amemmove(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copier_amemmove_at(dst, src, n, std::ptr::null()) }
}

/// amemcpy(), from a place in the program, or NULL. The macro amemcpy calls this.
///
/// # Safety
/// As amemcpy(). The place is static.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_amemcpy_at(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    site: *const Site,
) -> *mut c_void {
    let channel = &process::get().default;
    let job = Job::plain(dst.cast(), src.cast(), n, site.addr());
    if n <= TASK_BYTES_MAX && !sanitize::is_on() && !shm::is_used() {
        // SAFETY: the caller's promise.
        let _ = unsafe { channel.submit(job.dst, job.src, n, n, &job.how) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { submit::copy(channel, job) };
    }
    dst
}

/// amemmove(), from a place in the program, or NULL. The macro amemmove calls this.
///
/// # Safety
/// As amemmove(). The place is static.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_amemmove_at(
    dst: *mut c_void,
    src: *const c_void,
    n: usize,
    site: *const Site,
) -> *mut c_void {
    let job = Job::plain(dst.cast(), src.cast(), n, site.addr());
    // SAFETY: the caller's promise.
    unsafe { submit::move_bytes(&process::get().default, job) };
    dst
}

/// Waits until n bytes from addr on are what the copies submitted before, by amemcpy() and
/// amemmove(), make of them. 0, or -1 with errno.
///
/// # Errors
/// EFAULT: a copy met an address that is not mapped, or may not be accessed. EINVAL: its ranges
/// overlap, wrap, or are longer than SSIZE_MAX, and nothing of it was copied.
/// EOWNERDEAD: the process that copies into this shared memory has died. A copy's error is
/// told however late, once for each byte, unless a later copy writes that.
///
/// # Safety
/// None is needed: the address is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn csync(addr: *const c_void, n: usize) -> c_int {
    errno::status(sync::range(&process::get().default, addr.addr(), n, Access::Read))
}

/// As csync(), and until no copy reads the bytes any more: before they are changed or freed. 0, or
/// -1 with errno.
///
/// # Errors
/// As csync().
///
/// # Safety
/// None is needed: the address is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn csync_write(addr: *const c_void, n: usize) -> c_int {
    errno::status(sync::range(&process::get().default, addr.addr(), n, Access::Write))
}

/// Waits for all copies of all queues of the process, and runs their handlers. 0, or -1 with errno.
///
/// # Errors
/// As csync().
#[unsafe(no_mangle)]
pub extern "C" fn csync_all() -> c_int {
    let Some(process) = process::started() else { return 0 };
    let mut result = Ok(());
    for channel in process.channels() {
        // All of them, whatever becomes of the first.
        result = result.and(sync::all(&channel));
    }
    errno::status(result)
}

/// Runs the handlers that are due, of all queues, in the calling thread; how many.
#[unsafe(no_mangle)]
pub extern "C" fn post_handlers() -> c_int {
    let Some(process) = process::started() else { return 0 };
    let count: usize = process.channels().iter().map(|channel| channel.run_handlers()).sum();
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// amemcpy() with everything that can be said: the queue (fd, or -1 for the default one), a handler
/// (or NULL), a descriptor to be filled (or NULL), options (or NULL). 0, or -1 with errno: then
/// nothing is copied.
///
/// # Errors
/// EBADF: fd is no queue. EINVAL, E2BIG: the options make no sense.
///
/// # Safety
/// As amemcpy(); func, desc and opts are NULL or such structures, and the handler may be called
/// with its argument.
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

/// amemmove() with everything that can be said; see _amemcpy(). A move has no tokens in its
/// descriptor: _csync() finds it by address, and it cannot be given up.
///
/// # Errors
/// As _amemcpy().
///
/// # Safety
/// As _amemcpy(), but that the ranges may overlap.
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

/// _amemcpy(), from a place in the program, or NULL. The macro _amemcpy calls this.
///
/// # Safety
/// As _amemcpy(). The place is static.
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
    site: *const Site,
) -> c_int {
    let job = Job::plain(dst.cast(), src.cast(), n, site.addr());
    // SAFETY: the caller's promise.
    errno::status(unsafe {
        submit_on(job, fd, func, desc, opts, |channel, job| submit::copy(channel, job))
    })
}

/// _amemmove(), from a place in the program, or NULL. The macro _amemmove calls this.
///
/// # Safety
/// As _amemmove(). The place is static.
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
    site: *const Site,
) -> c_int {
    let job = Job::plain(dst.cast(), src.cast(), n, site.addr());
    // SAFETY: the caller's promise.
    errno::status(unsafe {
        submit_on(job, fd, func, desc, opts, |channel, job| submit::move_bytes(channel, job))
    })
}

/// # Safety
/// `func`, `desc` and `opts` are null or point to such structures.
unsafe fn submit_on(
    job: Job<'static>,
    fd: c_int,
    func: *const Func,
    desc: *mut Descr,
    opts: *const TaskOpts,
    submit: impl FnOnce(&Arc<crate::channel::Channel>, Job<'_>),
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let (opts, func, descr) = unsafe { (read_sized(opts)?, func.as_ref().copied(), desc.as_mut()) };
    let job = job.with(&opts)?;
    let channel = process::get().channel(fd)?;
    submit(&channel, Job { func, descr, ..job });
    Ok(())
}

/// Waits for size bytes from offset on, of the copy that filled the descriptor, on its queue (fd,
/// or -1 for the default one). With NULL for the descriptor the offset is an address. 0, or -1 with
/// errno.
///
/// # Errors
/// As csync(). EBADF: fd is no queue. EINVAL: the descriptor is of another queue, the offset is
/// beyond the copy, or the options make no sense (also E2BIG). EAGAIN: with COPIER_SYNC_TRY, the
/// bytes are not there. ENOTSUP: with COPIER_SYNC_TRY, that cannot be said without waiting: for
/// moves, for readers, without a descriptor, and beyond 4 MiB of a copy.
///
/// # Safety
/// The descriptor is NULL, zeroed, or was filled by the library; opts is NULL or such a structure.
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

/// csync_all() of one queue (fd, or -1 for the default one). 0, or -1 with errno.
///
/// # Errors
/// As csync(). EBADF: fd is no queue.
#[unsafe(no_mangle)]
pub extern "C" fn _csync_all(fd: c_int) -> c_int {
    errno::status(process::get().channel(fd).and_then(|channel| sync::all(&channel)))
}

/// post_handlers() of one queue (fd, or -1 for the default one). How many, or -1 with errno.
///
/// # Errors
/// EBADF: fd is no queue.
#[unsafe(no_mangle)]
pub extern "C" fn _post_handlers(fd: c_int) -> c_int {
    let count = process::get().channel(fd).map(|channel| channel.run_handlers());
    errno::value(count.map(|count| c_int::try_from(count).unwrap_or(c_int::MAX)))
}

/// Gives up the copy that filled the descriptor: what nobody depends on is not made, and its
/// destination holds anything. Neither range is touched any more when this returns. Its handler
/// runs nevertheless. 0, or -1 with errno.
///
/// # Errors
/// EBADF: fd is no queue. EINVAL: the descriptor is NULL, or of another queue.
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

/// Makes a queue that holds len tasks at least; its file descriptor, or -1 with errno. Order is
/// kept within a queue only. Where no service runs, copies of the queue are made at once. The
/// descriptor is readable when handlers of the queue may be due, until _post_handlers(fd).
///
/// # Errors
/// EINVAL: len is 0, or more than the process's queues hold (queue_len, 1024 if not set). EMFILE:
/// there are 256 queues, or the process has no descriptors left. ENOMEM: no memory.
#[unsafe(no_mangle)]
pub extern "C" fn copier_create_queue(len: usize) -> c_int {
    let add = |process: &Process| process.queues.add(process.new_channel(len)?);
    errno::value(add(process::get()))
}

/// copier_create_queue(): a queue is in the program's memory anyway.
///
/// # Errors
/// As copier_create_queue().
#[unsafe(no_mangle)]
pub extern "C" fn copier_create_mapped_queue(len: usize) -> c_int {
    copier_create_queue(len)
}

/// Waits for a queue's copies, runs its handlers, and closes it. 0, or -1 with errno.
///
/// A queue that is closed by close(2) is settled when the next one is made.
///
/// # Errors
/// EBADF: fd is no queue. As csync(), but the queue is closed.
#[unsafe(no_mangle)]
pub extern "C" fn copier_close_queue(fd: c_int) -> c_int {
    let removed = process::get().queues.remove(fd);
    errno::status(removed.and_then(|channel| sync::all(&channel)))
}

/// Sets what concerns the whole process. 0, or -1 with errno: then nothing is set.
///
/// # Errors
/// EINVAL, E2BIG: the options make no sense. EBUSY: one of them can be set only before the first
/// copy.
///
/// # Safety
/// opts is NULL or such a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_copier_opt(opts: *const Opt) -> c_int {
    // SAFETY: the caller's promise.
    errno::status(unsafe { read_sized(opts) }.and_then(|opt| process::set(&opt)))
}

/// Wakes the service's threads: copies are coming. 0, or -1 with errno.
///
/// # Errors
/// EBADF: fd is neither -1 nor a queue.
#[unsafe(no_mangle)]
pub extern "C" fn copier_awaken(fd: c_int) -> c_int {
    let process = process::get();
    errno::status(process.channel(fd).map(|channel| channel.ring()))
}

/// What a queue (fd, or -1 for the default one) has done. stats->size is set by the caller. 0, or
/// -1 with errno.
///
/// # Errors
/// EBADF: fd is no queue. EINVAL: stats is NULL, or smaller than this structure.
///
/// # Safety
/// stats is NULL, or as large as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_get_stats(fd: c_int, stats: *mut CopierStats) -> c_int {
    let get = || {
        // SAFETY: the caller's promise; the first field is the size.
        if stats.is_null() || (unsafe { (*stats).size } as usize) < size_of::<CopierStats>() {
            return Err(libc::EINVAL);
        }
        let channel = process::get().channel(fd)?;
        let read = channel.stats();
        let now = CopierStats {
            size: size_of::<CopierStats>() as u32,
            served: channel.is_served().into(),
            at_once: read.at_once,
            queued: read.queued,
            queued_bytes: read.queued_bytes,
            helped_bytes: read.helped_bytes,
            waits: read.waits,
        };
        // SAFETY: it is not null and large enough.
        unsafe { stats.write(now) };
        Ok(())
    };
    errno::status(get())
}

/// Bytes that the descriptors of shm_len bytes in segments of segment_len take; 0 where the lengths
/// make no sense: segments are powers of two, 64 to 2^30, at most 2^24 of them.
#[unsafe(no_mangle)]
pub extern "C" fn copier_shm_descr_size(shm_len: usize, segment_len: usize) -> usize {
    descriptor::size(shm_len, segment_len).unwrap_or(0)
}

/// Makes zeroed or used memory into descriptors of shm_len bytes in segments of segment_len; one of
/// the processes does it, before any binds them. 0, or -1 with errno.
///
/// # Errors
/// EINVAL: the lengths make no sense, or the address is not a multiple of 8.
///
/// # Safety
/// There are copier_shm_descr_size() bytes at descr, and nobody uses them.
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
/// are told to all processes that have bound it, and csync() of its bytes waits for them, whichever
/// process makes them; one process copies at a time. 0, or -1 with errno.
///
/// # Errors
/// EINVAL: descr is not what copier_shm_descr_init() made for such segments, or shm overlaps
/// another memory that is bound. ENOSPC: 64 memories are bound.
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
    errno::status(unsafe { shm::bind(shm.addr(), descr.cast(), segment_len) })
}

/// Undoes shm_descr_bind(), when the copies of this process into the memory are over. 0, or -1 with
/// errno.
///
/// # Errors
/// EINVAL: nothing is bound there.
#[unsafe(no_mangle)]
pub extern "C" fn shm_descr_unbind(shm: *mut c_void) -> c_int {
    errno::status(shm::unbind(shm.addr()))
}

/// What an error number of this library means, in words; a constant string.
#[unsafe(no_mangle)]
pub extern "C" fn copier_strerror(errnum: c_int) -> *const c_char {
    let text = match errnum {
        0 => c"no error",
        libc::EFAULT => c"a copy met an address that is not mapped, or may not be accessed",
        libc::EINVAL => c"an argument makes no sense, or a copy's ranges overlap or wrap",
        libc::E2BIG => c"a structure asks for what this version of the library does not know",
        libc::EBADF => c"the file descriptor is no queue of this process",
        libc::EBUSY => c"this can be set only before the first copy",
        libc::EAGAIN => c"the bytes are not there yet",
        libc::ENOTSUP => c"whether the bytes are there cannot be said without waiting",
        libc::EMFILE => c"there are as many queues, or open files, as there may be",
        libc::ENOSPC => c"there are as many bound shared memories as there may be",
        libc::ENOMEM => c"no memory, or the service has as many queues as it may have",
        libc::EOWNERDEAD => c"the process that copied into the shared memory has died",
        libc::EIO => c"the copy failed",
        _ => c"not an error of this library: see strerror(3)",
    };
    text.as_ptr()
}

/// The library's version, as a constant string: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn copier_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
