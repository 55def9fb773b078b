//! Properties of the service besides the copied bytes: handlers run once, aborts, bad addresses,
//! chains, several clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyError, CopyOptions, Polling, Service, TaskFailure, Token};

fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

fn client(service: &Service) -> Copier {
    Copier::new(service.attach().unwrap())
}

/// Submits without a scope, like C programs.
fn submit(copier: &Copier, dst: &mut [u8], src: &[u8], options: &CopyOptions) -> Token {
    assert_eq!(dst.len(), src.len());
    // SAFETY: every test syncs before it accesses either buffer.
    unsafe { copier.submit(dst.as_mut_ptr(), src.as_ptr(), src.len(), options) }
}

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };

/// Waits for an asynchronous action of the service.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

static CALLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(argument: usize) {
    CALLED.fetch_add(argument, Ordering::SeqCst);
}

#[test]
fn handlers_run_once_each_whoever_looks_for_them() {
    let service = service();
    let copier = client(&service);
    let source = vec![3u8; 20_000];
    let mut destinations = vec![vec![0u8; 20_000]; 200];
    let options = CopyOptions { handler: Some((count as *const () as usize, 1)), ..QUEUED };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                eventually("handlers run", || {
                    copier.run_handlers();
                    CALLED.load(Ordering::SeqCst) >= 200
                });
            });
        }
        for destination in &mut destinations {
            let _ = submit(&copier, destination, &source, &options);
        }
    });
    copier.sync_all().unwrap();
    assert_eq!(CALLED.load(Ordering::SeqCst), 200);
    assert!(destinations.iter().all(|destination| *destination == source));
}

static LEFT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_left(argument: usize) {
    LEFT.fetch_add(argument, Ordering::SeqCst);
}

#[test]
fn handlers_run_though_the_service_tells_of_none() {
    let source = vec![4u8; 20_000];
    let mut destinations = vec![vec![0u8; 20_000]; 90];
    let (first, rest) = destinations.split_at_mut(30);
    let (second, third) = rest.split_at_mut(30);
    let options = CopyOptions { handler: Some((count_left as *const () as usize, 1)), ..QUEUED };
    let submit_all = |copier: &Copier, destinations: &mut [Vec<u8>]| {
        for destination in destinations {
            let _ = submit(copier, destination, &source, &options);
        }
    };
    let service = service();
    // On request; at the client's end; and after the end of the service.
    let copier = client(&service);
    submit_all(&copier, first);
    copier.sync_handlers().unwrap();
    assert_eq!(LEFT.load(Ordering::SeqCst), 30);
    let short = client(&service);
    submit_all(&short, second);
    drop(short);
    assert_eq!(LEFT.load(Ordering::SeqCst), 60);
    submit_all(&copier, third);
    drop(service);
    assert!(!copier.is_served());
    copier.sync_all().unwrap();
    assert_eq!(LEFT.load(Ordering::SeqCst), 90);
    assert!(destinations.iter().all(|destination| *destination == source));
}

static TOLD: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_told(argument: usize) {
    TOLD.fetch_add(argument, Ordering::SeqCst);
}

/// Waits until the descriptor is readable.
fn wait_for(event: std::os::fd::BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let most = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], Some(&most));
    assert_eq!(ready, Ok(1), "handlers are told of");
}

#[test]
fn an_event_loop_is_told_of_handlers_and_of_the_services_end() {
    let service = service();
    let copier = Copier::new(service.attach_with(1, 16).unwrap());
    let event = copier.event().unwrap();
    let source = vec![8u8; 20_000];
    let mut destination = vec![0u8; 20_000];
    let options = CopyOptions { handler: Some((count_told as *const () as usize, 1)), ..QUEUED };
    for round in 1..=50 {
        let _ = submit(&copier, &mut destination, &source, &options);
        while TOLD.load(Ordering::SeqCst) < round {
            wait_for(event);
            copier.run_handlers();
        }
    }
    let _ = submit(
        &copier,
        &mut destination,
        &source,
        &CopyOptions { lazy_us: Some(u32::MAX), ..options },
    );
    drop(service);
    wait_for(event);
    copier.run_handlers();
    assert_eq!((TOLD.load(Ordering::SeqCst), destination), (51, source));
}

static FREED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn free(argument: usize) {
    FREED.store(argument, Ordering::SeqCst);
}

#[test]
fn a_handler_waits_for_what_is_still_written_to_its_source() {
    let service = service();
    let copier = client(&service);
    let source = vec![5u8; 20_000];
    let mut middle = vec![0u8; 20_000];
    let mut end = vec![0u8; 20_000];
    let lazy = CopyOptions { lazy_us: Some(60_000_000), ..CopyOptions::default() };
    let first = submit(&copier, &mut middle, &source, &lazy);
    let options = CopyOptions { handler: Some((free as *const () as usize, 7)), ..QUEUED };
    let second = submit(&copier, &mut end, &middle, &options);
    // Reads around the middle, which the lazy copy will overwrite.
    copier.sync(&second, 0..20_000).unwrap();
    assert_eq!(end, source);
    for _ in 0..100 {
        std::thread::yield_now();
        copier.run_handlers();
    }
    assert_eq!(FREED.load(Ordering::SeqCst), 0, "the middle is in use");
    copier.abort(&first);
    eventually("nobody uses it any more", || {
        copier.run_handlers();
        FREED.load(Ordering::SeqCst) == 7
    });
}

static READ: AtomicUsize = AtomicUsize::new(0);

extern "C" fn overwrite(address: usize) {
    let source = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the test below passes the address of its own 500 bytes, and syncs before it reads
    // them; all readers are done when a handler runs.
    unsafe { std::ptr::write_bytes(source, 0, 500) };
    READ.store(1, Ordering::SeqCst);
}

#[test]
fn the_handler_of_a_synchronous_copy_waits_for_older_readers() {
    let service = service();
    let copier = client(&service);
    let mut source = vec![6u8; 500];
    let address = source.as_mut_ptr().expose_provenance();
    let (mut first, mut second) = (vec![0u8; 500], vec![0u8; 500]);
    let lazy = CopyOptions { lazy_us: Some(60_000_000), ..CopyOptions::default() };
    let older = submit(&copier, &mut first, &source, &lazy);
    let options = CopyOptions {
        handler: Some((overwrite as *const () as usize, address)),
        ..CopyOptions::default()
    };
    assert!(!submit(&copier, &mut second, &source, &options).is_queued());
    assert_eq!(READ.load(Ordering::SeqCst), 1);
    copier.sync(&older, 0..500).unwrap();
    assert_eq!((first, second), (vec![6u8; 500], vec![6u8; 500]));
}

#[test]
fn a_bad_address_is_its_clients_error_and_nobody_elses() {
    let service = service();
    let (good, bad) = (client(&service), client(&service));
    let mut destination = vec![0u8; 50_000];
    // SAFETY: the source is not mapped, which the service detects; the destination is not accessed
    // before the sync.
    let token = unsafe {
        bad.submit(destination.as_mut_ptr(), std::ptr::without_provenance(64), 50_000, &QUEUED)
    };
    // Does not help: the test is about the service.
    eventually("the fault is found", || bad.is_ready(&token, 0..50_000));
    let failed = Err(CopyError::Failed(TaskFailure::BadAddress));
    assert_eq!(bad.sync(&token, 0..50_000), failed);
    assert_eq!(service.counts().faults, 1);
    let source = vec![9u8; 50_000];
    for copier in [&good, &bad] {
        let token = submit(copier, &mut destination, &source, &QUEUED);
        copier.sync(&token, 0..50_000).unwrap();
        assert_eq!(destination, source);
        destination.fill(0);
    }
}

#[test]
fn a_lazy_copy_in_between_is_read_past_and_can_be_given_up() {
    let service = service();
    let copier = client(&service);
    let kernel: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
    let mut input = vec![0u8; 100_000];
    let mut object = vec![0u8; 100_000];
    let lazy = CopyOptions { lazy_us: Some(60_000_000), ..CopyOptions::default() };
    let first = submit(&copier, &mut input, &kernel, &lazy);
    copier.sync(&first, 0..1000).unwrap();
    assert_eq!(input[..1000], kernel[..1000]);
    let second = submit(&copier, &mut object, &input, &QUEUED);
    copier.sync(&second, 0..100_000).unwrap();
    assert_eq!(object, kernel);
    copier.abort(&first);
    assert!(copier.is_ready(&first, 0..100_000));
    let counts = service.counts();
    assert!(counts.absorbed_bytes > 90_000, "{counts:?}");
    assert!(counts.aborted_segments > 0, "{counts:?}");
    // Bytes that were neither synced nor read were never copied.
    assert_eq!(input[50_000..60_000], [0u8; 10_000]);
}

#[test]
fn a_lazy_copy_is_made_when_its_time_is_up() {
    let service = service();
    let copier = client(&service);
    let source = vec![5u8; 30_000];
    let mut destination = vec![0u8; 30_000];
    let token =
        submit(&copier, &mut destination, &source, &CopyOptions { lazy_us: Some(1000), ..QUEUED });
    eventually("it is copied", || copier.is_ready(&token, 0..30_000));
    assert_eq!(destination, source);
}

#[test]
fn chains_are_as_after_memcpy_piece_by_piece() {
    let service = service();
    let copier = client(&service);
    let source: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    let mut stages = vec![vec![0u8; source.len()]; 4];
    copier.scope(|scope| {
        let mut stages = stages.iter_mut();
        let mut pending = vec![scope.queue(&source, stages.next().unwrap())];
        for stage in stages {
            let next = scope.copy_on(pending.last().unwrap(), stage);
            pending.push(next);
        }
        for (number, pending) in pending.iter().enumerate().rev() {
            let at = 700_000 * number;
            let bytes = pending.sync(at..at + 100_000).unwrap();
            assert_eq!(bytes, &source[at..at + 100_000]);
        }
        let changed = pending[3].sync_mut(0..10).unwrap();
        changed.fill(255);
    });
    assert_eq!(stages[2], source);
    assert_eq!((&stages[3][..10], &stages[3][10..]), (&[255u8; 10][..], &source[10..]));
}

#[test]
fn a_panic_in_a_scope_waits_for_its_copies() {
    let service = service();
    let copier = client(&service);
    let source = vec![1u8; 1 << 20];
    let mut destination = vec![0u8; 1 << 20];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        copier.scope(|scope| {
            let _pending = scope.queue(&source, &mut destination);
            panic!("on purpose");
        });
    }));
    assert!(caught.is_err());
    assert_eq!(destination, source);
}

#[test]
fn a_full_queue_copies_at_once() {
    let service = Service::start(Config { slots: 16, ..Config::default() }).unwrap();
    let copier = client(&service);
    let source = vec![7u8; 4096];
    let mut destinations = vec![vec![0u8; 4096]; 64];
    let lazy = CopyOptions { lazy_us: Some(60_000_000), ..CopyOptions::default() };
    let tokens: Vec<Token> = destinations
        .iter_mut()
        .map(|destination| submit(&copier, destination, &source, &lazy))
        .collect();
    assert!(tokens.iter().any(|token| !token.is_queued()));
    copier.sync_all().unwrap();
    assert!(destinations.iter().all(|destination| *destination == source));
}

#[test]
fn many_clients_and_threads_are_served() {
    let service = Service::start(Config { threads_max: 2, ..Config::default() }).unwrap();
    let shared = client(&service);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (service, shared) = (&service, &shared);
            scope.spawn(move || {
                let own = client(service);
                for round in 0..200u32 {
                    let copier = if round % 2 == 0 { &own } else { shared };
                    let len = 1000 + (round as usize * 7919) % 100_000;
                    let source = vec![thread ^ round as u8; len];
                    let mut destination = vec![0u8; len];
                    copier.scope(|scope| {
                        let pending = scope.queue(&source, &mut destination);
                        let middle = len / 2;
                        assert_eq!(pending.sync(middle..middle + 1).unwrap()[0], source[0]);
                    });
                    assert_eq!(destination, source);
                }
            });
        }
    });
    assert_eq!(service.counts().faults, 0);
}

/// Both ends of a stream.
fn sockets() -> (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream) {
    std::os::unix::net::UnixStream::pair().unwrap()
}

#[test]
fn what_a_socket_has_is_received_behind_the_callers_back() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let service = service();
    let copier = client(&service);
    let (mut far, near) = sockets();
    let sent: Vec<u8> = (0..60_000).map(|at| (at % 249) as u8).collect();
    far.write_all(&sent).unwrap();
    let mut buffer = vec![0u8; 100_000];
    // SAFETY: synced below, before it is read; no other reader receives.
    let (count, token) =
        unsafe { copier.receive(near.as_fd(), buffer.as_mut_ptr(), 100_000, &QUEUED) }.unwrap();
    assert_eq!((count, token.is_queued()), (60_000, true));
    // The source of a further copy before it has arrived.
    let mut object = vec![0u8; 30_000];
    let body = submit(&copier, &mut object, &buffer[10_000..40_000], &QUEUED);
    copier.sync(&body, 0..30_000).unwrap();
    assert_eq!(object, sent[10_000..40_000]);
    copier.sync(&token, 0..60_000).unwrap();
    assert_eq!(buffer[..60_000], sent);
    drop(far);
    // SAFETY: as above.
    let (count, token) =
        unsafe { copier.receive(near.as_fd(), buffer.as_mut_ptr(), 100_000, &QUEUED) }.unwrap();
    assert_eq!((count, token.is_queued()), (0, false), "the end");
}

#[test]
fn a_send_waits_for_its_socket_and_others_do_not_wait_for_it() {
    use std::io::Read;
    use std::os::fd::AsFd;
    let service = service();
    let copier = client(&service);
    let (mut far, near) = sockets();
    let sent: Vec<u8> = (0..1_000_000).map(|at| (at % 241) as u8).collect();
    let more = vec![9u8; 500_000];
    // SAFETY: neither is changed or freed before the end; no other thread sends.
    let first = unsafe { copier.send(near.as_fd(), sent.as_ptr(), sent.len(), &QUEUED) }.unwrap();
    // SAFETY: as above.
    let second = unsafe { copier.send(near.as_fd(), more.as_ptr(), more.len(), &QUEUED) }.unwrap();
    let mut elsewhere = vec![0u8; 50_000];
    let token = submit(&copier, &mut elsewhere, &sent[..50_000], &QUEUED);
    copier.sync(&token, 0..50_000).unwrap();
    assert!(!copier.is_ready(&first, 0..1_000_000), "nobody has received it");
    let mut received = vec![0u8; 1_500_000];
    far.read_exact(&mut received).unwrap();
    assert!(received[..1_000_000] == sent && received[1_000_000..] == more);
    copier.sync(&first, 0..1_000_000).unwrap();
    copier.sync(&second, 0..500_000).unwrap();
}

#[test]
fn a_broken_socket_is_its_tasks_error() {
    use std::os::fd::AsFd;
    let service = service();
    let copier = client(&service);
    let (far, near) = sockets();
    let sent = vec![1u8; 1_000_000];
    // SAFETY: not changed or freed before the end; no other thread sends.
    let token = unsafe { copier.send(near.as_fd(), sent.as_ptr(), sent.len(), &QUEUED) }.unwrap();
    drop(far);
    let failed = copier.sync(&token, 0..1_000_000).unwrap_err();
    assert!(matches!(failed, CopyError::Failed(TaskFailure::Socket(_))), "{failed}");
    // SAFETY: as above.
    let token = unsafe { copier.send(near.as_fd(), sent.as_ptr(), 10, &CopyOptions::default()) };
    assert!(token.is_err());
}

#[test]
fn a_service_that_stops_ends_what_waits_for_sockets() {
    use std::os::fd::AsFd;
    let service = service();
    let copier = client(&service);
    let (_far, near) = sockets();
    let sent = vec![1u8; 1_000_000];
    // SAFETY: not changed or freed before the end; no other thread sends.
    let token = unsafe { copier.send(near.as_fd(), sent.as_ptr(), sent.len(), &QUEUED) }.unwrap();
    eventually("some of it is sent", || service.counts().copied_bytes > 0);
    drop(service);
    let failed = copier.sync(&token, 0..1_000_000);
    assert_eq!(failed, Err(CopyError::Failed(TaskFailure::CANCELLED)));
}
