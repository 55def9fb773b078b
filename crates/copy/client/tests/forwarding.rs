//! Bytes that are received, copied and sent on: the peer gets what it gets from a program with
//! `recv`, `memcpy` and `send`, and nobody copies them in between.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of runs.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyError, CopyOptions, Polling, Service, TaskFailure, Token};
use unlade_testkit::{Random, seeds};

const UNTIL_NEEDED: CopyOptions =
    CopyOptions { lazy_us: Some(u32::MAX), queued: false, handler: None, site: 0 };
const AT_ONCE: CopyOptions = CopyOptions { lazy_us: None, ..UNTIL_NEEDED };
const QUEUED: CopyOptions = CopyOptions { queued: true, ..AT_ONCE };
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const HEAD: usize = 100;

fn service(polling: Polling) -> Service {
    Service::start(Config { polling, ..Config::default() }).unwrap()
}

fn client(service: &Service) -> Copier {
    Copier::new(service.attach().unwrap())
}

fn stream_byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 13) as u8
}

fn some_bytes(len: usize) -> Vec<u8> {
    (0..len).map(stream_byte).collect()
}

/// A pair whose first socket soon accepts nothing if nobody reads from the second one.
fn narrow() -> (UnixStream, UnixStream) {
    let (out, sink) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&out, 4096).unwrap();
    (out, sink)
}

/// Memory that is accessed by address only, as by a C program.
#[derive(Clone, Copy)]
struct Buffer {
    base: *mut u8,
    len: usize,
}

impl Buffer {
    fn of(bytes: Vec<u8>) -> Buffer {
        let bytes = Box::leak(bytes.into_boxed_slice());
        Buffer { base: bytes.as_mut_ptr(), len: bytes.len() }
    }

    fn address(&self) -> usize {
        self.base.addr()
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: within the memory, or its end.
        unsafe { self.base.add(offset) }
    }

    /// Bytes that no thread writes meanwhile.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is never freed; the tests look only where no thread writes.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    fn fill(&self, range: Range<usize>, byte: u8) {
        assert!(range.end <= self.len);
        // SAFETY: within the memory, which no task uses there.
        unsafe { self.at(range.start).write_bytes(byte, range.len()) };
    }
}

fn copy(copier: &Copier, to: *mut u8, from: *const u8, len: usize, options: &CopyOptions) -> Token {
    // SAFETY: buffers live for ever, and are not used before a sync.
    unsafe { copier.submit(to, from, len, options) }
}

fn send(copier: &Copier, to: &UnixStream, from: *const u8, len: usize) -> Token {
    // SAFETY: as above; no other thread sends to the socket, which stays open.
    unsafe { copier.send(to.as_fd(), from, len, &AT_ONCE) }.unwrap()
}

/// Reads `len` bytes in another thread.
fn reader(mut sink: UnixStream, len: usize) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = vec![0; len];
        sink.read_exact(&mut bytes).unwrap();
        bytes
    })
}

/// Receives all of a message of a known length.
fn receive_all(copier: &Copier, from: &UnixStream, to: &Buffer) {
    let mut at = 0;
    while at < to.len {
        // SAFETY: as above; no other thread receives.
        let received =
            unsafe { copier.receive(from.as_fd(), to.at(at), to.len - at, &AT_ONCE) }.unwrap();
        copier.sync(&received.1, 0..received.0).unwrap();
        assert!(received.0 > 0);
        at += received.0;
    }
}

#[test]
fn a_forwarded_body_is_copied_zero_times_in_user_space() {
    for (len, has_head) in SIZES.into_iter().flat_map(|len| [(len, false), (len, true)]) {
        let service = service(Polling::Adaptive);
        let copier = client(&service);
        let (mut far, near) = UnixStream::pair().unwrap();
        let (out, sink) = UnixStream::pair().unwrap();
        let body = some_bytes(len);
        let (bytes, head) = (body.clone(), if has_head { HEAD } else { 0 });
        let feeder = std::thread::spawn(move || far.write_all(&bytes));
        let reader = reader(sink, head + len);
        let (input, output) = (Buffer::of(vec![0; len]), Buffer::of(vec![7; head + len]));
        receive_all(&copier, &near, &input);
        let before = copier.stats().read();
        let _body = copy(&copier, output.at(head), input.base, len, &UNTIL_NEEDED);
        let mut sent = Vec::new();
        for at in (0..head + len).step_by(unlade_copy::TASK_BYTES_MAX) {
            let part = (head + len - at).min(unlade_copy::TASK_BYTES_MAX);
            sent.push(send(&copier, &out, output.at(at), part));
        }
        copier.discard(output.address() + head, len);
        for token in sent {
            copier.sync(&token, 0..usize::MAX).unwrap();
        }
        feeder.join().unwrap().unwrap();
        let received = reader.join().unwrap();
        assert!(received[..head].iter().all(|byte| *byte == 7) && received[head..] == body);
        // The program copied nothing, nor did the service besides the system calls.
        let (stats, counts) = (copier.stats().read(), service.counts());
        let sent = stats.at_once_bytes + stats.queued_bytes;
        let sent = sent - before.at_once_bytes - before.queued_bytes;
        assert_eq!(sent, (head + len) as u64, "all of it by sends");
        assert_eq!((stats.helped_bytes, stats.saved_bytes), (0, 0));
        assert_eq!(counts.copied_bytes, counts.socket_bytes, "{counts:?}");
        assert_eq!((stats.forwarded_bytes, copier.never_made()), (len as u64, (1, len as u64)));
        assert!(output.bytes()[head..].iter().all(|byte| *byte == 7), "never written");
    }
}

#[test]
fn safe_code_forwards_without_a_copy() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = UnixStream::pair().unwrap();
    let (input, mut output) = (some_bytes(2 << 20), vec![7; 2 << 20]);
    let reader = reader(sink, input.len() - 5);
    copier.scope(|scope| {
        let copied = scope.copy_lazily(&input, &mut output, u32::MAX);
        let sent = scope.send_copied(out.as_fd(), &copied, 5..input.len()).unwrap();
        copied.discard();
        sent.wait().unwrap();
    });
    assert!(reader.join().unwrap() == input[5..]);
    assert!(output.iter().all(|byte| *byte == 7));
    let stats = copier.stats().read();
    assert_eq!((stats.forwarded_bytes, stats.saved_bytes), (input.len() as u64 - 5, 0));
    // A change of the destination has its bytes saved before.
    let (out, sink) = narrow();
    copier.scope(|scope| {
        let mut copied = scope.copy_lazily(&input, &mut output, u32::MAX);
        let _sent = scope.send_copied(out.as_fd(), &copied, 0..300_000).unwrap();
        copied.sync_mut(0..300_000).unwrap().fill(0);
        drop(copied);
        assert!(self::reader(sink, 300_000).join().unwrap() == input[..300_000]);
    });
    assert!(
        output[..300_000].iter().all(|byte| *byte == 0) && output[300_000..] == input[300_000..]
    );
}

#[test]
fn the_source_may_change_though_the_peer_takes_nothing() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = narrow();
    let body = some_bytes(1 << 20);
    let (input, output) = (Buffer::of(body.clone()), Buffer::of(vec![7; 1 << 20]));
    let len = body.len() - HEAD;
    let kept = copy(&copier, output.at(HEAD), input.base, len, &UNTIL_NEEDED);
    let sent = send(&copier, &out, output.base, output.len);
    // No byte is read before both buffers were used again.
    copier.sync_for_write(output.address(), HEAD).unwrap();
    output.fill(0..HEAD, 9);
    copier.sync_for_write(input.address() + 1000, 1).unwrap();
    input.fill(1000..1001, 0);
    copier.sync_for_write(input.address(), input.len).unwrap();
    input.fill(0..input.len, 0);
    assert!(!copier.is_ready(&sent, 0..output.len));
    let reader = reader(sink, output.len);
    copier.sync(&sent, 0..output.len).unwrap();
    let received = reader.join().unwrap();
    assert!(received[..HEAD].iter().all(|byte| *byte == 7) && received[HEAD..] == body[..len]);
    copier.sync(&kept, 0..len).unwrap();
    assert!(output.bytes()[HEAD..] == body[..len], "made before its source changed");
    let stats = copier.stats().read();
    assert_eq!(stats.forwarded_bytes, len as u64);
    assert!(stats.saved_bytes > 500_000 && stats.saved_bytes <= output.len as u64, "{stats:?}");
}

/// Changes the buffer, with bytes of the socket where it needs some.
type Change = fn(&Copier, &Buffer, &UnixStream);

/// Each change of the source of a deferred copy whose destination is being sent.
#[test]
fn whatever_changes_the_source_has_its_bytes_saved_before() {
    let len = 256 << 10;
    let changes: [(&str, Change); 6] = [
        ("a write", |copier, input, _| {
            copier.sync_for_write(input.address(), input.len).unwrap();
            input.fill(0..input.len, 0);
        }),
        ("a copy at once", |copier, input, _| {
            let zeros = Buffer::of(vec![0; input.len]);
            let _token = copy(copier, input.base, zeros.base, input.len, &AT_ONCE);
        }),
        ("a queued copy", |copier, input, _| {
            let zeros = Buffer::of(vec![0; input.len]);
            let _token = copy(copier, input.base, zeros.base, input.len, &QUEUED);
        }),
        ("a deferred copy", |copier, input, _| {
            let zeros = Buffer::of(vec![0; input.len]);
            let _token = copy(copier, input.base, zeros.base, input.len, &UNTIL_NEEDED);
        }),
        ("a receive", |copier, input, near| receive_all(copier, near, input)),
        ("a deferred receive", |copier, input, near| {
            // SAFETY: buffers live for ever; nobody else receives.
            let received =
                unsafe { copier.receive_lazily(near.as_fd(), input.base, input.len) }.unwrap();
            copier.sync(received.token(), 0..received.count()).unwrap();
        }),
    ];
    for (what, change) in changes {
        let service = service(Polling::Adaptive);
        let copier = client(&service);
        let (mut far, near) = UnixStream::pair().unwrap();
        let (out, sink) = narrow();
        let feeder = std::thread::spawn(move || far.write_all(&vec![0; len]).map(|()| far));
        let body = some_bytes(len);
        let (input, output) = (Buffer::of(body.clone()), Buffer::of(vec![7; len]));
        let _kept = copy(&copier, output.base, input.base, len, &UNTIL_NEEDED);
        let sent = send(&copier, &out, output.base, len);
        copier.discard_range(output.address(), len).unwrap();
        change(&copier, &input, &near);
        copier.sync_for_write(input.address(), len).unwrap();
        input.fill(0..len, 1);
        let reader = reader(sink, len);
        copier.sync(&sent, 0..len).unwrap();
        assert!(reader.join().unwrap() == body, "{what}");
        assert!(copier.stats().read().saved_bytes > 0, "{what}");
        drop(near);
        // It may not have been received by all of them.
        let _ = feeder.join().unwrap();
    }
}

#[test]
fn a_look_at_the_copy_has_it_made_and_the_send_goes_on() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = narrow();
    let body = some_bytes(256 << 10);
    let (input, output) = (Buffer::of(body.clone()), Buffer::of(vec![7; body.len()]));
    let _kept = copy(&copier, output.base, input.base, body.len(), &UNTIL_NEEDED);
    let sent = send(&copier, &out, output.base, body.len());
    copier.sync_range(output.address(), body.len()).unwrap();
    assert!(output.bytes() == body);
    let reader = reader(sink, body.len());
    copier.sync(&sent, 0..body.len()).unwrap();
    assert!(reader.join().unwrap() == body);
    assert_eq!(copier.stats().read().saved_bytes, 0);
}

#[test]
fn a_send_of_many_pieces_is_one_gather() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = UnixStream::pair().unwrap();
    let (input, output) = (Buffer::of(some_bytes(9000)), Buffer::of(vec![7; 9000]));
    let mut expected = vec![7; 9000];
    for at in [1000, 3000, 5000] {
        let _kept = copy(&copier, output.at(at), input.at(9000 - at), 1000, &UNTIL_NEEDED);
        expected[at..at + 1000].copy_from_slice(&input.bytes()[9000 - at..10_000 - at]);
    }
    let reader = reader(sink, 8000 + 2000);
    let queued = send(&copier, &out, output.base, 8000);
    // A short one is sent by this thread, after the queued one.
    let short = send(&copier, &out, output.at(500), 2000);
    copier.sync(&queued, 0..8000).unwrap();
    copier.sync(&short, 0..2000).unwrap();
    let received = reader.join().unwrap();
    assert!(received[..8000] == expected[..8000] && received[8000..] == expected[500..2500]);
    let stats = copier.stats().read();
    assert_eq!((stats.forwarded_bytes, stats.saved_bytes), (4000, 0));
    assert!(output.bytes().iter().all(|byte| *byte == 7));
}

#[test]
fn more_pieces_or_sends_than_fit_are_copied_and_counted() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = narrow();
    let (input, output) = (Buffer::of(some_bytes(10_000)), Buffer::of(vec![7; 10_000]));
    let mut expected = vec![7; 10_000];
    for at in (0..10_000).step_by(1000) {
        let _kept = copy(&copier, output.at(at), input.at(at), 500, &UNTIL_NEEDED);
        expected[at..at + 500].copy_from_slice(&input.bytes()[at..at + 500]);
    }
    let mut tokens = vec![send(&copier, &out, output.base, 10_000)];
    assert_eq!(copier.stats().read().saved_bytes, 5000);
    // The socket is full: these stay pending.
    let others: Vec<Buffer> = (0..20).map(|number| Buffer::of(vec![number; 8192])).collect();
    let lazily = Buffer::of(vec![0; 8192]);
    for other in &others {
        copier.discard_range(lazily.address(), 8192).unwrap();
        let _kept = copy(&copier, lazily.base, other.base, 8192, &UNTIL_NEEDED);
        tokens.push(send(&copier, &out, lazily.base, 8192));
        expected.extend_from_slice(other.bytes());
        if copier.stats().read().saved_bytes > 5000 {
            // This one reads `lazily` itself, which must not change any more.
            break;
        }
    }
    assert_eq!(copier.stats().read().saved_bytes, 5000 + 8192);
    let reader = reader(sink, expected.len());
    for token in tokens {
        copier.sync(&token, 0..usize::MAX).unwrap();
    }
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn a_send_that_breaks_or_is_aborted_leaves_the_copy() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    for breaks in [true, false] {
        let (out, sink) = narrow();
        let body = some_bytes(256 << 10);
        let (input, output) = (Buffer::of(body.clone()), Buffer::of(vec![7; body.len()]));
        let _kept = copy(&copier, output.base, input.base, body.len(), &UNTIL_NEEDED);
        let sent = send(&copier, &out, output.base, body.len());
        if breaks {
            drop(sink);
            let failed = copier.sync(&sent, 0..body.len()).unwrap_err();
            assert!(matches!(failed, CopyError::Failed(TaskFailure::Socket(_))), "{failed}");
        } else {
            copier.abort(&sent);
            assert!(copier.is_ready(&sent, 0..body.len()));
        }
        copier.sync_for_write(input.address(), input.len).unwrap();
        input.fill(0..input.len, 0);
        copier.sync_range(output.address(), output.len).unwrap();
        assert!(output.bytes() == body);
        assert_eq!(copier.stats().read().saved_bytes, 0, "nothing reads it any more");
    }
    // A short send tells its error at once.
    let (out, sink) = narrow();
    drop(sink);
    let (input, output) = (Buffer::of(some_bytes(1000)), Buffer::of(vec![7; 1000]));
    let _kept = copy(&copier, output.base, input.base, 1000, &UNTIL_NEEDED);
    // SAFETY: as in `send`.
    let failed = unsafe { copier.send(out.as_fd(), output.base, 1000, &AT_ONCE) }.unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn without_a_service_the_waiter_sends_from_the_source() {
    let service = service(Polling::Scenario);
    let copier = client(&service);
    drop(service);
    for saves in [false, true] {
        let (out, sink) = narrow();
        let body = some_bytes(300_000);
        let (input, output) = (Buffer::of(body.clone()), Buffer::of(vec![7; body.len() + HEAD]));
        let _kept = copy(&copier, output.at(HEAD), input.base, body.len(), &UNTIL_NEEDED);
        let sent = send(&copier, &out, output.base, output.len);
        if saves {
            copier.sync_for_write(input.address(), input.len).unwrap();
            input.fill(0..input.len, 0);
        }
        let reader = reader(sink, output.len);
        copier.sync(&sent, 0..output.len).unwrap();
        let received = reader.join().unwrap();
        assert!(received[..HEAD].iter().all(|byte| *byte == 7) && received[HEAD..] == body);
        let saved = copier.stats().read().saved_bytes;
        assert!(if saves { (200_000..=300_000).contains(&saved) } else { saved == 0 }, "{saved}");
    }
}

#[test]
fn a_handler_of_a_send_may_free_its_bytes() {
    extern "C" fn refill(address: usize) {
        // SAFETY: the address of a buffer of this length, which no task uses any more.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(9, 8192) };
    }
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (out, sink) = UnixStream::pair().unwrap();
    let (input, output) = (Buffer::of(some_bytes(8192)), Buffer::of(vec![7; 8192]));
    let _kept = copy(&copier, output.base, input.base, 8192, &UNTIL_NEEDED);
    let handler = Some((refill as *const () as usize, output.base.expose_provenance()));
    let options = CopyOptions { handler, ..AT_ONCE };
    // SAFETY: as in `send`; the handler may be called once.
    let sent = unsafe { copier.send(out.as_fd(), output.base, 8192, &options) }.unwrap();
    copier.sync(&sent, 0..8192).unwrap();
    copier.sync_handlers().unwrap();
    copier.sync_for_write(input.address(), 8192).unwrap();
    assert!(output.bytes().iter().all(|byte| *byte == 9), "no copy is made afterwards");
    assert!(reader(sink, 8192).join().unwrap() == some_bytes(8192));
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// Bytes in a socket's queue.
fn arrived(socket: &UnixStream) -> usize {
    rustix::io::ioctl_fionread(socket).unwrap() as usize
}

#[test]
fn what_is_passed_on_past_a_copy_goes_from_socket_to_socket() {
    // A pipe is used from 64 KiB on.
    for (len, is_copied) in [(10_000, true), (100_000, true), (100_000, false)] {
        let service = service(Polling::Adaptive);
        let copier = client(&service);
        let (mut far, near) = UnixStream::pair().unwrap();
        let (out, sink) = UnixStream::pair().unwrap();
        out.set_nonblocking(true).unwrap();
        let message = some_bytes(HEAD + len);
        far.write_all(&message).unwrap();
        eventually("all is there", || arrived(&near) == message.len());
        let (input, output) = (Buffer::of(vec![8; message.len()]), Buffer::of(vec![7; len]));
        // SAFETY: as above.
        let received =
            unsafe { copier.receive_lazily(near.as_fd(), input.base, input.len) }.unwrap();
        assert_eq!(received.count(), message.len());
        copier.sync(received.token(), 0..HEAD).unwrap();
        assert!(input.bytes()[..HEAD] == message[..HEAD]);
        let from = if is_copied {
            let _kept = copy(&copier, output.base, input.at(HEAD), len, &UNTIL_NEEDED);
            output.base
        } else {
            input.at(HEAD)
        };
        // SAFETY: as above; neither place is read below, except to see that nothing is there.
        let sent = unsafe { copier.pass_on(out.as_fd(), from, len) }.unwrap();
        let reader = reader(sink, len);
        copier.sync(&sent, 0..len).unwrap();
        assert!(reader.join().unwrap() == message[HEAD..]);
        copier.sync_all().unwrap();
        let (stats, counts) = (copier.stats().read(), service.counts());
        assert_eq!(counts.copied_bytes, counts.socket_bytes, "{counts:?}");
        assert_eq!((stats.at_once_bytes, stats.helped_bytes), (0, 0));
        assert_eq!(copier.never_made().0, u64::from(is_copied));
        // The segment of the head was received with it.
        assert_eq!(counts.zero_copy_bytes > 64 << 10, len > 64 << 10, "{counts:?}");
        assert!(output.bytes().iter().all(|byte| *byte == 7));
        far.write_all(b"next").unwrap();
        let next = Buffer::of(vec![0; 4]);
        receive_all(&copier, &near, &next);
        assert_eq!(next.bytes(), b"next");
    }
}

#[test]
fn passing_on_leaves_what_others_need() {
    let service = service(Polling::Adaptive);
    let copier = client(&service);
    let (mut far, near) = UnixStream::pair().unwrap();
    let (out, sink) = UnixStream::pair().unwrap();
    let body = some_bytes(50_000);
    far.write_all(&body).unwrap();
    eventually("all is there", || arrived(&near) == body.len());
    let buffer = || Buffer::of(vec![7; body.len()]);
    let (input, output, other) = (buffer(), buffer(), buffer());
    // SAFETY: as above.
    let received = unsafe { copier.receive_lazily(near.as_fd(), input.base, input.len) }.unwrap();
    let _received = received;
    let _kept = copy(&copier, output.base, input.base, body.len(), &UNTIL_NEEDED);
    let _other = copy(&copier, other.at(100), input.at(100), 30_000, &UNTIL_NEEDED);
    // SAFETY: as above.
    let sent = unsafe { copier.pass_on(out.as_fd(), output.base, body.len()) }.unwrap();
    let reader = reader(sink, body.len());
    copier.sync(&sent, 0..body.len()).unwrap();
    assert!(reader.join().unwrap() == body);
    copier.sync_range(other.address(), other.len).unwrap();
    assert!(other.bytes()[100..30_100] == body[100..30_100]);
    // With all received it is an ordinary send, past the copy.
    let _kept = copy(&copier, output.base, other.base, 5000, &UNTIL_NEEDED);
    let (out, sink) = UnixStream::pair().unwrap();
    // SAFETY: as above.
    let sent = unsafe { copier.pass_on(out.as_fd(), output.base, 5000) }.unwrap();
    copier.sync(&sent, 0..5000).unwrap();
    assert!(self::reader(sink, 5000).join().unwrap() == other.bytes()[..5000]);
    assert_eq!((copier.never_made().0, copier.stats().read().forwarded_bytes), (2, 5000));
}

const MEMORY: usize = 96 << 10;
const STREAM: usize = 512 << 10;
const STEPS: usize = 400;

/// A random program, and what each of its bytes is after `memcpy`, `recv` and `send`.
struct Program<'a> {
    copier: &'a Copier,
    random: Random,
    near: UnixStream,
    outs: Vec<UnixStream>,
    memory: Buffer,
    truth: Vec<Option<u8>>,
    position: usize,
    sent: Vec<Vec<u8>>,
    tokens: Vec<Token>,
    /// The last copy that was deferred, its destination and source, while no other operation wrote.
    last: Option<(Token, Range<usize>, Range<usize>)>,
}

impl Program<'_> {
    fn range(&mut self) -> Range<usize> {
        let shift = self.random.below(8);
        let len = 1 + self.random.below((MEMORY / 3) >> shift);
        let start = self.random.below(MEMORY - len + 1);
        start..start + len
    }

    fn address(&self, range: &Range<usize>) -> usize {
        self.memory.address() + range.start
    }

    fn check(&self, range: Range<usize>) {
        for at in range {
            let (is, should) = (self.memory.bytes()[at], self.truth[at]);
            assert!(should.is_none_or(|should| should == is), "byte {at}: {is}, not {should:?}");
        }
    }

    fn receive(&mut self) {
        let range = self.range();
        let options = CopyOptions { queued: self.random.below(2) == 0, ..AT_ONCE };
        let (fd, to) = (self.near.as_fd(), self.memory.at(range.start));
        // SAFETY: the memory stays, only synced bytes are read, and no other thread receives.
        let count = unsafe {
            match self.random.below(2) {
                0 => self.copier.receive(fd, to, range.len(), &options).map(|(count, _)| count),
                _ => self.copier.receive_lazily(fd, to, range.len()).map(|all| all.count()),
            }
        };
        match count {
            Ok(count) => {
                for at in 0..count {
                    self.truth[range.start + at] = Some(stream_byte(self.position + at));
                }
                self.position += count;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        self.last = None;
    }

    fn copy(&mut self) {
        let to = self.range();
        let from = self.random.below(MEMORY - to.len() + 1);
        if from.abs_diff(to.start) < to.len() {
            return;
        }
        let is_deferred = self.random.below(4) != 0;
        let options = if is_deferred { UNTIL_NEEDED } else { self.random.pick(&[AT_ONCE, QUEUED]) };
        let (dst, src) = (self.memory.at(to.start), self.memory.at(from));
        let token = copy(self.copier, dst, src, to.len(), &options);
        self.truth.copy_within(from..from + to.len(), to.start);
        let source = from..from + to.len();
        self.last = is_deferred.then_some((token, to, source));
    }

    /// Sends a range of known bytes, often what was copied last.
    fn send(&mut self) {
        let range = match &self.last {
            Some((_, to, _)) if self.random.below(4) != 0 => {
                to.start.saturating_sub(self.random.below(200))..to.end
            }
            _ => self.range(),
        };
        let known: Option<Vec<u8>> = self.truth[range.clone()].iter().copied().collect();
        let Some(known) = known else { return };
        let out = self.random.below(self.outs.len());
        let options = CopyOptions { queued: self.random.below(2) == 0, ..AT_ONCE };
        let (fd, from) = (self.outs[out].as_fd(), self.memory.at(range.start));
        let (copier, passes) = (self.copier, self.random.below(4) == 0);
        let copied = self.last.clone().filter(|(_, to, _)| passes && *to == range);
        // SAFETY: the memory stays, and is changed only after a sync for it; no other thread sends.
        let token = unsafe {
            match &copied {
                Some(_) => copier.pass_on(fd, from, range.len()),
                None => copier.send(fd, from, range.len(), &options),
            }
        };
        self.tokens.push(token.unwrap());
        self.sent[out].extend(known);
        if let Some((_, to, from)) = copied {
            self.truth[to].fill(None);
            self.truth[from].fill(None);
            self.last = None;
        }
    }

    fn look(&mut self) {
        let range = self.range();
        self.copier.sync_range(self.address(&range), range.len()).unwrap();
        self.check(range);
    }

    fn write(&mut self) {
        let range = self.range();
        self.copier.sync_for_write(self.address(&range), range.len()).unwrap();
        self.check(range.clone());
        let byte = self.random.next() as u8;
        self.memory.fill(range.clone(), byte);
        self.truth[range].fill(Some(byte));
        self.last = None;
    }

    fn discard(&mut self) {
        let range = self.range();
        self.copier.discard_range(self.address(&range), range.len()).unwrap();
        self.truth[range].fill(None);
        self.last = None;
    }

    fn abort_copy(&mut self) {
        if let Some((token, to, _)) = self.last.take() {
            self.copier.abort(&token);
            self.truth[to].fill(None);
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            match self.random.below(20) {
                0..3 => self.receive(),
                3..9 => self.copy(),
                9..14 => self.send(),
                14 | 15 => self.look(),
                16 | 17 => self.write(),
                18 => self.discard(),
                _ => self.abort_copy(),
            }
        }
        self.copier.sync_all().unwrap();
        self.check(0..MEMORY);
        for token in &self.tokens {
            self.copier.sync(token, 0..usize::MAX).unwrap();
        }
    }
}

/// Reads a stream to its end, in pieces of any size.
fn drain(mut sink: UnixStream, mut random: Random) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let most = 1 + random.below(piece.len());
        match sink.read(&mut piece[..most]).unwrap() {
            0 => return all,
            count => all.extend_from_slice(&piece[..count]),
        }
        for _ in 0..random.below(20) {
            std::thread::yield_now();
        }
    }
}

/// Runs one program. Returns the bytes that were sent past copies, saved, and never copied.
fn one_program(polling: Polling, stops: bool, seed: u64) -> [u64; 3] {
    let mut service = Some(service(polling));
    let copier = client(service.as_ref().unwrap());
    let (mut far, near) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let feeder = std::thread::spawn(move || {
        // The program may end before all is received.
        let _ = far.write_all(&some_bytes(STREAM));
        far
    });
    let (outs, sinks): (Vec<_>, Vec<_>) = (0..2).map(|_| narrow()).unzip();
    outs[0].set_nonblocking(true).unwrap();
    let readers: Vec<_> = sinks
        .into_iter()
        .enumerate()
        .map(|(number, sink)| {
            let random = Random::new(seed ^ (number as u64 + 1) << 32);
            std::thread::spawn(move || drain(sink, random))
        })
        .collect();
    if stops {
        service = None;
    }
    let first = some_bytes(MEMORY);
    let mut program = Program {
        copier: &copier,
        random: Random::new(seed),
        near,
        outs,
        truth: first.iter().copied().map(Some).collect(),
        memory: Buffer::of(first),
        position: 0,
        sent: vec![Vec::new(); 2],
        tokens: Vec::new(),
        last: None,
    };
    program.run();
    let Program { sent, outs, near, .. } = program;
    drop((outs, near));
    for (reader, expected) in readers.into_iter().zip(sent) {
        assert!(reader.join().unwrap() == expected, "what was sent");
    }
    let _far = feeder.join().unwrap();
    drop(service);
    let stats = copier.stats().read();
    [stats.forwarded_bytes, stats.saved_bytes, copier.never_made().1]
}

#[test]
fn peers_get_what_a_program_with_memcpy_sends() {
    let mut totals = [0; 3];
    for seed in seeds(60) {
        println!("UNLADE_SEED={seed}");
        let polling = [Polling::Always, Polling::Adaptive, Polling::Scenario][seed as usize % 3];
        let counted = one_program(polling, seed % 8 == 7, seed);
        totals.iter_mut().zip(counted).for_each(|(total, counted)| *total += counted);
    }
    println!("forwarded, saved, never made: {totals:?}");
    assert!(totals.iter().all(|bytes| *bytes > 0));
}
