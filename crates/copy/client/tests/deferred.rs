//! Copies that are made only if something looks at them.

use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyError, CopyOptions, Service, TaskFailure, Token};

const UNTIL_NEEDED: CopyOptions =
    CopyOptions { lazy_us: Some(u32::MAX), queued: false, handler: None, site: 0 };
const AT_ONCE: CopyOptions = CopyOptions { lazy_us: None, ..UNTIL_NEEDED };
const QUEUED: CopyOptions = CopyOptions { queued: true, ..AT_ONCE };
const BYTES: usize = 16 << 10;
/// Content of a buffer that nothing was copied into.
const OLD: u8 = 0xee;

fn client() -> (Service, Copier) {
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    (service, copier)
}

/// A buffer that is accessed by address only, as a C program does.
struct Buffer(*mut u8);

impl Buffer {
    fn filled(byte: u8) -> Buffer {
        Buffer(Box::leak(vec![byte; BYTES].into_boxed_slice()).as_mut_ptr())
    }

    fn address(&self) -> usize {
        self.0.addr()
    }

    /// Bytes that no copy writes meanwhile.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is never freed; the tests look only where no thread writes.
        unsafe { std::slice::from_raw_parts(self.0, BYTES) }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: as above; no copy uses the bytes.
        unsafe { self.0.write_bytes(byte, BYTES) };
    }

    fn holds(&self, byte: u8) -> bool {
        self.bytes().iter().all(|seen| *seen == byte)
    }
}

fn copy(copier: &Copier, to: &Buffer, from: &Buffer, options: &CopyOptions) -> Token {
    // SAFETY: both live for ever, and are not used before a sync.
    unsafe { copier.submit(to.0, from.0, BYTES, options) }
}

#[test]
fn a_chain_reads_past_the_copy_in_between_which_is_never_made() {
    let (_service, copier) = client();
    let (first, middle, last) = (Buffer::filled(1), Buffer::filled(OLD), Buffer::filled(OLD));
    for round in 0..100 {
        first.fill(round);
        for options in [AT_ONCE, QUEUED] {
            let kept = copy(&copier, &middle, &first, &UNTIL_NEEDED);
            assert!(kept.is_queued() && !copier.is_ready(&kept, 0..BYTES));
            let token = copy(&copier, &last, &middle, &options);
            copier.sync(&token, 0..BYTES).unwrap();
            copier.sync_range(last.address(), BYTES).unwrap();
            assert!(last.holds(round) && middle.holds(OLD));
        }
        copier.sync_for_write(first.address(), BYTES).unwrap();
        assert!(middle.holds(round), "the source is about to change");
        middle.fill(OLD);
    }
    // The copy of the second chain covered that of the first one.
    assert_eq!(copier.never_made(), (100, 100 * BYTES as u64));
}

#[test]
fn whoever_looks_has_the_copy_made() {
    let (_service, copier) = client();
    let looks: [fn(&Copier, &Token, &Buffer); 5] = [
        |copier, token, _| copier.sync(token, 5..6).unwrap(),
        |copier, _, middle| copier.sync_range(middle.address() + 100, 1).unwrap(),
        |copier, _, middle| copier.sync_for_write(middle.address(), 1).unwrap(),
        |copier, _, _| copier.sync_all().unwrap(),
        |copier, _, _| copier.sync_handlers().unwrap(),
    ];
    for look in looks {
        let (first, middle) = (Buffer::filled(1), Buffer::filled(OLD));
        let token = copy(&copier, &middle, &first, &UNTIL_NEEDED);
        copier.sync_range(first.address(), BYTES).unwrap();
        assert!(middle.holds(OLD), "reading the source needs nothing");
        look(&copier, &token, &middle);
        assert!(middle.holds(1) && copier.is_ready(&token, 0..BYTES));
    }
    assert_eq!(copier.never_made(), (0, 0));
}

#[test]
fn copies_into_the_source_wait_for_it() {
    let (_service, copier) = client();
    for options in [AT_ONCE, QUEUED, UNTIL_NEEDED] {
        let (first, middle, other) = (Buffer::filled(1), Buffer::filled(OLD), Buffer::filled(2));
        let kept = copy(&copier, &middle, &first, &UNTIL_NEEDED);
        let token = copy(&copier, &first, &other, &options);
        copier.sync(&kept, 0..BYTES).unwrap();
        copier.sync(&token, 0..BYTES).unwrap();
        assert!(middle.holds(1) && first.holds(2));
    }
}

/// Changes the bytes that a copy has read, as a program that reuses them does.
extern "C" fn refill(source: usize) {
    // SAFETY: the address of a buffer of this length, which no copy uses any more.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(source).write_bytes(9, BYTES) };
}

#[test]
fn a_handler_may_change_the_source() {
    let (_service, copier) = client();
    for queued in [false, true] {
        let (first, middle, last) = (Buffer::filled(1), Buffer::filled(OLD), Buffer::filled(OLD));
        let _kept = copy(&copier, &middle, &first, &UNTIL_NEEDED);
        let handler = Some((refill as *const () as usize, first.0.expose_provenance()));
        let _token = copy(&copier, &last, &first, &CopyOptions { queued, handler, ..AT_ONCE });
        copier.sync_handlers().unwrap();
        assert!(first.holds(9) && middle.holds(1) && last.holds(1));
    }
}

#[test]
fn an_aborted_copy_is_not_made() {
    let (_service, copier) = client();
    let (first, middle) = (Buffer::filled(1), Buffer::filled(OLD));
    let token = copy(&copier, &middle, &first, &UNTIL_NEEDED);
    copier.abort(&token);
    copier.sync_all().unwrap();
    assert!(middle.holds(OLD) && copier.is_ready(&token, 0..BYTES));
    assert_eq!(copier.never_made(), (1, BYTES as u64));
    copier.abort(&token);
    assert_eq!(copier.never_made().0, 1);
}

#[test]
fn discarded_bytes_are_not_copied() {
    let (_service, copier) = client();
    let (first, middle, last) = (Buffer::filled(1), Buffer::filled(OLD), Buffer::filled(OLD));
    let _kept = copy(&copier, &middle, &first, &UNTIL_NEEDED);
    let _other = copy(&copier, &last, &first, &UNTIL_NEEDED);
    copier.discard_range(middle.address(), BYTES).unwrap();
    assert!(middle.holds(OLD) && last.holds(OLD));
    // Part of a destination is not enough, and the source is needed.
    copier.discard_range(last.address(), BYTES - 1).unwrap();
    assert!(last.holds(1));
    let _kept = copy(&copier, &middle, &first, &UNTIL_NEEDED);
    copier.discard_range(first.address(), BYTES).unwrap();
    assert!(middle.holds(1));
    assert_eq!(copier.never_made(), (1, BYTES as u64));
}

#[test]
fn a_pending_source_is_waited_for() {
    let (_service, copier) = client();
    let (zeroth, first, middle) = (Buffer::filled(1), Buffer::filled(OLD), Buffer::filled(OLD));
    let lazily = CopyOptions { lazy_us: Some(60_000_000), ..QUEUED };
    let begin = Instant::now();
    let _early = copy(&copier, &first, &zeroth, &lazily);
    let token = copy(&copier, &middle, &first, &UNTIL_NEEDED);
    copier.sync(&token, 0..BYTES).unwrap();
    assert!(middle.holds(1) && begin.elapsed() < Duration::from_secs(50));
}

#[test]
fn threads_that_look_at_the_same_time_all_see_the_bytes() {
    let (_service, copier) = client();
    let (first, middle) = (Buffer::filled(1), Buffer::filled(OLD));
    for round in 0..200 {
        copier.sync_for_write(middle.address(), BYTES).unwrap();
        copier.sync_for_write(first.address(), BYTES).unwrap();
        first.fill(round);
        let token = copy(&copier, &middle, &first, &UNTIL_NEEDED);
        let address = middle.address();
        std::thread::scope(|scope| {
            for by_token in [false, true] {
                let (copier, middle) = (&copier, Buffer(middle.0));
                let middle = AssertSend(middle);
                scope.spawn(move || {
                    let middle = middle;
                    match by_token {
                        true => copier.sync(&token, 0..BYTES).unwrap(),
                        false => copier.sync_range(address, BYTES).unwrap(),
                    }
                    assert!(middle.0.holds(round));
                });
            }
        });
    }
}

/// Buffers are shared memory.
struct AssertSend(Buffer);

// SAFETY: the memory lives for ever, and the threads only read it, after a sync.
unsafe impl Send for AssertSend {}

#[test]
fn a_bad_address_is_reported_to_whoever_looks() {
    let (_service, copier) = client();
    let middle = Buffer::filled(OLD);
    let failed = Err(CopyError::Failed(TaskFailure::BadAddress));
    let kept = || {
        // SAFETY: nothing is mapped at the source, which the client must notice.
        unsafe { copier.submit(middle.0, std::ptr::dangling(), BYTES, &UNTIL_NEEDED) }
    };
    let token = kept();
    assert_eq!(copier.sync(&token, 0..1), failed);
    assert_eq!(copier.sync(&token, 0..1), failed);
    let _token = kept();
    assert_eq!(copier.sync_range(middle.address(), BYTES), failed);
    assert_eq!(copier.sync_range(middle.address(), BYTES), Ok(()));
    let _token = kept();
    assert_eq!(copier.sync_all(), failed);
    assert_eq!(copier.sync_all(), Ok(()));
}
