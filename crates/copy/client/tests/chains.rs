//! Chains through sockets: received bytes go on to their destination, once, in order, and every
//! byte that the program may read is the same as with `recv` and `memcpy`.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of runs.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use unlade_copy::{
    Config, Copier, CopyError, CopyOptions, Polling, Received, Service, TaskFailure, Token,
};
use unlade_testkit::{Random, seeds};

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };

fn service(polling: Polling) -> Service {
    Service::start(Config { polling, ..Config::default() }).unwrap()
}

fn client(service: &Service) -> Copier {
    Copier::new(service.attach().unwrap())
}

/// Waits until the service's thread polls the queue.
fn wake(copier: &Copier) {
    let (source, mut destination) = ([1u8; 64], [0u8; 64]);
    // SAFETY: both live until the bytes are copied.
    let token = unsafe { copier.submit(destination.as_mut_ptr(), source.as_ptr(), 64, &QUEUED) };
    // Does not help, so that the service makes the copy.
    eventually("a copy is made", || copier.is_ready(&token, 0..64));
    assert_eq!(destination, source);
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

fn some_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 249) as u8).collect()
}

/// # Safety
/// The buffer stays where it is, and unsynced bytes are not read.
unsafe fn receive(copier: &Copier, near: &UnixStream, buffer: &mut [u8]) -> Received {
    // SAFETY: the caller's promise; no other reader receives.
    unsafe { copier.receive_lazily(near.as_fd(), buffer.as_mut_ptr(), buffer.len()) }.unwrap()
}

fn delivers(polling: Polling) -> Service {
    let service = service(polling);
    let copier = client(&service);
    if polling == Polling::Always {
        wake(&copier);
    }
    let (mut far, near) = UnixStream::pair().unwrap();
    let sent = some_bytes(60_000);
    far.write_all(&sent).unwrap();
    let (mut buffer, mut object) = (vec![0u8; 100_000], vec![0u8; 50_000]);
    // SAFETY: both stay where they are; unsynced bytes are not read.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        assert_eq!(received.count(), 60_000);
        copier.sync(received.token(), 0..40).unwrap();
        assert_eq!(buffer[..40], sent[..40]);
        let body = copier.deliver(&received, 40..50_040, object.as_mut_ptr()).unwrap();
        copier.sync(&body, 0..50_000).unwrap();
        copier.sync(received.token(), 50_040..60_000).unwrap();
        assert_eq!(buffer[50_040..60_000], sent[50_040..]);
    }
    assert_eq!(object, sent[40..50_040]);
    // Bytes delivered to the object never came to the buffer.
    assert_eq!(buffer[10_000..50_000], [0u8; 40_000]);
    far.write_all(b"next").unwrap();
    // SAFETY: as above.
    let received = unsafe { receive(&copier, &near, &mut buffer) };
    copier.sync(received.token(), 0..4).unwrap();
    assert_eq!(&buffer[..4], b"next");
    drop(copier);
    service
}

#[test]
fn a_body_is_delivered_past_the_buffer_and_the_rest_is_in_it() {
    let service = delivers(Polling::Always);
    let counts = service.counts();
    assert!(counts.absorbed_bytes >= 40_000, "{counts:?}");
}

#[test]
fn a_body_is_delivered_by_the_client_where_the_service_sleeps() {
    delivers(Polling::Scenario);
}

#[test]
fn an_aborted_receive_still_serves_those_who_copy_from_it() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let (mut far, near) = UnixStream::pair().unwrap();
    let sent = some_bytes(60_000);
    far.write_all(&sent).unwrap();
    let (mut buffer, mut object) = (vec![0u8; 60_000], vec![0u8; 30_000]);
    let lazy = CopyOptions { lazy_us: Some(60_000_000), ..QUEUED };
    // SAFETY: as in `delivers`.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        copier.sync(received.token(), 0..100).unwrap();
        let source = buffer[10_000..].as_ptr();
        let body = copier.submit(object.as_mut_ptr(), source, 30_000, &lazy);
        copier.abort(received.token());
        copier.sync(&body, 0..30_000).unwrap();
    }
    assert_eq!(object, sent[10_000..40_000]);
    // The bytes are out of the stream.
    far.write_all(b"next").unwrap();
    // SAFETY: as above.
    let received = unsafe { receive(&copier, &near, &mut buffer) };
    assert_eq!(received.count(), 4);
    copier.sync(received.token(), 0..4).unwrap();
    assert_eq!(&buffer[..4], b"next");
    let counts = service.counts();
    assert!(counts.absorbed_bytes >= 30_000, "{counts:?}");
}

/// A stream that has fewer bytes than were reserved: another reader took some, and it ended.
fn falls_short(polling: Polling) {
    let service = service(polling);
    let copier = client(&service);
    let (mut far, mut near) = UnixStream::pair().unwrap();
    far.write_all(&some_bytes(60_000)).unwrap();
    drop(far);
    let (mut buffer, mut first, mut second) =
        (vec![0u8; 60_000], vec![0u8; 20_000], vec![0u8; 20_000]);
    let mut third = vec![0u8; 1000];
    let ended = Err(CopyError::Failed(TaskFailure::Ended));
    // SAFETY: as in `delivers`; the last promise is violated on purpose, before any copy.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        let mut stolen = vec![0u8; 20_000];
        near.read_exact(&mut stolen).unwrap();
        let lazy = CopyOptions { lazy_us: Some(60_000_000), ..QUEUED };
        let early = copier.submit(first.as_mut_ptr(), buffer.as_ptr(), 20_000, &lazy);
        let source = buffer[30_000..].as_ptr();
        let late = copier.submit(second.as_mut_ptr(), source, 20_000, &lazy);
        let later = copier.submit(third.as_mut_ptr(), second[19_000..].as_ptr(), 1000, &lazy);
        assert_eq!(copier.sync(received.token(), 59_000..60_000), ended);
        assert_eq!(copier.sync(&early, 0..20_000), Ok(()));
        assert_eq!(copier.sync(&late, 19_000..20_000), ended);
        assert_eq!(copier.sync(&later, 0..1000), ended);
        assert_eq!(copier.sync_all(), Ok(()), "of all that failed the program was told");
    }
    assert_eq!(first, some_bytes(60_000)[20_000..40_000]);
}

#[test]
fn who_needs_bytes_that_did_not_come_is_told() {
    falls_short(Polling::Always);
}

#[test]
fn readers_of_missing_bytes_fail_while_the_service_sleeps() {
    falls_short(Polling::Scenario);
}

#[test]
fn a_bad_place_is_its_copys_error_and_the_stream_goes_on() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let (mut far, near) = UnixStream::pair().unwrap();
    let sent = some_bytes(60_000);
    far.write_all(&sent).unwrap();
    let mut buffer = vec![0u8; 60_000];
    // SAFETY: as in `delivers`; the destination is not mapped, which the kernel detects.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        let lazy = CopyOptions { lazy_us: Some(60_000_000), ..QUEUED };
        let nowhere = std::ptr::without_provenance_mut(64);
        let bad = copier.submit(nowhere, buffer[10_000..].as_ptr(), 30_000, &lazy);
        copier.abort(received.token());
        eventually("the fault is found", || copier.is_ready(&bad, 0..30_000));
        let failed = Err(CopyError::Failed(TaskFailure::BadAddress));
        assert_eq!(copier.sync(&bad, 0..30_000), failed);
        assert_eq!(copier.sync(received.token(), 0..60_000), Ok(()));
    }
    assert_eq!(buffer[40_000..], sent[40_000..]);
    far.write_all(b"next").unwrap();
    // SAFETY: as above.
    let received = unsafe { receive(&copier, &near, &mut buffer) };
    copier.sync(received.token(), 0..4).unwrap();
    assert_eq!(&buffer[..4], b"next");
}

fn range(random: &mut Random, len: usize) -> std::ops::Range<usize> {
    let start = random.below(len);
    start..start + 1 + random.below(len - start)
}

fn stream_byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 13) as u8
}

const BUFFER: usize = 48 << 10;
const ARENA: usize = 96 << 10;
const STREAM: usize = 1 << 20;

/// A program and its model.
struct Program<'a> {
    copier: &'a Copier,
    random: Random,
    near: UnixStream,
    out: UnixStream,
    /// Bytes received so far.
    position: usize,
    /// The input buffer, and behind it the destinations of copies.
    memory: Vec<u8>,
    truth: Vec<Option<u8>>,
    sent: Vec<Option<u8>>,
    last: Option<Received>,
    sends: Vec<(Token, usize)>,
}

impl Program<'_> {
    fn base(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Returns false at the end of the stream.
    fn receive(&mut self) -> bool {
        let len = 1 + self.random.below(BUFFER);
        let (buffer, fd) = (self.base(), self.near.as_fd());
        // SAFETY: the memory stays; only synced bytes are read; no other reader receives.
        match unsafe { self.copier.receive_lazily(fd, buffer, len) } {
            Ok(received) if received.count() == 0 => return false,
            Ok(received) => {
                for at in 0..received.count() {
                    self.truth[at] = Some(stream_byte(self.position + at));
                }
                self.position += received.count();
                self.last = Some(received);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        true
    }

    fn copy(&mut self, deliver: bool) {
        let Some(received) = self.last.take() else { return };
        let range = range(&mut self.random, received.count());
        let at = BUFFER + self.random.below(ARENA - range.len());
        let base = self.base();
        let lazy_us = (self.random.below(2) == 0).then_some(60_000_000);
        let options =
            CopyOptions { lazy_us, queued: self.random.below(4) != 0, ..CopyOptions::default() };
        for offset in 0..range.len() {
            self.truth[at + offset] = self.truth[range.start + offset];
            if deliver {
                self.truth[range.start + offset] = None;
            }
        }
        // SAFETY: as above.
        unsafe {
            let dst = base.add(at);
            if deliver {
                let _ = self.copier.deliver(&received, range, dst).unwrap();
            } else {
                let _ = self.copier.submit(dst, base.add(range.start), range.len(), &options);
            }
        }
        self.last = Some(received);
    }

    fn send(&mut self) {
        let range = range(&mut self.random, BUFFER);
        // The content of a send must be known, to check it at the receiver.
        if self.truth[range.clone()].iter().any(Option::is_none) {
            return;
        }
        self.sent.extend_from_slice(&self.truth[range.clone()]);
        let src = self.memory[range.start..].as_ptr();
        // SAFETY: as above; no other thread sends.
        let token =
            unsafe { self.copier.send(self.out.as_fd(), src, range.len(), &QUEUED) }.unwrap();
        self.sends.push((token, range.len()));
    }

    /// Sends the last received bytes on.
    fn send_on(&mut self) {
        let Some(received) = self.last.take() else { return };
        let range = self.random.below(received.count())..received.count();
        if self.truth[range.clone()].iter().all(Option::is_some) {
            self.sent.extend_from_slice(&self.truth[range.clone()]);
            self.truth[range.clone()].fill(None);
            let len = range.len();
            // SAFETY: as above; no other thread sends.
            let token = unsafe { self.copier.send_on(&received, range, self.out.as_fd()) }.unwrap();
            self.sends.push((token, len));
        }
        self.last = Some(received);
    }

    fn look(&mut self) {
        let range = range(&mut self.random, BUFFER + ARENA);
        let address = self.memory.as_ptr().addr() + range.start;
        self.copier.sync_range(address, range.len()).unwrap();
        self.check(range);
    }

    fn check(&self, range: std::ops::Range<usize>) {
        for at in range {
            let (is, should) = (self.memory[at], self.truth[at]);
            assert!(should.is_none_or(|should| should == is), "byte {at}: {is}, not {should:?}");
        }
    }

    fn run(&mut self) {
        loop {
            match self.random.below(12) {
                0..3 if !self.receive() => break,
                3 | 4 => self.copy(false),
                5..8 => self.copy(true),
                8 => self.send(),
                10 if self.random.below(3) == 0 => self.send_on(),
                9 => self.look(),
                10 if self.random.below(3) == 0 => {
                    let Some(received) = self.last.take() else { continue };
                    self.copier.abort(received.token());
                    // The number of received bytes is unknown.
                    self.truth[..received.count()].fill(None);
                }
                11 => {
                    let Some(received) = &self.last else { continue };
                    let some = 1 + self.random.below(received.count());
                    self.copier.sync(received.token(), 0..some).unwrap();
                    self.check(0..some);
                }
                _ => {}
            }
        }
        self.copier.sync_all().unwrap();
        self.check(0..BUFFER + ARENA);
    }
}

/// Sends the stream in chunks of any size, with pauses.
fn feed(mut far: UnixStream, mut random: Random) {
    let bytes: Vec<u8> = (0..STREAM).map(stream_byte).collect();
    let mut left = &bytes[..];
    while !left.is_empty() {
        let most = 1 << random.below(17);
        let (now, later) = left.split_at((1 + random.below(most)).min(left.len()));
        far.write_all(now).unwrap();
        left = later;
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
    }
}

fn one_program(polling: Polling, seed: u64) {
    let service = service(polling);
    let copier = client(&service);
    let (far, near) = UnixStream::pair().unwrap();
    let (out, mut sink) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&out, 4096).unwrap();
    near.set_nonblocking(true).unwrap();
    let feeder = std::thread::spawn(move || feed(far, Random::new(seed ^ 1)));
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        sink.read_to_end(&mut all).unwrap();
        all
    });
    let mut program = Program {
        copier: &copier,
        random: Random::new(seed),
        near,
        out,
        position: 0,
        memory: vec![0; BUFFER + ARENA],
        truth: vec![Some(0); BUFFER + ARENA],
        sent: Vec::new(),
        last: None,
        sends: Vec::new(),
    };
    program.run();
    assert_eq!(program.position, STREAM);
    for (token, len) in &program.sends {
        copier.sync(token, 0..*len).unwrap();
    }
    let expected: Vec<u8> = program.sent.iter().map(|byte| byte.unwrap()).collect();
    drop(program);
    feeder.join().unwrap();
    assert!(reader.join().unwrap() == expected, "what was sent");
}

#[test]
fn streams_are_as_with_recv_and_memcpy() {
    for seed in seeds(60) {
        println!("UNLADE_SEED={seed}");
        let polling = [Polling::Always, Polling::Adaptive, Polling::Scenario][seed as usize % 3];
        one_program(polling, seed);
    }
}

/// Two streams with the program in the middle.
struct Proxy {
    far: UnixStream,
    near: UnixStream,
    out: UnixStream,
    sink: UnixStream,
}

fn proxy() -> Proxy {
    let (far, near) = UnixStream::pair().unwrap();
    let (out, sink) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&out, 4096).unwrap();
    // Lets long forwards use splice.
    out.set_nonblocking(true).unwrap();
    Proxy { far, near, out, sink }
}

#[test]
fn forwards_come_out_in_order_and_others_do_not_wait_for_them() {
    for polling in [Polling::Always, Polling::Adaptive] {
        let service = service(polling);
        let copier = client(&service);
        let Proxy { mut far, near, out, mut sink } = proxy();
        let lens = [1, 5000, 65_535, 65_536, 300_000, 1 << 20];
        let all = some_bytes(lens.iter().sum::<usize>() + 4);
        let bytes = all.clone();
        let feeder = std::thread::spawn(move || far.write_all(&bytes).map(|()| far));
        let forwards: Vec<_> =
            lens.iter().map(|len| copier.forward(near.as_fd(), out.as_fd(), *len)).collect();
        let (source, mut destination) = (vec![7u8; 50_000], vec![0u8; 50_000]);
        // SAFETY: both live until the sync.
        let token = unsafe {
            copier.submit(destination.as_mut_ptr(), source.as_ptr(), source.len(), &QUEUED)
        };
        copier.sync(&token, 0..50_000).unwrap();
        assert_eq!(destination, source);
        assert!(!forwards[5].is_over(), "nobody has received it");
        let mut received = vec![0u8; all.len() - 4];
        sink.read_exact(&mut received).unwrap();
        assert!(received == all[..all.len() - 4]);
        forwards.into_iter().for_each(|forward| forward.wait().unwrap());
        // The stream continues at the right byte.
        let mut buffer = vec![0u8; 4];
        let _far = feeder.join().unwrap().unwrap();
        // SAFETY: synced before it is read.
        let received = unsafe { receive(&copier, &near, &mut buffer) };
        copier.sync(received.token(), 0..4).unwrap();
        assert_eq!(buffer, all[all.len() - 4..]);
    }
}

#[test]
fn a_forward_that_fails_says_how_far_it_came() {
    for len in [10_000, 200_000] {
        let service = service(Polling::Always);
        let copier = client(&service);
        // The source ends.
        let Proxy { mut far, near, out, mut sink } = proxy();
        let sent = some_bytes(len / 2);
        let bytes = sent.clone();
        let feeder = std::thread::spawn(move || far.write_all(&bytes));
        let forward = copier.forward(near.as_fd(), out.as_fd(), len);
        let mut received = vec![0u8; sent.len()];
        sink.read_exact(&mut received).unwrap();
        assert!(received == sent);
        feeder.join().unwrap().unwrap();
        let failed = forward.wait().unwrap_err();
        assert_eq!(failed.error, CopyError::Failed(TaskFailure::Ended));
        assert_eq!((failed.given_bytes, failed.taken_bytes), (sent.len(), sent.len()));
        // The sink closes.
        let Proxy { mut far, mut near, out, sink } = proxy();
        let bytes = sent.clone();
        let feeder = std::thread::spawn(move || far.write_all(&bytes));
        drop(sink);
        let failed = copier.forward(near.as_fd(), out.as_fd(), len / 2).wait().unwrap_err();
        assert!(matches!(failed.error, CopyError::Failed(TaskFailure::Socket(_))), "{failed}");
        assert_eq!(failed.given_bytes, 0);
        let mut left = Vec::new();
        near.read_to_end(&mut left).unwrap();
        feeder.join().unwrap().unwrap();
        assert!(left == sent[failed.taken_bytes..], "{failed}");
    }
}

#[test]
fn a_forward_that_nobody_wants_any_more_is_ended() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let Proxy { mut far, near, out, mut sink } = proxy();
    far.write_all(b"hello").unwrap();
    let forward = copier.forward(near.as_fd(), out.as_fd(), 1000);
    let mut received = [0; 5];
    sink.read_exact(&mut received).unwrap();
    // It waits for more bytes, which do not come.
    drop(forward);
    far.write_all(b"next").unwrap();
    let mut buffer = [0u8; 4];
    // SAFETY: synced before it is read.
    let token = unsafe { receive(&copier, &near, &mut buffer) };
    copier.sync(token.token(), 0..4).unwrap();
    assert_eq!((&received, &buffer), (b"hello", b"next"));
}

#[test]
fn what_is_received_and_sent_on_goes_from_socket_to_socket() {
    for len in [20_000, 200_000] {
        let service = service(Polling::Always);
        let copier = client(&service);
        wake(&copier);
        let Proxy { mut far, near, out, mut sink } = proxy();
        let sent = some_bytes(len);
        let bytes = sent.clone();
        let feeder = std::thread::spawn(move || far.write_all(&bytes));
        let reader = std::thread::spawn(move || {
            let mut received = vec![0u8; len];
            sink.read_exact(&mut received).map(|()| received)
        });
        let mut buffer = vec![0u8; 64 << 10];
        let (mut count, mut tokens) = (0, Vec::new());
        while count < len {
            // SAFETY: as in `delivers`; the head is changed after its sync.
            unsafe {
                let received = receive(&copier, &near, &mut buffer);
                copier.sync(received.token(), 0..1).unwrap();
                let token = copier.send_on(&received, 0..received.count(), out.as_fd()).unwrap();
                tokens.push((token, received.count()));
                count += received.count();
            }
        }
        for (token, len) in tokens {
            copier.sync(&token, 0..len).unwrap();
        }
        feeder.join().unwrap().unwrap();
        assert!(reader.join().unwrap().unwrap() == sent, "{len}");
    }
}

#[test]
fn what_cannot_be_sent_on_is_out_of_its_stream_all_the_same() {
    let service = service(Polling::Always);
    let copier = client(&service);
    wake(&copier);
    let Proxy { mut far, near, out, sink } = proxy();
    far.write_all(&some_bytes(60_000)).unwrap();
    drop(sink);
    let mut buffer = vec![0u8; 60_000];
    // SAFETY: as in `delivers`.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        copier.sync(received.token(), 0..1).unwrap();
        let token = copier.send_on(&received, 0..60_000, out.as_fd()).unwrap();
        let failed = copier.sync(&token, 0..60_000).unwrap_err();
        assert!(matches!(failed, CopyError::Failed(TaskFailure::Socket(_))), "{failed}");
        assert_eq!(copier.sync(received.token(), 0..60_000), Ok(()));
    }
    let counts = service.counts();
    assert!(counts.absorbed_bytes > 50_000, "{counts:?}");
    far.write_all(b"next").unwrap();
    // SAFETY: as above.
    let received = unsafe { receive(&copier, &near, &mut buffer) };
    copier.sync(received.token(), 0..4).unwrap();
    assert_eq!(&buffer[..4], b"next");
}

#[test]
fn forwards_are_made_without_a_service_too() {
    let service = service(Polling::Always);
    let copier = client(&service);
    drop(service);
    let Proxy { mut far, near, out, mut sink } = proxy();
    let sent = some_bytes(100_000);
    let bytes = sent.clone();
    let feeder = std::thread::spawn(move || far.write_all(&bytes));
    let reader = std::thread::spawn(move || {
        let mut received = vec![0u8; 100_000];
        sink.read_exact(&mut received).map(|()| received)
    });
    copier.forward(near.as_fd(), out.as_fd(), 60_000).wait().unwrap();
    copier.forward(near.as_fd(), out.as_fd(), 40_000).wait().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(reader.join().unwrap().unwrap() == sent);
}
