//! The sync of a failed task returns its error, however late: its slot may have been reused long
//! ago.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of runs.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unlade_copy::{
    Config, Copier, CopyError, CopyOptions, Inbound, Polling, Service, TaskFailure, Token,
};
use unlade_testkit::{Random, seeds};

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
const ENDED: Result<(), CopyError> = Err(CopyError::Failed(TaskFailure::Ended));
/// Bytes of each copy and receive.
const BYTES: usize = 64;
/// Tasks of a run; one in ten fails, which is below the limit of distinct failures.
const TASKS: usize = 3000;

fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// A submitted task: at most one destination in the arena each.
struct Submitted {
    token: Token,
    expected: Result<(), CopyError>,
    /// The error was reported, and is not reported again by address.
    is_told: bool,
}

/// A receive whose bytes another reader takes before it is made. Returns true if it took them.
///
/// # Safety
/// The destination has [`BYTES`] bytes, and stays.
unsafe fn fall_short(copier: &Copier, dst: *mut u8) -> (Token, bool) {
    let (mut far, mut near) = UnixStream::pair().unwrap();
    far.write_all(&[1; BYTES]).unwrap();
    // SAFETY: the caller's promise; the exclusive receive is violated on purpose.
    let received = unsafe { copier.receive_lazily(near.as_fd(), dst, BYTES) }.unwrap();
    drop(far);
    // Empty if the receive was synchronous, or the queue is full and the service has received
    // early.
    let stolen = near.read(&mut [0; BYTES]).unwrap();
    // Waits before the socket is closed, without reporting the error.
    copier.complete_for_write(dst.addr(), BYTES);
    (*received.token(), stolen == BYTES)
}

/// Copies, receives that fall short and sends to closed peers; syncs of all of them, at any time.
fn one_run(slots: u32, seed: u64) {
    let service = service();
    let copier = Copier::new(service.attach_with(1, slots).unwrap());
    let mut random = Random::new(seed);
    let (broken, peer) = UnixStream::pair().unwrap();
    drop(peer);
    let (source, mut arena) = (vec![7u8; BYTES], vec![0u8; TASKS * BYTES]);
    let (base, source) = (arena.as_mut_ptr(), source.as_ptr());
    let mut submitted: Vec<Submitted> = Vec::new();
    for number in 0..TASKS {
        // SAFETY: source and arena stay until all is completed; each copy has its own destination.
        let (token, failed) = unsafe {
            let dst = base.add(number * BYTES);
            match random.below(20) {
                0 => {
                    let (token, failed) = fall_short(&copier, dst);
                    (token, if failed { ENDED } else { Ok(()) })
                }
                1 => match copier.send(broken.as_fd(), source, BYTES, &QUEUED) {
                    Ok(token) => {
                        let pipe = std::num::NonZeroU16::new(32).unwrap();
                        (token, Err(CopyError::Failed(TaskFailure::Socket(pipe))))
                    }
                    // The queue is full: the copy was synchronous.
                    Err(_) => continue,
                },
                _ => (copier.submit(dst, source, BYTES, &QUEUED), Ok(())),
            }
        };
        let expected = if token.is_queued() { failed } else { Ok(()) };
        submitted.push(Submitted { token, expected, is_told: false });
        if random.below(8) == 0 {
            let number = random.below(submitted.len());
            let old = &mut submitted[number];
            assert_eq!(copier.sync(&old.token, 0..BYTES), old.expected, "task {number}");
            old.is_told = true;
        }
    }
    copier.complete_for_write(base.addr(), TASKS * BYTES);
    for _ in 0..2 {
        for (number, old) in submitted.iter().enumerate() {
            if !old.is_told && random.below(2) == 0 {
                continue;
            }
            assert_eq!(copier.sync(&old.token, 0..BYTES), old.expected, "task {number}");
        }
    }
    let untold = submitted.iter_mut().any(|old| !old.is_told && old.expected.is_err());
    let _ = copier.sync_all();
    assert_eq!((untold, copier.sync_all()), (true, Ok(())), "all are told");
}

#[test]
fn an_error_is_found_however_late_it_is_asked_for() {
    for seed in seeds(12) {
        println!("UNLADE_SEED={seed}");
        one_run([16, 128, 1024][seed as usize % 3], seed);
    }
}

/// Submits enough tasks to reuse every slot, and completes all.
fn go_round(copier: &Copier, slots: usize) {
    let (source, mut destination) = ([7u8; BYTES], [0u8; BYTES]);
    let mut queued = 0;
    while queued < slots + 1 {
        // SAFETY: both live until the sync.
        let token =
            unsafe { copier.submit(destination.as_mut_ptr(), source.as_ptr(), BYTES, &QUEUED) };
        copier.sync(&token, 0..BYTES).unwrap();
        queued += usize::from(token.is_queued());
    }
}

#[test]
fn who_asks_by_address_is_told_once_and_of_what_was_not_written_since() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let source = [7u8; BYTES];
    let mut buffers = vec![0u8; 4 * BYTES];
    let base = buffers.as_mut_ptr();
    let place = |number: usize| base.addr() + number * BYTES;
    // SAFETY: the buffers live until the end; all is synced before.
    unsafe {
        let tokens = [0, 1, 2, 3].map(|number| {
            let (token, failed) = fall_short(&copier, base.add(number * BYTES));
            assert!(failed);
            token
        });
        // Syncs of other tasks do not report it.
        copier.sync_range(source.as_ptr().addr(), BYTES).unwrap();
        go_round(&copier, 1024);
        assert_eq!(copier.sync_range(place(0), 10), ENDED);
        assert_eq!(copier.sync_range(place(0), 10), Ok(()));
        assert_eq!(copier.sync_for_write(place(0) + 10, 10), ENDED);
        assert_eq!(copier.sync(&tokens[1], 0..BYTES), ENDED);
        assert_eq!(copier.sync_range(place(1), BYTES), Ok(()), "the token told it");
        for options in [QUEUED, CopyOptions::default()] {
            let token = copier.submit(base.add(2 * BYTES), source.as_ptr(), BYTES, &options);
            assert_eq!(copier.sync_range(place(2), BYTES), Ok(()));
            assert_eq!(copier.sync(&token, 0..BYTES), Ok(()));
            assert_eq!(copier.sync(&tokens[2], 0..BYTES), ENDED);
        }
        assert_eq!(copier.sync_all(), ENDED);
        assert_eq!((copier.sync_all(), copier.sync_range(place(3), BYTES)), (Ok(()), Ok(())));
        assert_eq!(copier.sync(&tokens[3], 0..BYTES), ENDED);
    }
}

/// Receives until some queued bytes are taken away before they are received.
fn inbound_that_falls_short(service: &Service, copier: &Arc<Copier>) -> (Inbound, usize) {
    let mut stolen = vec![0u8; 64 << 10];
    for _ in 0..10_000 {
        let (mut far, near) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let mut thief = near.try_clone().unwrap();
        let bytes: Vec<u8> = (0..200_000).map(|at| (at % 249) as u8).collect();
        let _ = far.write(&bytes).unwrap();
        let mut inbound = Inbound::new(Arc::clone(copier), near, 400_000);
        inbound.set_always_queued(true);
        let count = inbound.receive().unwrap();
        thief.set_nonblocking(true).unwrap();
        let _ = thief.read(&mut stolen);
        drop(far);
        eventually("it is over", || inbound.is_ready(0..count));
        if service.counts().faults > 0 {
            return (inbound, count);
        }
    }
    panic!("the service was always faster");
}

#[test]
fn a_buffer_of_which_a_piece_failed_lends_none_behind_it() {
    let service = service();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    go_round(&copier, 1);
    let (mut inbound, count) = inbound_that_falls_short(&service, &copier);
    go_round(&copier, 1024);
    for _ in 0..2 {
        inbound.sync(count - 1..count).unwrap_err();
        inbound.sync(0..count).unwrap_err();
        go_round(&copier, 1024);
    }
    inbound.receive().unwrap_err();
    inbound.consume(count).unwrap_err();
    assert!(inbound.is_empty());
}
