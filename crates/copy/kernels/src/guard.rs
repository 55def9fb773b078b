//! Fault guard: turns a bad address in a copy loop into an error of that copy.
//!
//! A copy service copies between addresses from other parties. A check in advance is not enough,
//! because a mapping can disappear in between (Copier, SOSP 2025, §4.5.4 pins the pages, which a
//! process cannot do). So SIGSEGV and SIGBUS have a handler. If the faulting instruction is in one
//! of our copy loops, the thread resumes at a recovery label that copies as much as possible and
//! returns the number of copied bytes. Every other fault goes to the previous handler of the
//! signal, or to the default action if there was none. A copy has no overhead for this: the loops
//! are the same, and no setup is needed.
//!
//! The handler uses the registers of the interrupted thread and a few words that are written
//! before it is installed; it does not allocate, lock, or access thread-local storage. It may run
//! on any thread and within any other signal's handler. All signals are blocked while it runs:
//! another handler could copy and fault too, and an alternative stack has no room for three frames
//! on processors with large registers. The previous handler runs with the same mask as without
//! this guard.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::arch;
use crate::kernel;
use crate::routine::{Hint, Kernel, Raw, Routine};

/// Signals for bad addresses.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Maximum length of an attempted copy, in bytes: more than any address space has.
const GUARDED_BYTES_MAX: usize = usize::MAX >> 2;

/// Kind of a bad address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// No memory is mapped.
    NotMapped = 1,
    /// The memory may not be read or written in this way.
    NoPermission = 2,
    /// A mapping has no memory behind it: the file ends before, or the memory is broken.
    Bus = 3,
}

impl Kind {
    fn from_raw(raw: usize) -> Kind {
        match raw {
            2 => Kind::NoPermission,
            3 => Kind::Bus,
            _ => Kind::NotMapped,
        }
    }
}

/// A copy met a bad address: the fault of the party that gave the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address:#x} cannot be used for the copy ({kind:?}), {done_bytes_min} bytes are \
     copied; name memory that is mapped until the copy is done"
)]
pub struct Fault {
    /// The first unusable byte, in the source or in the destination.
    pub address: usize,
    /// The kind of fault.
    pub kind: Kind,
    /// Minimum number of copied bytes, from the first. The number is exact, and nothing behind it
    /// is written, unless the mapping changed during the copy.
    pub done_bytes_min: usize,
}

/// Error of [`install`].
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There are no guarded loops for this processor.
    #[error("this architecture has no guarded copy loops; validate addresses, and trust them")]
    Architecture,
    /// The kernel refused.
    #[error("signal {signal} cannot be handled: {source}; is sigaction forbidden here?")]
    Kernel {
        /// Number of the signal.
        signal: i32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Proof that the handlers are installed, which guarded copies require.
#[derive(Clone, Copy, Debug)]
pub struct Guard(());

impl Guard {
    /// Copies `len` bytes, up to the first byte that cannot be copied.
    ///
    /// # Errors
    /// [`Fault`] for any bad address. Ranges that wrap around the end of the address space are
    /// refused before anything is copied.
    ///
    /// # Safety
    /// The addresses may be arbitrary, but every writable byte of `dst` is overwritten: no
    /// reference may point there, and the program must not rely on its contents. The ranges do not
    /// overlap, or the caller ignores the contents of `dst` afterwards. SIGSEGV and SIGBUS are not
    /// blocked in this thread (otherwise the kernel ends the process, see [`unblock`]), and their
    /// handlers are still those of [`install`].
    #[inline(always)]
    pub unsafe fn copy_guarded(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        hint: Hint,
    ) -> Result<(), Fault> {
        let routine = kernel::chosen(&kernel::GUARDED, len, hint);
        // SAFETY: guaranteed by the caller; that table contains guarded routines only.
        unsafe { guarded(routine, dst, src, len) }
    }

    /// As [`Guard::copy_guarded`], with a loop of the caller's choice.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Panics if the loop cannot be guarded.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn copy_guarded_by(
        &self,
        kernel: &Kernel,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), Fault> {
        assert!(kernel.is_guarded(), "{} is not our code", kernel.name());
        // SAFETY: guaranteed by the caller; the kernel is guarded.
        unsafe { guarded(kernel.routine(), dst, src, len) }
    }
}

/// # Safety
/// As for [`Guard::copy_guarded`]; the routine is one of our own.
#[inline(always)]
unsafe fn guarded(routine: Routine, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    let wraps = |from: usize| from.checked_add(len).is_none();
    if len > GUARDED_BYTES_MAX || wraps(dst.addr()) || wraps(src.addr()) {
        return Err(Fault { address: usize::MAX, kind: Kind::NotMapped, done_bytes_min: 0 });
    }
    // SAFETY: our routines access `dst` and `src` within `len` only, and keep the invariants of
    // their file, which need no valid address while the handlers are installed.
    let raw = unsafe { routine(dst, src, len) };
    if raw.is_done() { Ok(()) } else { Err(explain(raw, dst.addr(), src.addr(), len)) }
}

#[cold]
fn explain(raw: Raw, dst: usize, src: usize, len: usize) -> Fault {
    let done_bytes_min = len - raw.left_bytes();
    let address = blamed(raw.address, src + done_bytes_min, dst + done_bytes_min);
    Fault { address, kind: Kind::from_raw(raw.kind()), done_bytes_min }
}

/// Returns the faulting byte. The loop came as far as the two bytes `from` and `to`. The kernel's
/// `address` may be rounded down, without its tag, or 0 for an address that no page table can
/// hold.
fn blamed(address: usize, from: usize, to: usize) -> usize {
    /// On most machines all addresses of programs are below this, and only others are reported as
    /// 0.
    const HALF: usize = 1 << 47;
    /// The top byte is a tag, and the smallest page has 4 KiB.
    const PAGE: usize = !(0xff << (usize::BITS - 8)) & !0xfff;
    if address == from || address == to {
        address
    } else if address == 0 {
        if from < HALF { to } else { from }
    } else if address & PAGE == from & PAGE {
        from
    } else if address & PAGE == to & PAGE {
        to
    } else {
        address
    }
}

/// Unblocks the two signals in this thread, for programs that have all signals blocked.
///
/// # Errors
/// The kernel's.
pub fn unblock() -> io::Result<()> {
    match change_mask(libc::SIG_UNBLOCK, SIGNALS.into_iter()) {
        0 => Ok(()),
        refused => Err(io::Error::from_raw_os_error(refused)),
    }
}

/// Installs the handlers, once in a process; later calls only return the proof. Takes a lock, so
/// it must not be called from signal handlers.
///
/// A handler that is installed later and does not call this one ends the protection:
/// [`Guard::is_in_place`] detects that.
///
/// # Errors
/// [`InstallError`]
pub fn install() -> Result<Guard, InstallError> {
    static INSTALLED: Mutex<[bool; SIGNALS.len()]> = Mutex::new([false; SIGNALS.len()]);
    if !arch::GUARDED {
        return Err(InstallError::Architecture);
    }
    let mut installed = INSTALLED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (at, signal) in SIGNALS.into_iter().enumerate() {
        // Never install twice: if another handler now calls ours, the two would call each other
        // endlessly.
        if !installed[at] {
            take_over(signal, &PREVIOUS[at])
                .map_err(|source| InstallError::Kernel { signal, source })?;
            installed[at] = true;
        }
    }
    Ok(Guard(()))
}

impl Guard {
    /// Returns true if our handlers are still installed. Two system calls.
    pub fn is_in_place(&self) -> bool {
        SIGNALS.into_iter().all(|signal| {
            // A null pointer changes nothing.
            matches!(exchange(signal, ptr::null()), Ok(now) if now.sa_sigaction == handler())
        })
    }
}

/// Previous action of a signal.
struct Previous {
    /// A handler's address, SIG_DFL or SIG_IGN.
    action: AtomicUsize,
    flags: AtomicI32,
    /// Signals that are blocked while its handler runs; signal 1 is bit 0.
    mask: AtomicU64,
}

/// Number of signals in Linux.
const SIGNALS_MAX: c_int = 64;

impl Previous {
    const fn none() -> Previous {
        Previous {
            action: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn store(&self, signal: c_int, action: &libc::sigaction) {
        // SAFETY: the mask is initialised, and the signal numbers exist.
        let is_blocked = |other: &c_int| unsafe { libc::sigismember(&action.sa_mask, *other) == 1 };
        let own = |other: &c_int| *other == signal && action.sa_flags & libc::SA_NODEFER == 0;
        let mask = (1..=SIGNALS_MAX)
            .filter(|other| own(other) || is_blocked(other))
            .fold(0, |mask, other| mask | 1_u64 << (other - 1));
        self.mask.store(mask, Ordering::SeqCst);
        self.flags.store(action.sa_flags, Ordering::SeqCst);
        self.action.store(action.sa_sigaction, Ordering::SeqCst);
    }

    /// Blocks the signals that the previous handler expects to be blocked, until ours returns.
    /// Async-signal-safe.
    ///
    /// # Safety
    /// `context` is the `ucontext_t` that the kernel passed to the running handler.
    unsafe fn block(&self, context: *const c_void) {
        // Only the first word of the C library's type is the kernel's.
        // SAFETY: the caller guarantees the context; the address is within this structure, and is
        // read as the word that the kernel wrote.
        let interrupted = unsafe {
            let mask = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
            mask.cast::<u64>().read_unaligned()
        };
        let mask = interrupted | self.mask.load(Ordering::SeqCst);
        let blocked = (1..=SIGNALS_MAX).filter(|other| mask >> (other - 1) & 1 == 1);
        change_mask(libc::SIG_SETMASK, blocked);
    }
}

/// Changes the blocked signals of this thread; returns an error number, or 0. Async-signal-safe.
fn change_mask(how: c_int, signals: impl Iterator<Item = c_int>) -> c_int {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises `mask` before anything reads it, and a null pointer means
    // that the old mask is not requested.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(mask.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, mask.as_ptr(), ptr::null_mut())
    }
}

static PREVIOUS: [Previous; SIGNALS.len()] = [Previous::none(), Previous::none()];

fn handler() -> libc::sighandler_t {
    on_fault as *const () as libc::sighandler_t
}

fn take_over(signal: c_int, previous: &Previous) -> io::Result<()> {
    let before = exchange(signal, ptr::null())?;
    // Stored before our handler can run for the first time.
    previous.store(signal, &before);
    let mut ours = default_action();
    ours.sa_sigaction = handler();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_RESTART;
    // SAFETY: `ours` is a complete action with a mask to fill.
    unsafe { libc::sigfillset(&mut ours.sa_mask) };
    let replaced = exchange(signal, &ours)?;
    // Another thread may have installed a handler in between.
    previous.store(signal, &replaced);
    Ok(())
}

/// Installs an action, or none if it is null; returns the previous one.
fn exchange(signal: c_int, new: *const libc::sigaction) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `new` is null or a complete action, whose handler is `on_fault` or the default;
    // `before` is writable.
    if unsafe { libc::sigaction(signal, new, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it wrote the old action.
    Ok(unsafe { before.assume_init() })
}

/// Returns the kind of fault; `None` if the signal was not caused by an instruction.
fn kind(signal: c_int, code: c_int) -> Option<Kind> {
    // Broken memory that has not been accessed yet (BUS_MCEERR_AO of <asm-generic/siginfo.h>).
    const EARLY_WARNING: c_int = 5;
    match (signal, code) {
        // Sent by a process.
        (_, ..=0) => None,
        (libc::SIGBUS, EARLY_WARNING) => None,
        (libc::SIGBUS, _) => Some(Kind::Bus),
        (_, SEGV_MAPERR | SI_KERNEL) => Some(Kind::NotMapped),
        _ => Some(Kind::NoPermission),
    }
}

/// Nothing is mapped (<asm-generic/siginfo.h>).
const SEGV_MAPERR: c_int = 1;
/// The processor refused before it looked for a mapping: a non-canonical address.
const SI_KERNEL: c_int = 0x80;

/// The handler of both signals.
///
/// # Safety
/// Only the kernel calls it, with a valid `siginfo_t` and `ucontext_t`.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's `info` is valid during the handler.
    let code = unsafe { (*info).si_code };
    let kind = kind(signal, code);
    if let Some(kind) = kind {
        let address = match code {
            SI_KERNEL => 0,
            // SAFETY: signals with these codes carry an address.
            _ => unsafe { (*info).si_addr() }.addr(),
        };
        // SAFETY: the kernel's context of the interrupted thread, in its handler.
        if unsafe { arch::divert(context, kind as usize, address) } {
            return;
        }
    }
    // SAFETY: the kernel's arguments are passed on unchanged.
    unsafe { chain(signal, info, context, kind.is_some()) };
}

/// Applies the previous action of the signal. `at_fault`: an instruction of this thread is the
/// cause, and is repeated when the handler returns.
///
/// # Safety
/// As for [`on_fault`].
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, at_fault: bool) {
    let previous = &PREVIOUS[usize::from(signal == SIGNALS[1])];
    let flags = previous.flags.load(Ordering::SeqCst);
    let action = match flags & libc::SA_RESETHAND {
        0 => previous.action.load(Ordering::SeqCst),
        _ => previous.action.swap(libc::SIG_DFL, Ordering::SeqCst),
    };
    match action {
        // A fault cannot be ignored: the kernel applies the default action too.
        libc::SIG_IGN if !at_fault => {}
        libc::SIG_IGN | libc::SIG_DFL => default(signal, at_fault),
        action => {
            // SAFETY: the kernel's context, in its handler.
            unsafe { previous.block(context) };
            // SAFETY: the program installed this address as a handler with these arguments.
            unsafe { call(action, flags, signal, info, context) };
        }
    }
}

/// Calls a handler by its address.
///
/// # Safety
/// `action` and `flags` were given to `sigaction` together; for the rest, as for [`on_fault`].
unsafe fn call(
    action: usize,
    flags: c_int,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    type Short = unsafe extern "C" fn(c_int);
    type Long = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: the caller guarantees that the flag matches the kind of handler at this address.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            std::mem::transmute::<usize, Long>(action)(signal, info, context);
        } else {
            std::mem::transmute::<usize, Short>(action)(signal);
        }
    }
}

/// Restores the default action, which ends the process, and triggers it.
fn default(signal: c_int, at_fault: bool) {
    // This cannot fail for a signal that was handled a moment ago. If it did, the fault would
    // repeat endlessly, which stops the thread as well.
    let _ = exchange(signal, &default_action());
    if !at_fault {
        // SAFETY: no memory is involved. The signal is pending until this handler returns.
        unsafe { libc::raise(signal) };
    }
}

fn default_action() -> libc::sigaction {
    // SAFETY: all zeroes is a valid action: SIG_DFL, no flags, an empty mask.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_was_sent_is_no_fault() {
        assert_eq!(kind(libc::SIGSEGV, libc::SI_USER), None);
        assert_eq!(kind(libc::SIGSEGV, libc::SI_QUEUE), None);
        assert_eq!(kind(libc::SIGBUS, 5), None);
        assert_eq!(kind(libc::SIGBUS, 2), Some(Kind::Bus));
        assert_eq!(kind(libc::SIGSEGV, 1), Some(Kind::NotMapped));
        assert_eq!(kind(libc::SIGSEGV, 2), Some(Kind::NoPermission));
        assert_eq!(kind(libc::SIGSEGV, 0x80), Some(Kind::NotMapped));
    }

    #[test]
    fn the_blamed_byte_is_one_of_the_two() {
        let (from, to) = (0x7000_0000_0123, 0x6000_0000_0456);
        assert_eq!(blamed(from, from, to), from);
        assert_eq!(blamed(to, from, to), to);
        assert_eq!(blamed(0x7000_0000_0000, from, to), from);
        assert_eq!(blamed(0x6000_0000_0000, from, to | 0x33 << 56), to | 0x33 << 56);
        assert_eq!(blamed(0, from, 1 << 60), 1 << 60);
        assert_eq!(blamed(0, 1 << 60, to), 1 << 60);
        assert_eq!(blamed(0x1000, from, to), 0x1000);
    }
}
