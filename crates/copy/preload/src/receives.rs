//! `read` and `recv`, and the calls that tell whether a read may be shortened.
//!
//! A read is shortened only if
//! - the descriptor was given to epoll, level-triggered, so that the rest is announced again, and
//!   without EPOLLRDHUP, which may end the reading early;
//! - no edge-triggered descriptor and no SO_RCVLOWAT was seen in this process;
//! - the program has moved down the bytes of earlier long messages of this descriptor;
//! - the descriptor is a stream socket at this moment;
//! - the contest of the call site says that it pays, or takes a sample.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock::clock_ns;
use crate::contest::Way;
use crate::counters::{self, add};
use crate::options::{self, Choice};
use crate::real::{self, EpollCtl, Read, Recv, SetSockOpt};
use crate::sites::{SITES_MAX, Sites, vacant};
use crate::stream::{FIRST_READ_BYTES, Stream};
use crate::windows::Windows;

/// Reads into less room cost one comparison.
const READ_BYTES_MIN: usize = 1 << 10;
/// Reads into less room are never shortened.
const SHORTEN_BYTES_MIN: usize = 64 << 10;
/// Descriptors from here on are left alone.
const DESCRIPTORS_MAX: usize = 1 << 14;

/// State of each descriptor. It only guides decisions: a lost update costs time, never a byte.
static STREAMS: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
static SITES: Sites<Windows> = Sites([const { vacant(Windows::new()) }; SITES_MAX]);
/// Something was seen that forbids shortened reads.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// The last read of a thread.
#[derive(Clone, Copy)]
struct Last {
    fd: usize,
    end: usize,
    bytes: usize,
}

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last { fd: 0, end: 0, bytes: 0 }) };
}

/// Reads up to `len` bytes.
///
/// # Safety
/// As for `read` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov rcx, qword ptr [rsp]",
        "jmp {large}",
        min = const READ_BYTES_MIN,
        real = sym real::READ,
        large = sym large_read,
    )
}

/// Receives up to `len` bytes.
///
/// # Safety
/// As for `recv` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov r8, qword ptr [rsp]",
        "jmp {large}",
        min = const READ_BYTES_MIN,
        real = sym real::RECV,
        large = sym large_recv,
    )
}

unsafe extern "C-unwind" fn large_read(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    site: usize,
) -> isize {
    // SAFETY: the function has this type.
    let libc_read = unsafe { std::mem::transmute::<*mut (), Read>(real::READ.address()) };
    let plan = Plan::of(fd, len, site);
    // SAFETY: guaranteed by the caller; `asked` is at most `len`.
    let got = unsafe { libc_read(fd, buf, plan.asked(len)) };
    plan.finish(buf.addr(), len, got);
    got
}

unsafe extern "C-unwind" fn large_recv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    site: usize,
) -> isize {
    // SAFETY: the function has this type.
    let libc_recv = unsafe { std::mem::transmute::<*mut (), Recv>(real::RECV.address()) };
    // MSG_PEEK, MSG_WAITALL and others give a length another meaning.
    let plan = match flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        0 => Plan::of(fd, len, site),
        _ => Plan::NONE,
    };
    // SAFETY: guaranteed by the caller; `asked` is at most `len`.
    let got = unsafe { libc_recv(fd, buf, plan.asked(len), flags) };
    plan.finish(buf.addr(), len, got);
    got
}

/// Decision about one read.
#[derive(Clone, Copy)]
struct Plan {
    fd: usize,
    site: usize,
    /// Class of the messages; 0 if nothing is measured.
    class: u8,
    is_watched: bool,
    is_short: bool,
}

impl Plan {
    const NONE: Plan = Plan { fd: 0, site: 0, class: 0, is_watched: false, is_short: false };

    fn of(fd: c_int, len: usize, site: usize) -> Plan {
        if IS_FORBIDDEN.load(Ordering::Relaxed) {
            return Plan::NONE;
        }
        let Some(word) = usize::try_from(fd).ok().and_then(|fd| STREAMS.get(fd)) else {
            return Plan::NONE;
        };
        let stream = Stream::unpack(word.load(Ordering::Relaxed));
        if !stream.is_level {
            return Plan::NONE;
        }
        let mut plan = Plan { fd: fd as usize, site, is_watched: true, ..Plan::NONE };
        let choice = options::shortened_reads();
        if choice == Choice::Never || stream.class < options::message_class_min() {
            return plan;
        }
        plan.class = stream.class;
        let way = match choice {
            Choice::Always => Way::New,
            _ => plan.turn(),
        };
        plan.is_short = way == Way::New
            && len >= SHORTEN_BYTES_MIN
            && stream.begins_long(options::message_class_min())
            && is_stream_socket(fd);
        plan
    }

    /// The way of this read in the contest of its site.
    fn turn(&self) -> Way {
        let Some(site) = SITES.find(self.site, self.class) else {
            add(counters::SITES_REFUSED, 1);
            return Way::Old;
        };
        let cpu_ns = || clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let turn = site.with(|windows| {
            let turn = windows.turn(thread(), self.class, cpu_ns);
            (turn, windows.permille())
        });
        let ((way, ended), permille) = turn.unwrap_or(((Way::Old, None), 0));
        if let Some(winner) = ended {
            add(counters::READ_CONTESTS, 1);
            add(counters::READ_RATIOS_PERMILLE, permille);
            add(counters::READ_CONTESTS_WON, u64::from(winner == Way::New));
        }
        way
    }

    fn asked(&self, len: usize) -> usize {
        if self.is_short { len.min(FIRST_READ_BYTES) } else { len }
    }

    fn finish(&self, buf: usize, len: usize, got: isize) {
        if !self.is_watched || got <= 0 {
            return;
        }
        let bytes = got as usize;
        LAST.set(Last { fd: self.fd, end: buf + bytes, bytes });
        let word = &STREAMS[self.fd];
        let mut stream = Stream::unpack(word.load(Ordering::Relaxed));
        if self.is_short {
            add(counters::READS_SHORTENED, 1);
            stream.read_shortened(bytes);
        } else if let Some(length) = stream.read(len, bytes) {
            add(counters::PLACED_BYTES, length.saturating_sub(FIRST_READ_BYTES as u64));
        }
        word.store(stream.pack(), Ordering::Relaxed);
        if self.class > 0
            && let Some(site) = SITES.find(self.site, self.class)
        {
            site.with(|windows| windows.got(thread(), bytes as u64));
        }
    }
}

/// Number of this thread, not 0: the address of a variable of its own.
fn thread() -> usize {
    LAST.with(|last| last.as_ptr().addr())
}

fn is_stream_socket(fd: c_int) -> bool {
    let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: errno is a variable of this thread. The kernel writes at most `len` bytes to `kind`.
    // A program does not see the errno of a call that it did not make.
    let is_stream = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let failed = libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut len,
        );
        *errno = before;
        failed == 0 && kind == libc::SOCK_STREAM
    };
    if !is_stream {
        add(counters::NOT_STREAM, 1);
    }
    is_stream
}

/// Takes a move of bytes that end at address `end` to a lower address.
pub fn note_shift(end: usize) {
    let last = LAST.get();
    if last.end != end || last.bytes == 0 {
        return;
    }
    LAST.set(Last { fd: 0, end: 0, bytes: 0 });
    add(counters::SHIFTS, 1);
    let word = &STREAMS[last.fd];
    let mut stream = Stream::unpack(word.load(Ordering::Relaxed));
    stream.shifted(last.bytes);
    word.store(stream.pack(), Ordering::Relaxed);
}

/// Changes what an epoll instance watches.
///
/// # Safety
/// As for `epoll_ctl` of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the function has this type.
    let libc_ctl = unsafe { std::mem::transmute::<*mut (), EpollCtl>(real::EPOLL_CTL.address()) };
    // SAFETY: guaranteed by the caller.
    let result = unsafe { libc_ctl(epoll, operation, fd, event) };
    if result != 0 {
        return result;
    }
    let is_watching = operation == libc::EPOLL_CTL_ADD || operation == libc::EPOLL_CTL_MOD;
    // SAFETY: the kernel has read the event of such a call.
    if is_watching && unsafe { (*event).events } & libc::EPOLLET as u32 != 0 {
        add(counters::EDGE_TRIGGERED, 1);
        IS_FORBIDDEN.store(true, Ordering::Relaxed);
        return result;
    }
    let Some(word) = usize::try_from(fd).ok().and_then(|fd| STREAMS.get(fd)) else {
        add(counters::DESCRIPTORS_REFUSED, 1);
        return result;
    };
    let before = Stream::unpack(word.load(Ordering::Relaxed));
    // A program that looks at the peer's end may not read again after it.
    // SAFETY: as above.
    let is_level = is_watching && unsafe { (*event).events } & libc::EPOLLRDHUP as u32 == 0;
    let after = match operation {
        libc::EPOLL_CTL_ADD => Stream { is_level, ..Stream::default() },
        libc::EPOLL_CTL_MOD => Stream { is_level, ..before },
        _ => Stream::default(),
    };
    word.store(after.pack(), Ordering::Relaxed);
    result
}

/// Sets an option of a socket.
///
/// # Safety
/// As for `setsockopt` of the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && option == libc::SO_RCVLOWAT {
        add(counters::LOW_WATER_MARKS, 1);
        IS_FORBIDDEN.store(true, Ordering::Relaxed);
    }
    // SAFETY: the function has this type.
    let libc_set =
        unsafe { std::mem::transmute::<*mut (), SetSockOpt>(real::SETSOCKOPT.address()) };
    // SAFETY: guaranteed by the caller.
    unsafe { libc_set(fd, level, option, value, len) }
}

/// Releases the locks of the sites in a child after fork(2).
pub fn after_fork() {
    SITES.release();
}
