//! Threads of the library within a program.
//!
//! A signal for the process goes to any thread that does not block it. Its handler must run in a thread
//! of the program, as without the library: a program may wait in sigsuspend(2) for it.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Signals of a thread's own instructions: the kernel ends the process if they are blocked.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that blocks all signals but faults.
///
/// # Errors
/// Those of the system, if there is no other thread.
pub fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let ours = all_but_faults();
    // A thread has the mask of the one that starts it, from its first instruction on.
    let callers = exchange_mask(&ours)?;
    let thread = Builder::new().name(name).spawn(run);
    // A mask that was in force is valid.
    let _ = exchange_mask(&callers);
    thread
}

fn all_but_faults() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set before anything reads it; sigdelset takes a valid set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        set.assume_init()
    }
}

/// Sets the blocked signals of this thread; returns the previous ones.
fn exchange_mask(set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut previous = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets outlive the call, which reads the first and, if it succeeds, initialises the
    // second; only then it is read.
    unsafe {
        match libc::pthread_sigmask(libc::SIG_SETMASK, set, previous.as_mut_ptr()) {
            0 => Ok(previous.assume_init()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Numbers of the blocked signals of this thread, without those of real time.
    fn blocked() -> Vec<c_int> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a null pointer changes nothing; the call initialises the set, which sigismember reads.
        unsafe {
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
            assert_eq!(error, 0);
            let set = set.assume_init();
            (1..32).filter(|signal| libc::sigismember(&set, *signal) == 1).collect()
        }
    }

    #[test]
    fn a_thread_blocks_all_signals_but_faults_and_the_caller_keeps_its_own() {
        let before = blocked();
        let inside = spawn("copyd-test".to_owned(), blocked).unwrap().join().unwrap();
        let never = [libc::SIGKILL, libc::SIGSTOP];
        let expected: Vec<c_int> =
            (1..32).filter(|signal| !FAULTS.contains(signal) && !never.contains(signal)).collect();
        assert_eq!(inside, expected);
        assert_eq!(blocked(), before);
    }
}
