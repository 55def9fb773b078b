//! Protected pages, step by step: the test itself is the thread that copies blocks.

use std::io::Write;
use std::os::fd::AsRawFd;

use unlade_copy_kernels::freeze::{BLOCK_BYTES, FreezeError, Frozen};

mod support;
use support::Pages;

const BLOCKS: usize = 4;
const BYTES: usize = BLOCKS * BLOCK_BYTES;

fn freeze(pages: &Pages, only_user_writes: bool) -> Option<Frozen> {
    let start = pages.at(0).addr();
    match Frozen::new(start..start + BYTES, only_user_writes) {
        Ok(frozen) => Some(frozen),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn copied(frozen: &Frozen, block: usize) -> Vec<u8> {
    let start = std::ptr::with_exposed_provenance(frozen.copy_start() + block * BLOCK_BYTES);
    // SAFETY: a block of the copy, which the test has had copied.
    unsafe { std::slice::from_raw_parts(start, BLOCK_BYTES) }.to_vec()
}

#[test]
fn a_write_waits_for_its_block_only() {
    let pages = Pages::new(BYTES);
    pages.write(0, &[1; BYTES]);
    let Some(frozen) = freeze(&pages, true) else { return };
    assert_eq!((frozen.blocks(), frozen.len_bytes(), frozen.faults()), (BLOCKS, BYTES, 0));
    assert_eq!(frozen.next_fault(0).unwrap(), None);
    let address = pages.at(2 * BLOCK_BYTES + 10).expose_provenance();
    std::thread::scope(|threads| {
        let writer = threads.spawn(move || {
            // SAFETY: within the pages, which outlive the scope; no reference points there.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(2) };
        });
        let fault = loop {
            if let Some(block) = frozen.next_fault(100).unwrap() {
                break block;
            }
        };
        assert_eq!((fault, frozen.faults()), (2, 1));
        // The page is as it was until its block is copied.
        assert!(!writer.is_finished() && pages.read(2 * BLOCK_BYTES, 20) == [1; 20]);
        frozen.copy_block(2, true).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(pages.read(2 * BLOCK_BYTES + 10, 1), [2]);
    assert_eq!(copied(&frozen, 2), vec![1; BLOCK_BYTES]);
    assert!(frozen.is_settled(2) && !frozen.is_settled(1) && !frozen.is_claimed(1));
    // The last owner ends the protection of the others.
    drop(frozen);
    pages.write(0, &[3; BYTES]);
}

#[test]
fn a_system_call_that_writes_fails_where_only_user_faults_are_served() {
    let pages = Pages::new(BYTES);
    let Some(frozen) = freeze(&pages, true) else { return };
    let (reader, mut writer) = std::io::pipe().unwrap();
    let read = || {
        // SAFETY: within the pages, into which no reference points.
        let read = unsafe { libc::read(reader.as_raw_fd(), pages.at(0).cast(), 5) };
        (read, std::io::Error::last_os_error().raw_os_error())
    };
    writer.write_all(b"12345").unwrap();
    assert_eq!(read(), (-1, Some(libc::EFAULT)));
    frozen.copy_block(0, true).unwrap();
    assert_eq!(read().0, 5);
    assert_eq!(copied(&frozen, 0), vec![0; BLOCK_BYTES]);
}

#[test]
fn a_write_that_waits_goes_on_when_the_protection_ends() {
    let pages = Pages::new(BYTES);
    pages.write(0, &[1; BYTES]);
    let Some(frozen) = freeze(&pages, true) else { return };
    let address = pages.at(BLOCK_BYTES).expose_provenance();
    std::thread::scope(|threads| {
        let writer = threads.spawn(move || {
            // SAFETY: within the pages, which outlive the scope; no reference points there.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(2) };
        });
        while frozen.next_fault(100).unwrap().is_none() {}
        frozen.finish();
        let begin = std::time::Instant::now();
        while !writer.is_finished() && begin.elapsed() < std::time::Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let goes_on = writer.is_finished();
        // The close of the descriptor wakes a thread that still waits.
        drop(frozen);
        assert!(goes_on);
    });
    assert_eq!(pages.read(BLOCK_BYTES, 1), [2]);
}

#[test]
fn what_is_left_at_the_end_is_lost_and_an_error() {
    let pages = Pages::new(BYTES);
    let Some(frozen) = freeze(&pages, true) else { return };
    frozen.copy_block(1, true).unwrap();
    frozen.finish();
    assert!(frozen.copy_block(0, true).is_err() && frozen.copy_block(1, true).is_ok());
    pages.write(0, &[3; BYTES]);
    assert_eq!(copied(&frozen, 1), vec![0; BLOCK_BYTES]);
}

#[test]
fn other_memory_is_refused() {
    let pages = Pages::new(BYTES);
    let start = pages.at(0).addr();
    let refused = |range| Frozen::new(range, true).unwrap_err();
    for range in [start + 1..start + BYTES, start..start + 100, start..start] {
        assert!(matches!(refused(range), FreezeError::NotPages { .. }));
    }
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES as u64).unwrap();
    let shared = Pages::of_file(&file, BYTES);
    let error = refused(shared.at(0).addr()..shared.at(BYTES).addr());
    assert!(matches!(error, FreezeError::Shared | FreezeError::Kernel(_)), "{error}");
    assert!(matches!(refused(4096..8192), FreezeError::Kernel(_)));
    if let Some(frozen) = freeze(&pages, true) {
        let again = refused(start..start + BYTES);
        assert!(matches!(again, FreezeError::Kernel(_)), "{again}");
        drop(frozen);
        assert!(freeze(&pages, true).is_some());
    }
}
