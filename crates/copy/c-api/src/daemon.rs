//! The exported C functions for the copy daemon: queues that it serves, memory shared with it, and
//! sockets passed to it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use unlade_copy::{Copier, Options, Refusal, Remote, RemoteError, SLOTS_MAX, SLOTS_MIN, SOCKET};

use crate::channel::Channel;
use crate::errno;
use crate::process;

/// Error number of a connection or request that failed.
fn number(error: &RemoteError) -> c_int {
    match error {
        RemoteError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        RemoteError::Refused(Refusal::NotAllowed) => libc::EACCES,
        RemoteError::Refused(Refusal::Full | Refusal::Stopping) => libc::EAGAIN,
        RemoteError::Refused(Refusal::Socket | Refusal::Unconnected) => libc::EOPNOTSUPP,
        RemoteError::Refused(Refusal::SocketLimit | Refusal::RegionLimit)
        | RemoteError::Regions(_) => libc::ENOSPC,
        RemoteError::Refused(Refusal::Exhausted) | RemoteError::Memory(_) => libc::ENOMEM,
        RemoteError::Untrusted { .. } => libc::EPERM,
        RemoteError::Layout(_) => libc::EINVAL,
        RemoteError::Refused(_) | RemoteError::Message(_) | RemoteError::Answer => libc::EPROTO,
    }
}

/// Calls a function with the client of a daemon.
fn with_daemon<T>(
    fd: c_int,
    call: impl FnOnce(&Copier, &Remote) -> Result<T, RemoteError>,
) -> Result<T, c_int> {
    let channel = process::get().channel(fd)?;
    let copier = channel.copier().ok_or(libc::EINVAL)?;
    let remote = copier.remote().ok_or(libc::EINVAL)?;
    call(copier, remote).map_err(|error| number(&error))
}

fn socket(fd: c_int) -> Result<BorrowedFd<'static>, c_int> {
    match fd {
        // SAFETY: not -1. The kernel checks that it is open during the call; it is not kept.
        0.. => Ok(unsafe { BorrowedFd::borrow_raw(fd) }),
        _ => Err(libc::EBADF),
    }
}

/// Creates a queue with a capacity of at least len tasks that the copy daemon serves: `unlade copyd`,
/// which listens at path, or at /run/unlade/copyd.sock if that is NULL. Returns its file descriptor,
/// or -1 with errno. The functions with a queue use it as any other; without the daemon, or after its
/// end, they copy, receive and send by themselves.
///
/// The daemon reaches memory of copier_alloc() and sockets of copier_pass() only. The descriptor never
/// becomes readable: call _post_handlers(fd) to run handlers. A child after fork(2) cannot use the
/// queue.
///
/// # Errors
/// EINVAL: len is 0 or above 4096. ENOENT, ECONNREFUSED: no daemon listens there. EACCES: it does not
/// permit this user. EPERM: it runs as neither root nor this user. EAGAIN: it has too many clients, or
/// is about to end. EPROTO: it is of another version. EMFILE, ENOMEM: as copier_create_queue().
///
/// # Safety
/// path is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn copier_create_daemon_queue(path: *const c_char, len: usize) -> c_int {
    let path = match path.is_null() {
        true => Path::new(SOCKET),
        // SAFETY: the caller's promise.
        false => Path::new(std::ffi::OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())),
    };
    let create = || {
        if !(1..=SLOTS_MAX as usize).contains(&len) {
            return Err(libc::EINVAL);
        }
        let slots = len.next_power_of_two().max(SLOTS_MIN as usize) as u32;
        let options = Options { slots, ..Options::default() };
        let remote = Remote::connect_with(path, &options).map_err(|error| number(&error))?;
        process::get().queues.add(Channel::of_daemon(remote))
    };
    errno::value(create())
}

/// Allocates len zeroed bytes that this process shares with the daemon of queue fd, so that it can
/// copy, receive and send them. Returns their address, or NULL with errno. They are never freed:
/// allocate few and large areas. Without the daemon this is ordinary memory.
///
/// # Errors
/// EBADF: fd is not a queue. EINVAL: no daemon serves it, or len is 0. ENOSPC: the daemon's limit of
/// areas or of bytes for a client. ENOMEM: no memory.
#[unsafe(no_mangle)]
pub extern "C" fn copier_alloc(fd: c_int, len: usize) -> *mut c_void {
    let allocate = || match len {
        0 => Err(libc::EINVAL),
        _ => with_daemon(fd, |_, remote| remote.memory(len)),
    };
    match allocate() {
        Ok(memory) => std::mem::ManuallyDrop::new(memory).as_mut_ptr().cast(),
        Err(number) => {
            errno::status(Err(number));
            std::ptr::null_mut()
        }
    }
}

/// Passes a connected TCP socket to the daemon of queue fd, which then makes the receives and sends of
/// _arecv() and _asend() in this queue whose bytes are in memory of copier_alloc(). Returns 0, or -1
/// with errno.
///
/// The daemon has the socket, too, until copier_forget(): the connection stays open after close(2)
/// alone, but not after shutdown(2). Sockets with urgent data must not be passed. No other thread or
/// process uses the socket while tasks of it are pending.
///
/// # Errors
/// EBADF: fd is not a queue, or sockfd is not open. EINVAL: no daemon serves the queue. EOPNOTSUPP:
/// the descriptor is not a connected TCP socket. ENOSPC: the daemon's limit of sockets for a client.
#[unsafe(no_mangle)]
pub extern "C" fn copier_pass(fd: c_int, sockfd: c_int) -> c_int {
    let pass = |socket| with_daemon(fd, |copier, _| copier.pass_socket(socket));
    errno::status(socket(sockfd).and_then(pass))
}

/// Completes the tasks of a socket, and has the daemon of queue fd close it: call it before close(2).
/// Returns 0, or -1 with errno. No effect for a socket that is not passed.
///
/// # Errors
/// EBADF: fd is not a queue. EINVAL: no daemon serves it. EPROTO: the daemon's answer is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn copier_forget(fd: c_int, sockfd: c_int) -> c_int {
    let forget = |socket| with_daemon(fd, |copier, _| copier.forget_socket(socket));
    errno::status(socket(sockfd).and_then(forget))
}
