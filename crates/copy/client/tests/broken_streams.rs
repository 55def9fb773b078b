//! Streams that end, break or stall during a receive, a send or a forward: reserved bytes arrive,
//! missing ones are reported, and no wait is endless.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size};
use unlade_copy::{
    Config, Copier, CopyError, CopyOptions, Inbound, Polling, Received, Service, TaskFailure,
};

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
const CANCELLED: CopyError = CopyError::Failed(TaskFailure::CANCELLED);
/// Longer than anything here takes, but finite.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);

fn service(polling: Polling) -> Service {
    Service::start(Config { polling, ..Config::default() }).unwrap()
}

fn client(service: &Service) -> Arc<Copier> {
    Arc::new(Copier::new(service.attach().unwrap()))
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::yield_now();
    }
}

/// Runs work that might wait for ever.
fn in_time<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if is_over.recv_timeout(LONG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{what} takes for ever");
            std::process::abort();
        }
    });
    let value = f();
    drop(over);
    watch.join().unwrap();
    value
}

fn some_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 249) as u8).collect()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (peer, listener.accept().unwrap().0)
}

/// Ends a connection with a reset.
fn reset(peer: TcpStream) {
    set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
}

fn has(socket: &impl AsFd, bytes: u64) {
    eventually("bytes arrive", || rustix::io::ioctl_fionread(socket).unwrap() == bytes);
}

fn is_broken(error: CopyError) -> bool {
    let CopyError::Failed(TaskFailure::Socket(code)) = error else { return false };
    // EPIPE, ECONNRESET.
    [32, 104].contains(&code.get())
}

/// # Safety
/// The buffer stays where it is, and unsynced bytes are not read.
unsafe fn receive(copier: &Copier, near: &impl AsFd, buffer: &mut [u8]) -> Received {
    // SAFETY: the caller's promise; no other reader receives.
    unsafe { copier.receive_lazily(near.as_fd(), buffer.as_mut_ptr(), buffer.len()) }.unwrap()
}

/// The bytes after those reserved for a task.
fn goes_on_with(copier: &Copier, far: &mut impl Write, near: &impl AsFd, expected: &[u8]) {
    let mut buffer = vec![0u8; 100];
    far.write_all(expected).unwrap();
    // SAFETY: synced before it is read.
    let received = unsafe { receive(copier, near, &mut buffer) };
    copier.sync(received.token(), 0..received.count()).unwrap();
    assert_eq!(&buffer[..received.count()], expected);
}

#[test]
fn what_was_promised_comes_though_the_peer_resets() {
    for polling in [Polling::Always, Polling::Scenario] {
        let service = service(polling);
        let copier = client(&service);
        let (mut far, near) = tcp();
        let sent = some_bytes(50_000);
        far.write_all(&sent).unwrap();
        has(&near, 50_000);
        let (mut buffer, mut object) = (vec![0u8; 100_000], vec![0u8; 40_000]);
        // SAFETY: both stay where they are; unsynced bytes are not read.
        let next = unsafe {
            let received = receive(&copier, &near, &mut buffer);
            assert_eq!(received.count(), 50_000, "fewer than there is room for");
            copier.sync(received.token(), 0..100).unwrap();
            reset(far);
            let body = copier.deliver(&received, 100..40_100, object.as_mut_ptr()).unwrap();
            copier.sync(&body, 0..40_000).unwrap();
            copier.sync(received.token(), 40_100..50_000).unwrap();
            copier.receive_lazily(near.as_fd(), buffer.as_mut_ptr(), 10)
        };
        assert!(object == sent[100..40_100] && buffer[40_100..50_000] == sent[40_100..]);
        assert_eq!(next.unwrap_err().kind(), ErrorKind::ConnectionReset);
        // SAFETY: as above.
        let end = unsafe { copier.receive(near.as_fd(), buffer.as_mut_ptr(), 10, &QUEUED) };
        assert_eq!(end.unwrap().0, 0, "a reset is told once, by Linux");
    }
}

#[test]
fn a_buffer_has_what_came_before_a_reset() {
    let service = service(Polling::Always);
    let (mut far, near) = tcp();
    let sent = some_bytes(60_000);
    far.write_all(&sent).unwrap();
    has(&near, 60_000);
    reset(far);
    let mut inbound = Inbound::new(client(&service), near, 100_000);
    let error = loop {
        match inbound.receive() {
            Ok(count) => assert_ne!(count, 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(inbound.sync(0..60_000).unwrap() == sent);
    assert_eq!((inbound.len(), inbound.receive().unwrap()), (60_000, 0));
}

#[test]
fn a_body_that_ends_early_is_a_short_count_and_then_none() {
    for polling in [Polling::Always, Polling::Scenario] {
        let service = service(polling);
        let copier = client(&service);
        let (mut far, near) = UnixStream::pair().unwrap();
        let sent = some_bytes(30_000);
        let (mut buffer, mut object) = (vec![0u8; 64 << 10], vec![0u8; 50_000]);
        let mut have = 0;
        far.write_all(&sent[..10_000]).unwrap();
        let mut far = Some(far);
        loop {
            // SAFETY: as above.
            unsafe {
                let received = receive(&copier, &near, &mut buffer);
                if received.count() == 0 {
                    break;
                }
                assert_eq!(received.count(), if have == 0 { 10_000 } else { 20_000 });
                let to = object.as_mut_ptr().add(have);
                let body = copier.deliver(&received, 0..received.count(), to).unwrap();
                copier.sync(&body, 0..received.count()).unwrap();
                have += received.count();
            }
            if let Some(mut far) = far.take() {
                far.write_all(&sent[10_000..]).unwrap();
            }
        }
        assert!(have == 30_000 && object[..have] == sent);
    }
}

#[test]
fn a_forward_whose_source_resets_has_passed_on_what_came() {
    for (len, waits) in [(10_000, true), (200_000, true), (200_000, false)] {
        let service = service(Polling::Always);
        let copier = client(&service);
        let ((mut far, near), (out, mut sink)) = (tcp(), tcp());
        out.set_nonblocking(!waits).unwrap();
        let sent = some_bytes(len / 2);
        let forward = copier.forward(near.as_fd(), out.as_fd(), len);
        far.write_all(&sent).unwrap();
        let mut received = vec![0u8; sent.len()];
        sink.read_exact(&mut received).unwrap();
        assert!(received == sent);
        assert_eq!(forward.wait_timeout(SHORT), Ok(false));
        reset(far);
        let failed = in_time("a forward from a reset", || forward.wait()).unwrap_err();
        assert!(is_broken(failed.error), "{failed}");
        assert_eq!((failed.given_bytes, failed.taken_bytes), (sent.len(), sent.len()));
    }
}

#[test]
fn a_forward_whose_sink_resets_leaves_the_rest_in_its_source() {
    for (len, waits) in [(1 << 20, true), (1 << 20, false)] {
        let service = service(Polling::Always);
        let copier = client(&service);
        let ((far, mut near), (out, mut sink)) = (tcp(), tcp());
        out.set_nonblocking(!waits).unwrap();
        set_socket_send_buffer_size(&out, 4096).unwrap();
        let sent = some_bytes(len);
        let bytes = sent.clone();
        let feeder = std::thread::spawn(move || {
            let mut far = far;
            far.write_all(&bytes)
        });
        let forward = copier.forward(near.as_fd(), out.as_fd(), len);
        let mut received = vec![0u8; 1000];
        sink.read_exact(&mut received).unwrap();
        assert!(received == sent[..1000]);
        reset(sink);
        let failed = in_time("a forward to a reset", || forward.wait()).unwrap_err();
        assert!(is_broken(failed.error), "{failed}");
        assert!(1000 <= failed.given_bytes && failed.given_bytes <= failed.taken_bytes, "{failed}");
        let mut left = Vec::new();
        near.read_to_end(&mut left).unwrap();
        feeder.join().unwrap().unwrap();
        assert!(left == sent[failed.taken_bytes..], "{failed}");
    }
}

#[test]
fn what_a_reset_keeps_from_being_sent_on_is_out_of_its_stream() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let ((mut far, near), (out, mut sink)) = (UnixStream::pair().unwrap(), tcp());
    set_socket_send_buffer_size(&out, 4096).unwrap();
    let mut buffer = vec![0u8; 1 << 20];
    let sent = some_bytes(100_000);
    far.write_all(&sent).unwrap();
    // The queue of the sink is full before.
    let filled = fill(&out);
    // SAFETY: as above.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        let token = copier.send_on(&received, 0..received.count(), out.as_fd()).unwrap();
        assert_eq!(copier.sync_timeout(&token, 0..100_000, SHORT), Ok(false));
        // A part of it is sent, and no more.
        let mut some = vec![0u8; filled + 1000];
        sink.read_exact(&mut some).unwrap();
        reset(sink);
        let failed = in_time("a send to a reset", || copier.sync(&token, 0..100_000));
        assert!(failed.is_err_and(is_broken), "{failed:?}");
        assert_eq!(copier.sync(received.token(), 0..100_000), Ok(()));
    }
    goes_on_with(&copier, &mut far, &near, b"next");
}

/// Writes until the peer, which does not read, has no room for more.
fn fill(out: &TcpStream) -> usize {
    out.set_nonblocking(true).unwrap();
    let (some, mut filled, mut quiet) = (vec![9u8; 64 << 10], 0, 0);
    // Bytes in flight make room once more.
    while quiet < 20 {
        match { out }.write(&some) {
            Ok(count) => (filled, quiet) = (filled + count, 0),
            Err(_) => {
                quiet += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    out.set_nonblocking(false).unwrap();
    filled
}

#[test]
fn a_send_that_nobody_takes_is_waited_for_in_bounds_and_given_up() {
    for polling in [Polling::Always, Polling::Scenario] {
        let service = service(polling);
        let copier = client(&service);
        let (mut far, near) = UnixStream::pair().unwrap();
        let sent = some_bytes(1 << 20);
        let [first, second] = [0, 1].map(|_| {
            // SAFETY: the source is not changed.
            unsafe { copier.send(near.as_fd(), sent.as_ptr(), sent.len(), &QUEUED) }.unwrap()
        });
        assert_eq!(copier.sync_timeout(&first, 0..1 << 20, SHORT), Ok(false));
        assert_eq!(copier.sync_timeout(&second, 0..1, Duration::ZERO), Ok(false));
        in_time("giving up", || {
            copier.abort(&second);
            copier.abort(&first);
        });
        assert_eq!(copier.sync(&first, 0..1 << 20), Err(CANCELLED));
        assert_eq!(copier.sync_timeout(&second, 0..1 << 20, SHORT), Ok(true), "never begun");
        // The bytes that were sent are the beginning, and nothing follows.
        far.set_nonblocking(true).unwrap();
        let mut received = Vec::new();
        let blocked = far.read_to_end(&mut received).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        assert!(received.len() < sent.len() && received == sent[..received.len()]);
        in_time("the end", || drop(copier));
    }
}

#[test]
fn a_scope_ends_though_a_peer_takes_nothing() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let (_far, near) = UnixStream::pair().unwrap();
    let sent = some_bytes(3 << 20);
    let copied = in_time("a scope", || {
        copier.scope(|scope| {
            let sent = scope.send(near.as_fd(), &sent).unwrap();
            assert_eq!(sent.wait_timeout(SHORT), Ok(false));
            sent.abort();
            sent.wait()
        })
    });
    assert_eq!(copied, Err(CANCELLED));
}

#[test]
fn a_forward_that_nobody_takes_holds_back_its_source_and_is_given_up() {
    for (len, waits) in [(60_000, true), (1 << 20, true), (1 << 20, false)] {
        let service = service(Polling::Always);
        let copier = client(&service);
        let (far, mut near) = UnixStream::pair().unwrap();
        let (out, mut sink) = UnixStream::pair().unwrap();
        out.set_nonblocking(!waits).unwrap();
        set_socket_send_buffer_size(&out, 4096).unwrap();
        let sent = some_bytes(4 << 20);
        far.set_nonblocking(true).unwrap();
        let forward = copier.forward(near.as_fd(), out.as_fd(), len);
        // Only as much as fits is taken.
        let (mut pushed, mut quiet) = (0, 0);
        while quiet < 20 {
            match { &far }.write(&sent[pushed..]) {
                Ok(count) => (pushed, quiet) = (pushed + count, 0),
                Err(_) => {
                    quiet += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        assert!(pushed < 3 << 20, "{pushed} bytes went into a forward that nobody takes");
        assert_eq!(forward.wait_timeout(SHORT), Ok(false));
        in_time("giving up", || drop(forward));
        // All bytes given are the beginning; untaken ones are in the source.
        drop(out);
        let mut given = Vec::new();
        sink.read_to_end(&mut given).unwrap();
        drop(far);
        let mut left = Vec::new();
        near.read_to_end(&mut left).unwrap();
        assert!(given == sent[..given.len()] && left == sent[pushed - left.len()..pushed]);
        assert!(given.len() + left.len() <= pushed && given.len() < len);
    }
}

#[test]
fn what_is_sent_on_and_given_up_is_out_of_its_stream() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let (mut far, near) = UnixStream::pair().unwrap();
    let (out, mut sink) = UnixStream::pair().unwrap();
    set_socket_send_buffer_size(&out, 4096).unwrap();
    let sent = some_bytes(60_000);
    far.write_all(&sent).unwrap();
    let mut buffer = vec![0u8; 60_000];
    // SAFETY: as above.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        copier.sync(received.token(), 0..10).unwrap();
        let token = copier.send_on(&received, 0..60_000, out.as_fd()).unwrap();
        eventually("some of it is sent", || rustix::io::ioctl_fionread(&sink).unwrap() > 0);
        assert_eq!(copier.sync_timeout(&token, 0..60_000, SHORT), Ok(false));
        in_time("giving up", || copier.abort(&token));
        assert_eq!(copier.sync(&token, 0..60_000), Err(CANCELLED));
        assert_eq!(copier.sync(received.token(), 0..60_000), Ok(()));
    }
    goes_on_with(&copier, &mut far, &near, b"next");
    drop(out);
    let mut given = Vec::new();
    sink.read_to_end(&mut given).unwrap();
    assert!(given.len() < sent.len() && given == sent[..given.len()]);
}

#[test]
fn a_receive_whose_bytes_somebody_took_can_be_given_up() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let (mut far, mut near) = UnixStream::pair().unwrap();
    far.write_all(&some_bytes(60_000)).unwrap();
    let (mut buffer, mut object) = (vec![0u8; 60_000], vec![0u8; 1000]);
    // SAFETY: as above; the exclusive receive is violated on purpose.
    unsafe {
        let received = receive(&copier, &near, &mut buffer);
        near.read_exact(&mut vec![0u8; 20_000]).unwrap();
        let body = copier.submit(object.as_mut_ptr(), buffer[59_000..].as_ptr(), 1000, &QUEUED);
        // The stream is open: more may come. The service receives, as this thread does not help.
        assert_eq!(copier.sync_timeout(received.token(), 0..60_000, SHORT), Ok(false));
        in_time("giving up", || copier.abort(received.token()));
        assert_eq!(copier.sync(&body, 0..1000), Err(CANCELLED));
        assert_eq!(copier.sync(received.token(), 0..60_000), Err(CANCELLED));
    }
    goes_on_with(&copier, &mut far, &near, b"next");
}

#[test]
fn a_service_that_stops_says_how_far_its_forward_came() {
    let service = service(Polling::Always);
    let copier = client(&service);
    let ((mut far, mut near), (out, mut sink)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let forward = copier.forward(near.as_fd(), out.as_fd(), 100_000);
    far.write_all(&some_bytes(5000)).unwrap();
    sink.read_exact(&mut [0; 5000]).unwrap();
    drop(service);
    let failed = in_time("a stopped forward", || forward.wait()).unwrap_err();
    assert_eq!(failed.error, CANCELLED);
    assert_eq!((failed.given_bytes, failed.taken_bytes), (5000, 5000));
    // The task can also be aborted without a service.
    let forward = copier.forward(near.as_fd(), out.as_fd(), 1000);
    assert_eq!(forward.wait_timeout(SHORT), Ok(false));
    in_time("giving up", || drop(forward));
    far.write_all(b"next").unwrap();
    let mut next = [0; 4];
    near.read_exact(&mut next).unwrap();
    assert_eq!(&next, b"next");
}
