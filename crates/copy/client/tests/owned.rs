//! Copies that own their buffers, and receives and sends of safe code.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use unlade_copy::{Config, Copier, CopyError, Polling, Service};

fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

#[test]
fn owned_copies_are_as_memcpy_whatever_their_length() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let lengths = [0, 1, 511, 4096, 100_000, 1 << 20, (1 << 20) + 1, 3_000_000];
    let copies: Vec<_> =
        lengths.map(|len| (len, copier.queue_owned(bytes(len), vec![0; len]))).into();
    for (len, copy) in copies {
        let (source, destination) = copy.wait().unwrap();
        assert!(source == bytes(len) && destination == source, "{len} bytes");
    }
}

#[test]
fn an_owned_copy_gets_ready_by_itself_and_may_be_dropped_or_forgotten() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let copy = copier.queue_owned(bytes(300_000), vec![0; 300_000]);
    while !copy.is_ready() {
        std::thread::yield_now();
    }
    assert_eq!(copy.wait().unwrap().1, bytes(300_000));
    for _ in 0..3000 {
        drop(copier.queue_owned(bytes(9_000), vec![0; 9_000]));
    }
    std::mem::forget(copier.queue_owned(bytes(50_000), vec![0; 50_000]));
}

#[test]
fn a_scope_receives_what_there_is() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(&bytes(50_000)).unwrap();
    let mut destination = vec![0; 80_000];
    let mut next = vec![0; 10];
    copier.scope(|scope| {
        let pending = scope.receive(far.as_fd(), &mut destination).unwrap();
        assert_eq!(pending.len(), 50_000);
        assert_eq!(pending.sync(0..pending.len()).unwrap(), bytes(50_000));
        drop(near);
        let end = scope.receive(far.as_fd(), &mut next).unwrap();
        assert!(end.is_empty());
    });
}

#[test]
fn a_scope_sends_more_than_one_task() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let (near, mut far) = UnixStream::pair().unwrap();
    let source = bytes(2_500_000);
    let received = std::thread::scope(|threads| {
        let reading = threads.spawn(|| {
            let mut received = vec![0; 2_500_000];
            far.read_exact(&mut received).unwrap();
            received
        });
        copier.scope(|scope| scope.send(near.as_fd(), &source).unwrap().wait().unwrap());
        reading.join().unwrap()
    });
    assert!(received == source);
}

#[test]
fn a_socket_that_breaks_is_told_to_who_waits_and_no_panic() {
    let service = service();
    let copier = Copier::new(service.attach().unwrap());
    let (near, far) = UnixStream::pair().unwrap();
    drop(far);
    let source = bytes(100_000);
    copier.scope(|scope| {
        let sent = scope.send(near.as_fd(), &source).unwrap();
        assert!(matches!(sent.wait(), Err(CopyError::Failed(_))));
    });
    copier.scope(|scope| drop(scope.send(near.as_fd(), &source).unwrap()));
}
