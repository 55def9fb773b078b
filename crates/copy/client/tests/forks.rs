//! Copies of a parent, seen from its child after fork(2). One test at a time: a fork while another
//! test allocates or installs something would copy a half-done state.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unlade_copy::{AttachError, Config, Copier, CopyOptions, Polling, Service, Token};

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
/// A delay so long that the copy is made only when it is needed.
const PUT_OFF: CopyOptions = CopyOptions { lazy_us: Some(u32::MAX), ..QUEUED };
const BYTES: usize = 1 << 20;
/// Copies that are pending at a fork: more than the service can make before it.
const COPIES: usize = 16;
/// A child that takes longer is considered hung.
const CHILD_MAX: Duration = Duration::from_secs(60);

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

/// Forks. The child runs `work` and ends with its result, 0 on success; it neither prints nor
/// unwinds into the test.
fn in_child(work: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child uses the clients, which support this, and allocates, which the C library
    // supports, and ends without the test's clean-up.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: it ends the process at once.
            unsafe { libc::_exit(done.unwrap_or(99)) }
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            Child(pid)
        }
    }
}

struct Child(i32);

impl Child {
    /// Waits for its end; a hung child is killed, and is a failure.
    #[track_caller]
    fn ends_well(self) {
        assert_eq!(self.status(), Some(0), "what the child says; None: it was ended");
    }

    fn status(&self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: it writes the status.
            let found = unsafe { libc::waitpid(self.0, &mut status, libc::WNOHANG) };
            if found == self.0 {
                return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            }
            if begin.elapsed() > CHILD_MAX {
                // SAFETY: a child of this test, which was not waited for yet.
                unsafe { libc::kill(self.0, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(self.0, &mut status, 0) };
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn filled(number: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 3 + number * 7) as u8).collect()
}

/// Submitted copies that are not synced.
struct Pending {
    sources: Vec<Vec<u8>>,
    destinations: Vec<Vec<u8>>,
    tokens: Vec<Token>,
}

fn submit(copier: &Copier, options: &CopyOptions) -> Pending {
    let sources: Vec<_> = (0..COPIES).map(filled).collect();
    let mut destinations = vec![vec![0u8; BYTES]; COPIES];
    let copies = sources.iter().zip(&mut destinations);
    let tokens = copies
        // SAFETY: the tests sync before they access either buffer.
        .map(|(src, dst)| unsafe { copier.submit(dst.as_mut_ptr(), src.as_ptr(), BYTES, options) })
        .collect();
    Pending { sources, destinations, tokens }
}

impl Pending {
    fn sync(&self, copier: &Copier, number: usize) -> bool {
        copier.sync(&self.tokens[number], 0..BYTES).is_ok()
    }

    fn is_right(&self) -> bool {
        self.sources == self.destinations
    }
}

#[test]
fn a_fork_with_a_queued_copy_pending_leaves_the_child_able_to_finish_it() {
    let _alone = one_at_a_time();
    let service = service();
    for options in [QUEUED, PUT_OFF] {
        let copier = Copier::new(service.attach().unwrap());
        let all = submit(&copier, &options);
        let by_token = in_child(|| match (0..COPIES).rev().all(|n| all.sync(&copier, n)) {
            true => i32::from(!all.is_right()),
            false => 2,
        });
        let by_address = in_child(|| {
            for destination in &all.destinations {
                for at in (0..BYTES).step_by(BYTES / 4) {
                    if copier.sync_range(destination.as_ptr().addr() + at, BYTES / 4).is_err() {
                        return 2;
                    }
                }
            }
            i32::from(!all.is_right())
        });
        by_token.ends_well();
        by_address.ends_well();
        in_child(|| i32::from(copier.sync_all().is_err() || !all.is_right())).ends_well();
        copier.sync_all().unwrap();
        assert!(all.is_right(), "the parent's copies");
    }
}

#[test]
fn a_client_that_is_dropped_in_a_child_completes_its_copies() {
    let _alone = one_at_a_time();
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let all = submit(&copier, &QUEUED);
    let mut copier = Some(copier);
    let child = in_child(|| {
        drop(copier.take());
        i32::from(!all.is_right())
    });
    child.ends_well();
    drop(copier);
    assert!(all.is_right(), "the parent's copies");
    // The service, too: the child must not wait for its threads.
    let mut service = Some(service);
    in_child(|| {
        drop(service.take());
        0
    })
    .ends_well();
}

#[test]
fn new_copies_in_a_child_work_with_the_parents_client_and_with_its_own() {
    let _alone = one_at_a_time();
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let before = submit(&copier, &QUEUED);
    let work = |copier: &Copier| {
        let all = submit(copier, &QUEUED);
        // A copy that depends on one that was pending at the fork.
        let mut last = vec![0u8; BYTES];
        let (dst, src) = (last.as_mut_ptr(), before.destinations[COPIES - 1].as_ptr());
        // SAFETY: both live, and are read after the sync.
        let token = unsafe { copier.submit(dst, src, BYTES, &QUEUED) };
        let is_there = copier.sync(&token, 0..BYTES).is_ok() && last == before.sources[COPIES - 1];
        let source = vec![5u8; BYTES];
        let mut scoped = vec![0u8; BYTES];
        let is_lent = copier.scope(|scope| {
            let pending = scope.copy(&source, &mut scoped);
            pending.sync(0..BYTES).is_ok_and(|bytes| bytes == source)
        });
        let is_over = copier.sync_all().is_ok();
        is_there && is_lent && is_over && all.is_right()
    };
    let child = in_child(|| {
        if !work(&copier) {
            return 1;
        }
        if !matches!(service.attach(), Err(AttachError::Stopping)) {
            return 2;
        }
        let Ok(own) = Service::start(Config::default()) else { return 3 };
        let Ok(attachment) = own.attach() else { return 4 };
        // The tasks of the parent's client are done, so another client may use the bytes.
        if !work(&Copier::new(attachment)) {
            return 5;
        }
        // And the child's child.
        in_child(|| i32::from(!work(&copier))).status().unwrap_or(6)
    });
    child.ends_well();
    assert!(work(&copier), "the parent goes on");
    drop(copier);
    assert!(before.is_right());
}

#[test]
fn handlers_of_what_was_pending_at_a_fork_run_in_the_parent_only() {
    static CALLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: usize) {
        CALLED.fetch_add(1, Ordering::Relaxed);
    }
    let _alone = one_at_a_time();
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let options = CopyOptions { handler: Some((count as *const () as usize, 0)), ..PUT_OFF };
    let all = submit(&copier, &options);
    let child = in_child(|| {
        let is_over = copier.sync_handlers().is_ok() && copier.run_handlers() == 0;
        if !is_over || CALLED.load(Ordering::Relaxed) != 0 {
            return 1;
        }
        // Handlers of the child's own copies do run.
        let mut own = vec![0u8; BYTES];
        // SAFETY: both live until it is synced, below.
        let token =
            unsafe { copier.submit(own.as_mut_ptr(), all.sources[1].as_ptr(), BYTES, &options) };
        let is_there = copier.sync(&token, 0..BYTES).is_ok() && own == all.sources[1];
        i32::from(!is_there || CALLED.load(Ordering::Relaxed) != 1 || !all.is_right())
    });
    child.ends_well();
    copier.sync_handlers().unwrap();
    assert_eq!(CALLED.load(Ordering::Relaxed), COPIES as u32);
    assert!(all.is_right());
}

#[test]
fn forks_at_any_moment_of_copies_and_threads() {
    let _alone = one_at_a_time();
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    for round in 0..12 {
        let all = submit(&copier, &QUEUED);
        // Another thread waits, and holds claims, at the fork.
        std::thread::scope(|scope| {
            scope.spawn(|| (0..COPIES).all(|number| all.sync(&copier, number)));
            for number in 0..round % 4 {
                all.sync(&copier, COPIES - 1 - number);
            }
            in_child(|| match (0..COPIES).all(|number| all.sync(&copier, number)) {
                true => i32::from(!all.is_right()),
                false => 2,
            })
            .ends_well();
        });
        assert!((0..COPIES).all(|number| all.sync(&copier, number)) && all.is_right());
    }
}
