//! A bad address is the error of the copy that uses it, in the service, in a waiter, and in the
//! submitter.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use unlade_copy::{
    Config, Copier, CopyError, CopyOptions, Polling, Service, TASK_BYTES_MAX, TaskFailure, Token,
};

const EFAULT: Result<(), CopyError> = Err(CopyError::Failed(TaskFailure::BadAddress));
const EINVAL: Result<(), CopyError> = Err(CopyError::Failed(TaskFailure::Refused));
/// Deferred for an hour, or until the sync.
const PUT_OFF: CopyOptions =
    CopyOptions { lazy_us: Some(u32::MAX), queued: true, handler: None, site: 0 };
const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
const BYTES: usize = 64 << 10;

/// Memory that can be made inaccessible; unmapped at the end.
struct Pages(*mut u8, usize);

impl Pages {
    fn new(bytes: usize) -> Pages {
        Pages::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn of_file(file: &File, bytes: usize) -> Pages {
        Pages::map(bytes, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(bytes: usize, flags: i32, fd: i32) -> Pages {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Pages(base.cast(), bytes)
    }

    fn protected(bytes: usize, protection: i32) -> Pages {
        let pages = Pages::new(bytes);
        // SAFETY: this mapping, to which no reference exists.
        assert_eq!(unsafe { libc::mprotect(pages.0.cast(), bytes, protection) }, 0);
        pages
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping, which is no longer in use.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

/// A client whose service has ended, so that waiters make the copies.
fn left_alone() -> Copier {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    drop(service);
    copier
}

/// All bad addresses: a destination, a source, and true if the source is the bad one.
fn bad_places(good: &Pages, file: &File) -> Vec<(&'static str, *mut u8, *const u8, Option<Pages>)> {
    let nowhere = ptr::without_provenance_mut::<u8>(64);
    let hidden = Pages::protected(BYTES, libc::PROT_NONE);
    let read_only = Pages::protected(BYTES, libc::PROT_READ);
    let truncated = Pages::of_file(file, BYTES);
    let (no_access, constant, cut) = (hidden.0, read_only.0, truncated.0);
    vec![
        ("a source that is not mapped", good.0, nowhere, None),
        ("a destination that is not mapped", nowhere, good.0, None),
        ("NULL", good.0, ptr::null(), None),
        ("an address that no page table holds", good.0, (1_usize << 62) as *const u8, None),
        ("a source without access", good.0, no_access, Some(hidden)),
        ("a destination that is read only", constant, good.0, Some(read_only)),
        ("a file that was truncated", good.0, cut, Some(truncated)),
    ]
}

/// Submits one copy. Returns the results of the sync by token and of the sync by address.
///
/// # Safety
/// The mapped part of the destination is not accessed meanwhile.
unsafe fn outcome(
    copier: &Copier,
    (dst, src): (*mut u8, *const u8),
    len: usize,
    options: &CopyOptions,
) -> [Result<(), CopyError>; 3] {
    // SAFETY: the caller's promise.
    let submit = || unsafe { copier.submit(dst, src, len, options) };
    let token: Token = submit();
    let by_token = copier.sync(&token, 0..len);
    let _other = submit();
    let by_address = copier.sync_range(dst.addr(), len);
    [by_token, by_address, copier.sync_range(dst.addr(), len)]
}

#[test]
fn bad_addresses_end_in_efault_whoever_copies() {
    let good = Pages::new(BYTES);
    let file = tempfile::tempfile().unwrap();
    let served = service();
    let at_service = Copier::new(served.attach().unwrap());
    let at_waiter = left_alone();
    for (what, dst, src, _pages) in &bad_places(&good, &file) {
        for len in [1, 100, 1000, 3000, 4096, 20_000, BYTES] {
            for (who, copier, options) in [
                ("the waiter", &at_waiter, PUT_OFF),
                ("the waiter, of what was not put off", &at_waiter, QUEUED),
                ("the service, or the waiter", &at_service, QUEUED),
                ("the submitter", &at_service, CopyOptions::default()),
                (
                    "the submitter at a site",
                    &at_service,
                    CopyOptions { site: 0x1000, ..CopyOptions::default() },
                ),
            ] {
                // SAFETY: the mapped part of these ranges belongs to the test, and is not
                // accessed.
                let told = unsafe { outcome(copier, (*dst, *src), len, &options) };
                assert_eq!(told, [EFAULT, EFAULT, Ok(())], "{who}, {len} bytes, {what}");
            }
        }
    }
    for copier in [&at_service, &at_waiter] {
        assert_eq!(copier.sync_all(), Ok(()), "everybody was told");
    }
}

#[test]
fn a_bad_address_found_by_another_thread_or_a_younger_copy_is_reported() {
    let copier = left_alone();
    let (middle, last) = (Pages::new(BYTES), Pages::new(BYTES));
    let nowhere = ptr::without_provenance::<u8>(64);
    // SAFETY: memory of this test, which is not accessed.
    let (bad, good) = unsafe {
        let bad = copier.submit(middle.0, nowhere, BYTES, &PUT_OFF);
        (bad, copier.submit(last.0, middle.0, BYTES, &PUT_OFF))
    };
    // A waiter for the younger copy makes the older one first.
    let synced = std::thread::scope(|scope| scope.spawn(|| copier.sync(&good, 0..100)).join());
    assert_eq!(synced.unwrap(), Ok(()), "its own source is mapped");
    assert_eq!(copier.sync_range(middle.0.addr(), 10), EFAULT);
    assert_eq!(copier.sync(&bad, 0..10), EFAULT);
}

#[test]
fn bytes_before_a_bad_address_are_copied_and_the_rest_is_unchanged() {
    let copier = left_alone();
    let (source, destination) = (Pages::new(2 * BYTES), Pages::new(2 * BYTES));
    // SAFETY: memory of this test.
    unsafe {
        source.0.write_bytes(7, BYTES);
        assert_eq!(libc::mprotect(source.0.add(BYTES).cast(), BYTES, libc::PROT_NONE), 0);
        let token = copier.submit(destination.0, source.0, 2 * BYTES, &PUT_OFF);
        assert_eq!(copier.sync(&token, 0..2 * BYTES), EFAULT);
        let bytes = std::slice::from_raw_parts(destination.0, 2 * BYTES);
        assert!(bytes[..BYTES].iter().all(|byte| *byte == 7));
        assert!(bytes[BYTES..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn ranges_that_overlap_or_wrap_end_in_einval_whoever_copies() {
    let memory = Pages::new(2 * BYTES);
    let served = service();
    let at_service = Copier::new(served.attach().unwrap());
    let at_waiter = left_alone();
    let end = ptr::without_provenance_mut::<u8>(usize::MAX - 100);
    let later = memory.0.wrapping_add(BYTES - 1);
    let cases = [
        ("the same bytes", memory.0, memory.0.cast_const()),
        ("a destination in the source", later, memory.0),
        ("a source in the destination", memory.0, later),
        ("a source that goes around", memory.0, end),
        ("a destination that goes around", end, memory.0),
    ];
    for (what, dst, src) in cases {
        for (copier, options) in [
            (&at_waiter, PUT_OFF),
            (&at_waiter, QUEUED),
            (&at_service, QUEUED),
            (&at_service, CopyOptions::default()),
        ] {
            // SAFETY: memory of this test; invalid ranges are not copied.
            let told = unsafe { outcome(copier, (dst, src), BYTES, &options) };
            assert_eq!(told, [EINVAL, EINVAL, Ok(())], "{what}");
        }
        // An empty range is always valid.
        // SAFETY: no byte is touched.
        let told = unsafe { outcome(&at_service, (dst, src), 0, &QUEUED) };
        assert_eq!(told, [Ok(()); 3], "{what}");
    }
}

#[test]
fn handlers_of_copies_that_fail_at_once_run() {
    extern "C" fn count(counter: usize) {
        // SAFETY: the test below passes a live counter.
        unsafe { *(counter as *mut u32) += 1 };
    }
    let copier = left_alone();
    let (mut count_of, memory) = (0u32, Pages::new(BYTES));
    let handler = Some((count as *const () as usize, (&raw mut count_of).addr()));
    let options = CopyOptions { handler, ..CopyOptions::default() };
    // SAFETY: memory of this test; the handler is a valid function.
    let tokens = unsafe {
        [
            copier.submit(memory.0, ptr::without_provenance(64), 100, &options),
            copier.submit(memory.0, memory.0, 100, &options),
        ]
    };
    assert!(tokens.iter().all(Token::has_failed_at_once));
    // SAFETY: as above.
    assert_eq!(unsafe { (&raw const count_of).read_volatile() }, 2);
    copier.abort(&tokens[0]);
    assert_eq!(copier.sync(&tokens[1], 0..100), EINVAL);
    assert_eq!(copier.sync_all(), Ok(()));
}

#[test]
fn a_scope_reports_a_file_that_was_truncated() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let file = tempfile::tempfile().unwrap();
    let cut = Pages::of_file(&file, TASK_BYTES_MAX);
    // SAFETY: a mapping of this test, which is not written; the test is that the file behind it is
    // too short.
    let source = unsafe { std::slice::from_raw_parts(cut.0, 1000) };
    let mut destination = vec![0u8; 1000];
    copier.scope(|scope| {
        let pending = scope.copy(source, &mut destination);
        assert_eq!(pending.sync(0..10).map(drop), EFAULT);
    });
    let nobody_asks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        copier.scope(|scope| _ = scope.copy(source, &mut destination));
    }));
    assert!(nobody_asks.is_err(), "the end of the scope tells");
    let good = vec![3u8; 1000];
    copier.scope(|scope| _ = scope.copy(&good, &mut destination));
    assert_eq!(destination, good);
}
