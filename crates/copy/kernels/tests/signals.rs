//! Effects of the handlers on the signals of the rest of the program. Each test runs in its own
//! process: this program again, with the name of a part in its environment.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use unlade_copy_kernels::guard::{self, Guard, Kind};
use unlade_copy_kernels::{Hint, kernel};

mod support;
use support::Pages;

const PART: &str = "UNLADE_COPYUNIT_PART";
const FINE: i32 = 42;

/// Runs the part in a child process, which executes only this test, and returns its exit status.
/// `None` in the child.
fn play(test: &str, part: fn(Guard)) -> Option<ExitStatus> {
    if std::env::var_os(PART).is_some_and(|name| name == test) {
        // The child is expected to crash, so disable core files.
        // SAFETY: the limit is valid during the call.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
        }
        part(guard::install().expect("the parent has looked"));
        std::process::exit(FINE);
    }
    if let Err(error) = guard::install() {
        println!("skipped: {error}");
        return None;
    }
    let mut child = Command::new(std::env::current_exe().expect("a test has a file"));
    child.args([test, "--exact", "--nocapture"]).env(PART, test);
    let output = child.output().expect("the child runs");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    print!("{}", String::from_utf8_lossy(&output.stderr));
    Some(output.status)
}

fn ends_with_signal(test: &str, signal: i32, part: fn(Guard)) {
    if let Some(status) = play(test, part) {
        assert_eq!(status.signal(), Some(signal), "{status:?}");
    }
}

fn ends_fine(test: &str, part: fn(Guard)) {
    if let Some(status) = play(test, part) {
        assert_eq!(status.code(), Some(FINE), "{status:?}");
    }
}

/// Returns an inaccessible page.
fn forbidden() -> Pages {
    let pages = Pages::new(64 << 10);
    pages.protect(0, 64 << 10, libc::PROT_NONE);
    pages
}

/// Makes a guarded copy that faults and recovers.
fn faults(guard: Guard, pages: &Pages) {
    let mut to = [0_u8; 300];
    // SAFETY: the target is an array of 300 bytes.
    let result = unsafe { guard.copy_guarded(to.as_mut_ptr(), pages.at(0), 300, Hint::Reuse) };
    assert_eq!(result.expect_err("it is not readable").kind, Kind::NoPermission);
}

/// Accesses a bad address in ordinary code.
fn crash() {
    // SAFETY: the access is invalid on purpose, to end the process.
    unsafe { ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
}

extern "C" fn leave(_: i32) {
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(FINE) };
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: i32) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

fn handle(signal: i32, handler: usize, flags: i32) {
    // SAFETY: all zeroes is a valid action, and the handlers of this file may run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    ends_with_signal("a_fault_elsewhere_still_ends_the_process", libc::SIGSEGV, |guard| {
        faults(guard, &forbidden());
        crash();
    });
}

#[test]
fn an_unguarded_copy_of_a_bad_address_ends_the_process() {
    let test = "an_unguarded_copy_of_a_bad_address_ends_the_process";
    ends_with_signal(test, libc::SIGSEGV, |guard| {
        faults(guard, &forbidden());
        let mut to = [0_u8; 300];
        // SAFETY: the access is invalid on purpose, to end the process.
        unsafe { unlade_copy_kernels::copy(to.as_mut_ptr(), forbidden().at(0), 300, Hint::Reuse) };
    });
}

#[test]
fn an_unguarded_copy_behind_the_end_of_a_file_ends_the_process() {
    let test = "an_unguarded_copy_behind_the_end_of_a_file_ends_the_process";
    ends_with_signal(test, libc::SIGBUS, |_| {
        let file = tempfile::tempfile().unwrap();
        let (pages, mut to) = (Pages::of_file(&file, 64 << 10), [0_u8; 300]);
        // SAFETY: the access is invalid on purpose, to end the process.
        unsafe { kernel::best().copy(to.as_mut_ptr(), pages.at(0), 300) };
    });
}

#[test]
fn a_sent_signal_ends_the_process() {
    let test = "a_sent_signal_ends_the_process";
    // The standard library's handler would treat a sent signal as a fault that repeats.
    before(test, libc::SIGBUS, libc::SIG_DFL, 0);
    ends_with_signal(test, libc::SIGBUS, |_| {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    });
}

/// Prepares a part that needs another handler before ours: the child installs it first.
fn before(test: &str, signal: i32, handler: usize, flags: i32) {
    if std::env::var_os(PART).is_some_and(|name| name == test) {
        handle(signal, handler, flags);
    }
}

#[test]
fn a_fault_elsewhere_reaches_the_handler_before_ours() {
    let test = "a_fault_elsewhere_reaches_the_handler_before_ours";
    before(test, libc::SIGSEGV, leave as *const () as usize, 0);
    ends_fine(test, |guard| {
        faults(guard, &forbidden());
        crash();
        // SAFETY: ends the process; the handler should have done so.
        unsafe { libc::_exit(1) };
    });
}

#[test]
fn a_handler_for_one_time_is_called_one_time() {
    let test = "a_handler_for_one_time_is_called_one_time";
    before(test, libc::SIGSEGV, count as *const () as usize, libc::SA_RESETHAND);
    ends_with_signal(test, libc::SIGSEGV, |guard| {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        faults(guard, &forbidden());
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let test = "an_ignored_signal_stays_ignored";
    before(test, libc::SIGSEGV, libc::SIG_IGN, 0);
    ends_fine(test, |guard| {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        faults(guard, &forbidden());
    });
}

#[test]
fn a_fault_cannot_be_ignored() {
    let test = "a_fault_cannot_be_ignored";
    before(test, libc::SIGSEGV, libc::SIG_IGN, 0);
    ends_with_signal(test, libc::SIGSEGV, |_| crash());
}

/// Mask that a handler observed; signal 1 is bit 0.
static FOUND: AtomicU64 = AtomicU64::new(0);

fn mask() -> u64 {
    // SAFETY: the set is written before it is read; nothing is changed.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set), 0);
        let bit = |signal| u64::from(libc::sigismember(&set, signal) == 1) << (signal - 1);
        // Without the two signals that some C libraries reserve.
        (1..32).map(bit).sum()
    }
}

extern "C" fn note_mask(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a handler of three arguments receives valid ones.
    let named = unsafe { (*info).si_signo };
    assert!(named == signal && !context.is_null());
    FOUND.store(mask(), Ordering::SeqCst);
}

#[test]
fn the_handler_before_ours_finds_the_mask_that_it_asked_for() {
    let test = "the_handler_before_ours_finds_the_mask_that_it_asked_for";
    if std::env::var_os(PART).is_some_and(|name| name == test) {
        // SAFETY: all zeroes is a valid action, and the handler may run at any time.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_mask as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaddset(&mut action.sa_mask, libc::SIGUSR2);
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
        }
    }
    ends_fine(test, |_| {
        let bits = |signals: &[i32]| signals.iter().fold(0, |sum, one| sum | 1_u64 << (one - 1));
        // SAFETY: blocks one signal, and sends another to this thread.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut());
            libc::raise(libc::SIGSEGV);
        }
        let wanted = bits(&[libc::SIGUSR1, libc::SIGUSR2, libc::SIGSEGV]);
        assert_eq!(FOUND.load(Ordering::SeqCst), wanted);
        assert_eq!(mask(), bits(&[libc::SIGUSR1]), "and all is as before afterwards");
    });
}

/// Sets a flag when it is dropped, also during a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Sends signals to this thread while it works, each when [`SEEN`] has counted the previous one.
fn pelt(signal: i32, signals: usize, mut work: impl FnMut()) {
    let (sent_all, gave_up) = (AtomicBool::new(false), AtomicBool::new(false));
    // SAFETY: the calls have no preconditions.
    let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sent in 0..signals {
                // SAFETY: sends a signal that this process handles.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
                while SEEN.load(Ordering::SeqCst) <= sent && !gave_up.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            }
            sent_all.store(true, Ordering::SeqCst);
        });
        let _over = Over(&gave_up);
        while !sent_all.load(Ordering::SeqCst) {
            work();
        }
    });
    assert_eq!(SEEN.load(Ordering::SeqCst), signals);
}

#[test]
fn signals_that_are_sent_during_copies_are_no_faults() {
    let test = "signals_that_are_sent_during_copies_are_no_faults";
    before(test, libc::SIGSEGV, count as *const () as usize, 0);
    ends_fine(test, |guard| {
        let (from, mut to) = (vec![7_u8; 1 << 18], vec![0_u8; 1 << 18]);
        pelt(libc::SIGSEGV, 300, || {
            to.fill(0);
            let (dst, src) = (to.as_mut_ptr(), from.as_ptr());
            // SAFETY: two vectors of this length.
            let done = unsafe { guard.copy_guarded(dst, src, from.len(), Hint::Reuse) };
            assert_eq!(done, Ok(()));
            assert!(to == from);
        });
    });
}

/// A handler that faults itself.
extern "C" fn fault_again(_: i32) {
    assert!(SEEN.fetch_add(1, Ordering::SeqCst) == 0, "called twice");
    crash();
}

#[test]
fn a_handler_before_ours_that_faults_ends_the_process() {
    let test = "a_handler_before_ours_that_faults_ends_the_process";
    before(test, libc::SIGSEGV, fault_again as *const () as usize, 0);
    ends_with_signal(test, libc::SIGSEGV, |guard| {
        faults(guard, &forbidden());
        crash();
    });
}

static NESTED: AtomicUsize = AtomicUsize::new(0);
static GUARD: OnceLock<Guard> = OnceLock::new();

/// A handler that copies from a bad address.
extern "C" fn nested(_: i32) {
    let guard = GUARD.get().expect("set before the first signal");
    let mut to = [0_u8; 64];
    let from = ptr::without_provenance(NESTED.load(Ordering::SeqCst));
    // SAFETY: the target is an array of 64 bytes.
    let result = unsafe { guard.copy_guarded(to.as_mut_ptr(), from, 64, Hint::Reuse) };
    SEEN.fetch_add(usize::from(result.is_err()), Ordering::SeqCst);
}

#[test]
fn handlers_of_other_signals_may_fault_in_copies_too() {
    ends_fine("handlers_of_other_signals_may_fault_in_copies_too", |guard| {
        let pages = forbidden();
        let guard = *GUARD.get_or_init(|| guard);
        NESTED.store(pages.at(0).addr(), Ordering::SeqCst);
        handle(libc::SIGUSR1, nested as *const () as usize, 0);
        pelt(libc::SIGUSR1, 300, || faults(guard, &pages));
    });
}

#[test]
fn a_thread_that_blocks_everything_can_unblock_faults() {
    ends_fine("a_thread_that_blocks_everything_can_unblock_faults", |guard| {
        // SAFETY: the set is filled before it is used.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
        }
        guard::unblock().unwrap();
        faults(guard, &forbidden());
    });
}

#[test]
fn a_handler_after_ours_is_noticed() {
    ends_fine("a_handler_after_ours_is_noticed", |guard| {
        assert!(guard.is_in_place());
        handle(libc::SIGBUS, leave as *const () as usize, 0);
        assert!(!guard.is_in_place());
        assert!(!guard::install().unwrap().is_in_place(), "never installed twice");
    });
}

#[test]
fn a_hole_in_the_address_space_is_not_mapped() {
    ends_fine("a_hole_in_the_address_space_is_not_mapped", |guard| {
        let pages = Pages::new(3 << 20);
        pages.unmap(1 << 20, 1 << 20);
        for bytes in [1, 100, 5000] {
            let (hole, good) = (pages.at((1 << 20) + 5), pages.at(0));
            // SAFETY: the mapped parts are memory of this test.
            let both = unsafe {
                let reading = guard.copy_guarded(good, hole, bytes, Hint::Reuse);
                [reading, guard.copy_guarded(hole, good, bytes, Hint::Reuse)]
            };
            for result in both {
                let fault = result.unwrap_err();
                assert_eq!((fault.address, fault.kind), (hole.addr(), Kind::NotMapped));
            }
        }
    });
}
