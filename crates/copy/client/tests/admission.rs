//! Samples of the admission policy, observed through a client.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyOptions, Polling, Service};

const BYTES: usize = 64 << 10;
/// Copies are synchronous until that cost is known. Then queueing is tried, exclusively until its
/// cost is known.
const FIRST_AT_ONCE: u64 = 6;

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

/// Submits a copy whose site decides, from its measurements, if the copy is queued.
fn copy(copier: &Copier, destination: &mut [u8], source: &[u8]) {
    let options = CopyOptions { site: 0x1000, ..CopyOptions::default() };
    // SAFETY: all tests sync before they access either buffer.
    let _token =
        unsafe { copier.submit(destination.as_mut_ptr(), source.as_ptr(), source.len(), &options) };
}

/// Copies, and syncs by address through `sync`. Until queued copies are measured all copies are
/// queued; afterwards synchronous copies occur, or are tried again.
fn teaches(sync: impl Fn(&Copier, usize)) {
    let (source, mut destination) = (vec![7u8; BYTES], vec![0u8; BYTES]);
    with_client(|copier| {
        for _ in 0..4000 {
            copy(copier, &mut destination, &source);
            sync(copier, destination.as_ptr().addr());
            copier.sync_range(destination.as_ptr().addr(), BYTES).unwrap();
        }
        let stats = copier.stats().read();
        assert!(stats.at_once > FIRST_AT_ONCE, "{stats:?}");
    });
    assert_eq!(destination, source);
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
    let (source, mut destinations) = (vec![7u8; BYTES], vec![vec![0u8; BYTES]; 64]);
    with_client(|copier| {
        for round in 0..40 {
            for destination in &mut destinations {
                copy(copier, destination, &source);
                copier.sync_range(destination.as_ptr().addr() + 1000 * round, 10).unwrap();
            }
            copier.sync_all().unwrap();
        }
        let stats = copier.stats().read();
        assert!(stats.at_once > FIRST_AT_ONCE, "{stats:?}");
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
        for _ in 0..500 {
            for part in destination.chunks_mut(BYTES) {
                copy(copier, part, &source);
            }
            copier.sync_range(destination.as_ptr().addr(), destination.len()).unwrap();
        }
        let stats = copier.stats().read();
        assert!(stats.at_once > FIRST_AT_ONCE, "{stats:?}");
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
        // Copies of a site are queued once the synchronous ones are measured; short ones never.
        let copies = |copier: &Copier, bytes: &mut [u8]| {
            let source = bytes.to_vec();
            for _ in 0..64 {
                copy(copier, bytes, &source);
                copier.sync_range(bytes.as_ptr().addr(), bytes.len()).unwrap();
            }
        };
        assert_eq!(queued(copier, 4095, copies), 0);
        assert!(queued(copier, 4096, copies) > 0);
    });
}
