//! Without userfaultfd everything is copied. In a process of its own: nothing may be opened in it
//! before.

use unlade_copy::{Config, Copier, Remaps, Service, SnapshotOptions};
use unlade_copy_kernels::remap::Remapper;

mod support;
use support::Arena;

/// Lets no further descriptor be opened; none as well for `/dev/userfaultfd`.
fn limit_descriptors(limit: libc::rlim_t) -> libc::rlim_t {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: two structures of this function.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old), 0);
        let new = libc::rlimit { rlim_cur: limit, ..old };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new), 0);
    }
    old.rlim_cur
}

#[test]
fn everything_is_copied_and_counted() {
    const BYTES: usize = 2 << 20;
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap()).with_remaps(Remaps::Always);
    let arena = Arena::new(2 * BYTES);
    arena.fill(0..BYTES, 7);
    let before = limit_descriptors(3);
    assert!(Remapper::of_process().is_none());
    // SAFETY: an arena of this test.
    let is_moved = unsafe { copier.remap(arena.at(BYTES), arena.at(0), BYTES, 0) };
    // SAFETY: as above.
    let snapshot = unsafe { copier.snapshot(arena.at(0), BYTES, &SnapshotOptions::default()) };
    limit_descriptors(before);
    assert!(!is_moved && arena.read(0..BYTES).iter().all(|byte| *byte == 7));
    let snapshot = snapshot.unwrap();
    arena.fill(0..BYTES, 8);
    assert!(snapshot.is_at_once() && snapshot.writes_held() == 0);
    assert!(snapshot.sync(0..BYTES).unwrap().iter().all(|byte| *byte == 7));
    let stats = copier.stats().read();
    assert_eq!((stats.remapped, stats.last_use_copied_bytes), (0, BYTES as u64));
    assert_eq!((stats.snapshots, stats.snapshots_at_once), (1, 1));
}
