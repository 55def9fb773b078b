//! Samples of the admission policy, observed through a client.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyOptions, Polling, Service};

const BYTES: usize = 64 << 10;
/// Work between a copy and its sync, much longer than the copy takes.
const WINDOW: Duration = Duration::from_micros(300);
/// Copies are synchronous until their cost and their window are known. Then queueing is tried.
const FIRST_AT_ONCE: u64 = 4;
/// Time within which a site must have queued a copy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of a service that stays awake.
fn with_client(work: impl FnOnce(&Copier)) {
    let config = Config { polling: Polling::Always, ..Config::default() };
    let service = Service::start(config).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let owned = copier.queue_owned(vec![1; 100], vec![0; 100]);
    let begin = Instant::now();
    while !owned.is_ready() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the service serves");
        std::thread::yield_now();
    }
    drop(owned);
    work(&copier);
}

/// Number of copies that [`with_client`] queues itself.
const FIRST_QUEUED: u64 = 1;

/// Submits a copy whose site decides, from its measurements, if the copy is queued.
fn copy(copier: &Copier, destination: &mut [u8], source: &[u8]) {
    let options = CopyOptions { site: 0x1000, ..CopyOptions::default() };
    // SAFETY: all tests sync before they access either buffer.
    let _token =
        unsafe { copier.submit(destination.as_mut_ptr(), source.as_ptr(), source.len(), &options) };
}

fn work() {
    let begin = Instant::now();
    while begin.elapsed() < WINDOW {
        std::hint::spin_loop();
    }
}

/// Runs `round` until a copy of its site was queued: the admission has learnt that its bytes are
/// used later than they are copied.
fn is_queued_at_last(copier: &Copier, mut round: impl FnMut()) {
    let begin = Instant::now();
    while copier.stats().read().queued == FIRST_QUEUED {
        assert!(begin.elapsed() < PATIENCE, "{:?}", copier.stats().read());
        round();
    }
    assert!(copier.stats().read().at_once >= FIRST_AT_ONCE);
}

/// Copies, and syncs by address through `sync` after some work.
fn teaches(sync: impl Fn(&Copier, usize)) {
    let (source, mut destination) = (vec![7u8; BYTES], vec![0u8; BYTES]);
    with_client(|copier| {
        is_queued_at_last(copier, || {
            copy(copier, &mut destination, &source);
            work();
            sync(copier, destination.as_ptr().addr());
            copier.sync_range(destination.as_ptr().addr(), BYTES).unwrap();
        });
    });
    assert_eq!(destination, source);
}

#[test]
fn bytes_that_are_used_at_once_are_not_queued() {
    let (source, mut destination) = (vec![7u8; BYTES / 4], vec![0u8; BYTES / 4]);
    with_client(|copier| {
        for _ in 0..4000 {
            copy(copier, &mut destination, &source);
            copier.sync_range(destination.as_ptr().addr(), 1).unwrap();
        }
        let stats = copier.stats().read();
        // A thread that is preempted between copy and sync has a window; four of five have none.
        assert_eq!(stats.queued, FIRST_QUEUED, "{stats:?}");
    });
}

#[test]
fn csync_by_address_teaches_the_admission() {
    teaches(|copier, address| copier.sync_range(address, BYTES).unwrap());
    teaches(|copier, address| copier.sync_for_write(address, BYTES).unwrap());
}

#[test]
fn csync_in_parts_is_recorded() {
    teaches(|copier, address| {
        for at in (0..BYTES).step_by(4096) {
            copier.sync_range(address + at, 4096).unwrap();
        }
    });
    // The rest is never synced.
    let (source, mut destinations) = (vec![7u8; BYTES], vec![vec![0u8; BYTES]; 8]);
    with_client(|copier| {
        let mut at = 0;
        is_queued_at_last(copier, || {
            at = (at + 1000) % BYTES;
            for destination in &mut destinations {
                copy(copier, destination, &source);
                work();
                copier.sync_range(destination.as_ptr().addr() + at, 10).unwrap();
            }
            copier.sync_all().unwrap();
        });
    });
}

#[test]
fn csync_by_another_thread_is_recorded() {
    teaches(|copier, address| {
        std::thread::scope(|scope| {
            scope.spawn(|| copier.sync_range(address, BYTES).unwrap());
        });
    });
}

#[test]
fn csync_of_several_copies_is_recorded() {
    let (source, mut destination) = (vec![7u8; BYTES], vec![0u8; 8 * BYTES]);
    with_client(|copier| {
        is_queued_at_last(copier, || {
            for part in destination.chunks_mut(BYTES) {
                copy(copier, part, &source);
            }
            work();
            copier.sync_range(destination.as_ptr().addr(), destination.len()).unwrap();
        });
    });
    assert!(destination.iter().all(|byte| *byte == 7));
}

/// Runs `work` on `bytes` bytes, and returns how many copies, receives and sends it has queued.
fn queued(copier: &Copier, bytes: usize, work: impl Fn(&Copier, &mut [u8])) -> u64 {
    let before = copier.stats().read().queued;
    work(copier, &mut vec![7; bytes]);
    copier.stats().read().queued - before
}

/// The limits of the admission: one byte less is synchronous.
#[test]
fn short_copies_receives_and_sends_are_synchronous() {
    let send = |copier: &Copier, bytes: &mut [u8]| {
        let (near, _far) = UnixStream::pair().unwrap();
        // SAFETY: the bytes outlive the sync below.
        let sent = unsafe {
            copier.send(near.as_fd(), bytes.as_ptr(), bytes.len(), &CopyOptions::default())
        };
        copier.sync(&sent.unwrap(), 0..bytes.len()).unwrap();
    };
    let receive = |copier: &Copier, bytes: &mut [u8]| {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        // SAFETY: the bytes outlive the sync below, and nothing else accesses them.
        let received = unsafe {
            copier.receive(near.as_fd(), bytes.as_mut_ptr(), bytes.len(), &CopyOptions::default())
        };
        copier.sync(&received.unwrap().1, 0..bytes.len()).unwrap();
    };
    with_client(|copier| {
        assert_eq!(queued(copier, 4095, send), 0);
        assert_eq!(queued(copier, 4096, send), 1);
        assert_eq!(queued(copier, 4095, receive), 0);
        assert_eq!(queued(copier, 4096, receive), 1);
        // Copies of a site are queued once their windows are known; short ones never.
        let copies = |copier: &Copier, bytes: &mut [u8]| {
            let source = bytes.to_vec();
            for _ in 0..64 {
                copy(copier, bytes, &source);
                work();
                copier.sync_range(bytes.as_ptr().addr(), bytes.len()).unwrap();
            }
        };
        assert_eq!(queued(copier, 4095, copies), 0);
        assert!(queued(copier, BYTES, copies) > 0);
    });
}
