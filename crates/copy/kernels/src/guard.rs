//! A bad address in a copy loop becomes an error of that copy.
//!
//! A copy service copies between addresses that others name. Checking them first is not enough,
//! for a mapping can go away in between (Copier, SOSP 2025, §4.5.4 pins the pages, which a process
//! cannot). So SIGSEGV and SIGBUS have a handler: where the instruction at fault is one of our copy
//! loops, the thread goes on at a landing that copies what can be copied and returns how far it
//! came. Every other fault goes to whoever had the signal before, with the default action where
//! nobody had. A copy pays nothing for this: the loops are the same, and there is nothing to set
//! up.
//!
//! The handler uses the registers of the interrupted thread and a few words that are written before
//! it is installed; it neither allocates nor locks nor touches thread-local storage. It may run
//! on any thread and in the middle of any other signal's handler. All signals wait while it
//! runs: another handler could copy, and fault, too, and an alternative stack has no room for
//! three frames of processors with large registers. The handler that was there before finds the
//! mask that it would have found without us.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::arch;
use crate::kernel::{self, Hint, Kernel, Raw, Routine};

/// The signals of bad addresses.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The longest copy that is tried, in bytes: more than any address space has.
const GUARDED_BYTES_MAX: usize = usize::MAX >> 2;

/// Why an address could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// There is no memory.
    NotMapped = 1,
    /// There is memory that may not be read or written like this.
    NoPermission = 2,
    /// There is a mapping without memory behind it: the file ends before, or the memory is broken.
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

/// A copy met an address that it could not use: the fault of whoever named the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address:#x} cannot be used for the copy ({kind:?}), {done_bytes_min} bytes are \
     copied; name memory that is mapped until the copy is done"
)]
pub struct Fault {
    /// The first byte that could not be used, in the source or in the destination.
    pub address: usize,
    /// Why.
    pub kind: Kind,
    /// At least so many bytes were copied, the first ones. Exactly so many, and nothing behind
    /// them is written, unless the mapping changed during the copy.
    pub done_bytes_min: usize,
}

/// The handlers could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Our loops are not written for this processor.
    #[error("this architecture has no guarded copy loops; validate addresses, and trust them")]
    Architecture,
    /// The kernel's refusal.
    #[error("signal {signal} cannot be handled: {source}; is sigaction forbidden here?")]
    Kernel {
        /// Which signal.
        signal: i32,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The handlers are installed: guarded copies are possible.
#[derive(Clone, Copy, Debug)]
pub struct Guard(());

impl Guard {
    /// Copies `len` bytes, and stops at the first that cannot be.
    ///
    /// # Errors
    /// [`Fault`], whatever is wrong with the addresses. Ranges that go around the end of the
    /// address space are refused before anything is copied.
    ///
    /// # Safety
    /// The addresses may be anything, but what of `dst` can be written is overwritten: no reference
    /// may point there, and nothing may be there that the program relies on. The ranges do not
    /// overlap, or the caller does not care what is in `dst` afterwards. SIGSEGV and SIGBUS are not
    /// blocked in this thread (else the kernel ends the process, see [`unblock`]), and their
    /// handlers are still those that [`install`] made.
    #[inline]
    pub unsafe fn copy_guarded(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        hint: Hint,
    ) -> Result<(), Fault> {
        let routine = kernel::chosen(&kernel::GUARDED, len, hint);
        // SAFETY: the caller's promise; that table holds guarded routines only.
        unsafe { guarded(routine, dst, src, len) }
    }

    /// As [`Guard::copy_guarded`], with a loop of the caller's choice.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// The loop cannot be guarded.
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
        // SAFETY: the caller's promise; the kernel is guarded.
        unsafe { guarded(kernel.routine(), dst, src, len) }
    }
}

/// # Safety
/// As for [`Guard::copy_guarded`]; the routine is one of our own.
#[inline]
unsafe fn guarded(routine: Routine, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    let wraps = |from: usize| from.checked_add(len).is_none();
    if len > GUARDED_BYTES_MAX || wraps(dst.addr()) || wraps(src.addr()) {
        return Err(Fault { address: usize::MAX, kind: Kind::NotMapped, done_bytes_min: 0 });
    }
    // SAFETY: our routines touch `dst` and `src` within `len` only, and keep to the invariants of
    // their file, which need no valid address while the handlers are there.
    let raw = unsafe { routine(dst, src, len) };
    if raw.is_done() { Ok(()) } else { Err(explain(raw, dst.addr(), src.addr(), len)) }
}

#[cold]
fn explain(raw: Raw, dst: usize, src: usize, len: usize) -> Fault {
    let done_bytes_min = len - raw.left_bytes();
    let address = blamed(raw.address, src + done_bytes_min, dst + done_bytes_min);
    Fault { address, kind: Kind::from_raw(raw.kind()), done_bytes_min }
}

/// Which byte it was: the loop came as far as the two bytes `from` and `to`, and the kernel names
/// an `address`, which may be rounded down, without its tag, or 0 where no page table can hold it.
fn blamed(address: usize, from: usize, to: usize) -> usize {
    /// All addresses of programs are below on most machines, and no others are refused like this.
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

/// Lets the handlers run in this thread, where a program has all signals blocked.
///
/// # Errors
/// The kernel's.
pub fn unblock() -> io::Result<()> {
    match change_mask(libc::SIG_UNBLOCK, SIGNALS.into_iter()) {
        0 => Ok(()),
        refused => Err(io::Error::from_raw_os_error(refused)),
    }
}

/// Installs the handlers, once in a process; later calls only return the proof. Not for handlers of
/// signals: it locks.
///
/// A handler that somebody installs later without calling ours ends the protection:
/// [`Guard::is_in_place`] tells.
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
        // Never twice: if another handler is there now that calls ours, they would call each
        // other for ever.
        if !installed[at] {
            take_over(signal, &PREVIOUS[at])
                .map_err(|source| InstallError::Kernel { signal, source })?;
            installed[at] = true;
        }
    }
    Ok(Guard(()))
}

impl Guard {
    /// Whether the handlers are still ours. Two system calls.
    pub fn is_in_place(&self) -> bool {
        SIGNALS.into_iter().all(|signal| {
            // A null pointer changes nothing.
            matches!(exchange(signal, ptr::null()), Ok(now) if now.sa_sigaction == handler())
        })
    }
}

/// What a signal meant before.
struct Previous {
    /// A handler's address, SIG_DFL or SIG_IGN.
    action: AtomicUsize,
    flags: AtomicI32,
    /// The signals that are blocked while its handler runs; signal 1 is bit 0.
    mask: AtomicU64,
}

/// Linux has so many signals.
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

    /// Blocks what its handler would find blocked, until ours returns. Async-signal-safe.
    ///
    /// # Safety
    /// `context` is the `ucontext_t` that the kernel gave to the handler that is running.
    unsafe fn block(&self, context: *const c_void) {
        // Of the C library's type only the first word is the kernel's.
        // SAFETY: the caller's promise; a place in a structure that is there, read as the word
        // that the kernel wrote.
        let interrupted = unsafe {
            let mask = &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask;
            mask.cast::<u64>().read_unaligned()
        };
        let mask = interrupted | self.mask.load(Ordering::SeqCst);
        let blocked = (1..=SIGNALS_MAX).filter(|other| mask >> (other - 1) & 1 == 1);
        change_mask(libc::SIG_SETMASK, blocked);
    }
}

/// Changes what is blocked in this thread; an error number, or 0. Async-signal-safe.
fn change_mask(how: c_int, signals: impl Iterator<Item = c_int>) -> c_int {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `mask` is initialised by sigemptyset before anything reads it, and a null pointer
    // asks for no old mask.
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
    // Known before our handler can run for the first time.
    previous.store(signal, &before);
    let mut ours = default_action();
    ours.sa_sigaction = handler();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_RESTART;
    // SAFETY: `ours` is a whole action, with a mask to fill.
    unsafe { libc::sigfillset(&mut ours.sa_mask) };
    let replaced = exchange(signal, &ours)?;
    // Another thread may have installed one in between.
    previous.store(signal, &replaced);
    Ok(())
}

/// Installs an action, or none where it is null; returns the one before.
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

/// Why the instruction faulted; nothing where the signal is not about an instruction at all.
fn kind(signal: c_int, code: c_int) -> Option<Kind> {
    // Broken memory that nobody has touched yet (BUS_MCEERR_AO of <asm-generic/siginfo.h>).
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
/// The processor refused before it looked for a mapping: an address that cannot exist.
const SI_KERNEL: c_int = 0x80;

/// The handler of both signals.
///
/// # Safety
/// Only the kernel calls it, with a valid `siginfo_t` and `ucontext_t`.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's `info` is valid for the time of the handler.
    let code = unsafe { (*info).si_code };
    let kind = kind(signal, code);
    if let Some(kind) = kind {
        let address = match code {
            SI_KERNEL => 0,
            // SAFETY: faults carry an address, that is what these codes mean.
            _ => unsafe { (*info).si_addr() }.addr(),
        };
        // SAFETY: the kernel's context of the interrupted thread, in its handler.
        if unsafe { arch::divert(context, kind as usize, address) } {
            return;
        }
    }
    // SAFETY: what the kernel gave is passed on unchanged.
    unsafe { chain(signal, info, context, kind.is_some()) };
}

/// Does what would have happened without us. `at_fault`: this thread's instruction is the reason,
/// and comes again when the handler returns.
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
        // A fault cannot be ignored: the kernel takes the default action too.
        libc::SIG_IGN if !at_fault => {}
        libc::SIG_IGN | libc::SIG_DFL => default(signal, at_fault),
        action => {
            // SAFETY: the kernel's context, whose handler we are.
            unsafe { previous.block(context) };
            // SAFETY: the program installed this address, as a handler of what it is given.
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
    // SAFETY: the flag says which of the two kinds the address is, by the caller's promise.
    unsafe {
        if flags & libc::SA_SIGINFO != 0 {
            std::mem::transmute::<usize, Long>(action)(signal, info, context);
        } else {
            std::mem::transmute::<usize, Short>(action)(signal);
        }
    }
}

/// Restores the default action, which ends the process, and makes it happen.
fn default(signal: c_int, at_fault: bool) {
    // It cannot fail for a signal that was handled a moment ago, and if it did, the fault would
    // come again and again, which stops the thread as well.
    let _ = exchange(signal, &default_action());
    if !at_fault {
        // SAFETY: no memory is involved. The signal waits until this handler returns.
        unsafe { libc::raise(signal) };
    }
}

fn default_action() -> libc::sigaction {
    // SAFETY: all zeroes is an action: SIG_DFL, no flags, an empty mask.
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
