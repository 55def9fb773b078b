//! Receives and sends: the calls of the program, as tasks of a queue.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use unlade_copy::{CopyOptions, RecvFlags, SendFlags, TASK_BYTES_MAX, Token};

use crate::abi::{self, DESCR_TOKENS, Descr, Func, TaskOpts};
use crate::channel::{Channel, Parts};
use crate::ranges::Access;
use crate::submit::{FILLED, SENT, fill};
use crate::{completion, errno, sanitize, shm};

/// Maximum number of bytes of one send: those whose tasks a descriptor has.
const SEND_BYTES_MAX: usize = DESCR_TOKENS * TASK_BYTES_MAX;

/// A requested receive or send.
pub(crate) struct SocketRequest<'d> {
    pub socket: c_int,
    pub bytes: *mut u8,
    pub len: usize,
    /// Flags of recv(2) or send(2).
    pub flags: c_int,
    pub opts: TaskOpts,
    pub func: Option<Func>,
    pub descr: Option<&'d mut Descr>,
    /// Address of the call site, or 0.
    pub site: usize,
}

impl SocketRequest<'_> {
    /// Creates a request without options.
    pub fn plain(
        socket: c_int,
        bytes: *mut u8,
        len: usize,
        flags: c_int,
        site: usize,
    ) -> SocketRequest<'static> {
        let opts = TaskOpts::default();
        SocketRequest { socket, bytes, len, flags, opts, func: None, descr: None, site }
    }

    fn socket(&self) -> Result<BorrowedFd<'static>, c_int> {
        match self.socket {
            // SAFETY: not -1. The kernel checks that it is open; the caller of the C function
            // promised to keep it so.
            0.. => Ok(unsafe { BorrowedFd::borrow_raw(self.socket) }),
            _ => Err(libc::EBADF),
        }
    }

    /// # Errors
    /// EINVAL: one of the flags is not among `known`.
    fn options(&self, known: u32) -> Result<CopyOptions, c_int> {
        if self.opts.flags & !known != 0 {
            return Err(libc::EINVAL);
        }
        let queued = self.opts.flags & abi::COPIER_QUEUED != 0;
        Ok(CopyOptions { queued, site: self.site, ..CopyOptions::default() })
    }

    /// Returns true if the call must be a plain one: the memory is bound, and other processes see only
    /// the bytes that are there.
    fn is_plain(&self) -> bool {
        shm::is_used()
    }

    /// Fills the descriptor, with one of its states.
    fn filled(self, state: u32, channel: &Channel, len: usize, parts: &Parts) {
        if let Some(descr) = self.descr {
            fill(descr, channel, self.bytes, len, parts);
            descr.state = state;
        }
    }
}

/// The error number of a socket's error.
fn number(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::UnexpectedEof => libc::ENODATA,
        _ => libc::EIO,
    })
}

fn count(len: usize) -> isize {
    isize::try_from(len).unwrap_or(isize::MAX)
}

/// Receives what the socket has, at most the length. Returns the number of bytes.
///
/// # Errors
/// EINVAL: an option is unknown. Otherwise the socket's error number.
///
/// # Safety
/// As for [`unlade_copy::Copier::receive`]; the function may be called with its argument once.
pub(crate) unsafe fn receive(
    channel: &Arc<Channel>,
    request: SocketRequest<'_>,
) -> Result<isize, c_int> {
    let socket = request.socket()?;
    let options = request.options(abi::COPIER_QUEUED | abi::COPIER_LAZY)?;
    sanitize::will_receive(request.bytes.addr(), request.len);
    let handler = completion::handler(request.func, 1, None);
    let options = CopyOptions { handler, ..options };
    let is_plain = request.is_plain();
    let flags = RecvFlags::from_bits_retain(request.flags as u32);
    let is_lazy = request.opts.flags & abi::COPIER_LAZY != 0 && handler.is_none() && !is_plain;
    let (bytes, len) = (request.bytes, request.len);
    // SAFETY: the caller's promise.
    let received = unsafe {
        match channel.copier() {
            Some(copier) if is_lazy && flags.is_empty() => copier
                .receive_lazily(socket, bytes, len)
                .map(|all| (all.count(), Some(*all.token()))),
            Some(copier) if !is_plain => copier
                .receive_with(socket, bytes, len, flags, &options)
                .map(|(count, token)| (count, Some(token))),
            Some(copier) => {
                copier.receive_now(socket, bytes, len, flags).map(|count| (count, None))
            }
            None => receive_now(request.socket, bytes, len, request.flags),
        }
    };
    let (received, token) = match received {
        Ok(received) => received,
        Err(error) => {
            // SAFETY: no task has it.
            handler.into_iter().for_each(|handler| unsafe { completion::forget(handler) });
            return Err(number(&error));
        }
    };
    let there = received.min(len);
    if sanitize::is_on() {
        sanitize::received(channel.id, bytes.addr(), there, request.site);
    }
    let is_task = token.is_some_and(|token| token.is_queued());
    if let Some(handler) = handler.filter(|_| !is_task) {
        // SAFETY: the handler has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    let tokens = token.into_iter().collect();
    let parts = Parts { tokens, part_bytes: TASK_BYTES_MAX, failure: None };
    request.filled(FILLED, channel, there, &parts);
    Ok(count(received))
}

/// Receives without a client of the service.
///
/// # Safety
/// As for [`receive`].
unsafe fn receive_now(
    socket: c_int,
    bytes: *mut u8,
    len: usize,
    flags: c_int,
) -> io::Result<(usize, Option<Token>)> {
    // SAFETY: the kernel writes at most `len` bytes, which are the caller's. AddressSanitizer
    // intercepts the function of the C library, and would report unsynced bytes.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, socket, bytes, len, flags, 0, 0) };
    let received = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    Ok((received, None))
}

/// Sends the bytes, at most [`SEND_BYTES_MAX`]. Returns their number.
///
/// # Errors
/// EINVAL: an option is unknown, or excludes another one. Otherwise the socket's error number, of a
/// send that was synchronous.
///
/// # Safety
/// As for [`unlade_copy::Copier::send`], and for COPIER_LAST_USE as for
/// [`unlade_copy::Copier::pass_on`]; the function may be called with its argument once.
pub(crate) unsafe fn send(
    channel: &Arc<Channel>,
    request: SocketRequest<'_>,
) -> Result<isize, c_int> {
    request.socket()?;
    let options = request.options(abi::COPIER_QUEUED | abi::COPIER_LAST_USE)?;
    let is_last = request.opts.flags & abi::COPIER_LAST_USE != 0;
    let has_flags = request.flags & !libc::MSG_NOSIGNAL != 0;
    if is_last && request.func.is_some() {
        return Err(libc::EINVAL);
    }
    let (bytes, len) = (request.bytes.addr(), request.len);
    let record = sanitize::will_send(channel.id, bytes, len, request.site);
    let sent = match has_flags || request.is_plain() || channel.copier().is_none() {
        // SAFETY: the caller's promise.
        true => unsafe { send_now(channel, request, record) },
        // SAFETY: the caller's promise.
        false => unsafe { send_tasks(channel, request, options, is_last, record) },
    };
    if record.is_some() {
        // The rest was not accepted.
        let sent = sent.map_or(0, |sent| sent.unsigned_abs().min(len));
        sanitize::synced(channel.id, bytes.wrapping_add(sent), len - sent, Access::Write);
    }
    sent
}

/// # Safety
/// As for [`send`].
unsafe fn send_tasks(
    channel: &Arc<Channel>,
    request: SocketRequest<'_>,
    options: CopyOptions,
    is_last: bool,
    record: Option<u64>,
) -> Result<isize, c_int> {
    let socket = request.socket()?;
    let Some(copier) = channel.copier() else { return Err(libc::EINVAL) };
    let len = request.len.min(SEND_BYTES_MAX);
    let parts_count = len.div_ceil(TASK_BYTES_MAX).max(1);
    let handler = completion::handler(request.func, parts_count, record);
    let options = CopyOptions { handler, ..options };
    let mut parts = Parts { part_bytes: TASK_BYTES_MAX, ..Parts::default() };
    let (mut sent, mut failure) = (0, None);
    for number in 0..parts_count {
        let at = number * TASK_BYTES_MAX;
        let (bytes, part) = (request.bytes.wrapping_add(at), (len - at).min(TASK_BYTES_MAX));
        // SAFETY: the caller's promise, for a part of the bytes.
        let token = unsafe {
            match is_last {
                true => copier.pass_on(socket, bytes, part),
                false => copier.send(socket, bytes, part, &options),
            }
        };
        match token {
            Ok(token) => {
                if let Some(handler) = handler.filter(|_| !token.is_queued()) {
                    // SAFETY: this part is over.
                    unsafe { completion::call(handler) };
                }
                parts.tokens.push(token);
                sent += part;
            }
            Err(error) => {
                failure = Some(self::number(&error));
                break;
            }
        }
    }
    match (failure, handler) {
        (Some(_), Some(handler)) if sent == 0 => {
            // SAFETY: no part was submitted.
            unsafe { completion::forget(handler) };
        }
        (Some(_), Some(handler)) => {
            // SAFETY: these parts were not submitted.
            unsafe { completion::skip_parts(handler, parts_count - parts.tokens.len()) };
        }
        _ => {}
    }
    if let Some(failure) = failure.filter(|_| sent == 0) {
        return Err(failure);
    }
    request.filled(SENT, channel, sent, &parts);
    Ok(count(sent))
}

/// Sends once in this thread.
///
/// # Safety
/// As for [`send`].
unsafe fn send_now(
    channel: &Arc<Channel>,
    request: SocketRequest<'_>,
    record: Option<u64>,
) -> Result<isize, c_int> {
    let socket = request.socket()?;
    let flags = SendFlags::from_bits_retain(request.flags as u32) | SendFlags::NOSIGNAL;
    let (bytes, len) = (request.bytes, request.len);
    let sent = match channel.copier() {
        // SAFETY: the caller's promise.
        Some(copier) => unsafe { copier.send_now(socket, bytes, len, flags) },
        None => {
            let (socket, flags) = (request.socket, flags.bits() as c_int);
            // SAFETY: the kernel reads at most `len` bytes, which are the caller's; see above.
            let sent = unsafe { libc::syscall(libc::SYS_sendto, socket, bytes, len, flags, 0, 0) };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        }
    };
    let sent = sent.map_err(|error| number(&error))?;
    if let Some(handler) = completion::handler(request.func, 1, record) {
        // SAFETY: the handler has one part, and this is it.
        unsafe { completion::call(handler) };
    }
    let parts = Parts { part_bytes: TASK_BYTES_MAX, ..Parts::default() };
    request.filled(SENT, channel, sent, &parts);
    Ok(count(sent))
}

/// Converts to the value of a C function: -1 with `errno` for an error.
pub(crate) fn value(result: Result<isize, c_int>) -> isize {
    result.unwrap_or_else(|number| errno::value(Err(number)) as isize)
}
