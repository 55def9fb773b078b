//! Messages through shared memory, with a daemon in this process and with peers that violate the
//! protocol.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use unlade_copy::Remote;
use unlade_copy::channel::wire::{ChannelMessage, ReplyBytes, TaskPlace, WireError};
use unlade_copy::channel::{ChannelError, MessageReceiver, MessageSender};
use unlade_copy_service::daemon::{Daemon, DaemonConfig, socket};
use unlade_shm::{Arena, Memory, Queue, Task};

/// A daemon on a thread of this process.
struct Running {
    stop: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Running {
    fn start() -> Running {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("copyd.sock");
        let config = DaemonConfig { socket, ..DaemonConfig::default() };
        let daemon = Daemon::bind(config.clone()).unwrap();
        let control = daemon.control();
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        Running { stop: Box::new(move || control.drain()), thread: Some(thread), directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("copyd.sock")
    }

    fn end(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn ends() -> (OwnedFd, OwnedFd) {
    let kind = SocketType::SEQPACKET;
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

/// Receives all messages, in chunks of `piece` bytes, and replies with the sum of the bytes.
fn add_up(socket: OwnedFd, piece: usize) {
    let receiver = MessageReceiver::accept(socket).unwrap();
    while let Some(message) = receiver.receive().unwrap() {
        let mut bytes = vec![0; message.len()];
        for (number, part) in bytes.chunks_mut(piece).enumerate() {
            message.read_at(number * piece, part).unwrap();
        }
        assert!(message.is_ready(0..bytes.len()));
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        message.reply(&sum.to_le_bytes()).unwrap();
    }
}

fn send_and_compare(sender: &mut MessageSender, rounds: usize) {
    for round in 0..rounds {
        let first = pattern(1 + round * 7919 % 300_000, round);
        let second = pattern(5_000, round + 1);
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let replies = [&first, &second].map(|bytes| {
            let mut draft = sender.draft().unwrap();
            draft.write_all(bytes).unwrap();
            draft.send().unwrap()
        });
        for (reply, bytes) in replies.into_iter().zip([&first, &second]) {
            let found = sender.wait(reply).unwrap();
            assert_eq!(found.as_slice(), sum(bytes).to_le_bytes(), "round {round}");
        }
    }
}

#[test]
fn messages_arrive_and_are_answered_with_a_daemon_and_without() {
    let mut running = Running::start();
    let (near, far) = ends();
    let receiving = std::thread::spawn(move || add_up(far, 1000));
    let remote = Remote::connect(&running.path()).unwrap();
    let mut sender = MessageSender::connect(remote, near, 3, 300_000).unwrap();
    send_and_compare(&mut sender, 200);
    running.end();
    assert!(!sender.remote().unwrap().is_served());
    send_and_compare(&mut sender, 20);
    drop(sender);
    receiving.join().unwrap();
}

#[test]
fn a_write_that_does_not_fit_is_refused_and_the_draft_stays() {
    let running = Running::start();
    let (near, far) = ends();
    let connect = |slots, bytes| {
        let (near, _far) = ends();
        let remote = Remote::connect(&running.path()).unwrap();
        MessageSender::connect(remote, near, slots, bytes)
    };
    for (slots, bytes) in [(0, 10), (33, 10), (1, 0), (1, (1 << 20) + 1)] {
        assert!(matches!(connect(slots, bytes), Err(ChannelError::Shape { .. })));
    }
    let receiving = std::thread::spawn(move || add_up(far, 7));
    let remote = Remote::connect(&running.path()).unwrap();
    let mut sender = MessageSender::connect(remote, near, 1, 100).unwrap();
    let mut draft = sender.draft().unwrap();
    draft.write_all(&[1; 90]).unwrap();
    assert!(draft.write(&[1; 11]).is_err());
    assert_eq!(draft.len(), 90);
    draft.write_all(&[1; 10]).unwrap();
    let reply = draft.send().unwrap();
    // The channel has a single slot.
    assert_eq!(sender.wait(reply).unwrap().as_slice(), 100u64.to_le_bytes());
    // The reply was not waited for, so no slot is free.
    let _ = sender.draft().unwrap().send().unwrap();
    assert!(matches!(sender.draft(), Err(ChannelError::Shape { .. })));
    drop(sender);
    receiving.join().unwrap();
}

/// A sender made by hand: its queue, inbox and socket, and its first message.
fn by_hand(slots: u32, slot_bytes: u32) -> (Queue, OwnedFd, Result<MessageReceiver, ChannelError>) {
    let bytes = Queue::bytes_for(16).unwrap();
    let arena = Arena::create("test-queue", bytes).unwrap();
    let queue = Queue::create(Memory::from(arena), 16).unwrap();
    let inbox = Arena::create("test-inbox", 4096).unwrap();
    let (near, far) = ends();
    let hello = ChannelMessage::Hello { slots, slot_bytes };
    let shared = [queue.memory().fd().unwrap(), inbox.fd()];
    socket::send(near.as_fd(), hello.encode().as_slice(), &shared).unwrap();
    (queue, near, MessageReceiver::accept(far))
}

fn say(socket: &OwnedFd, said: ChannelMessage) {
    socket::send(socket.as_fd(), said.encode().as_slice(), &[]).unwrap();
}

#[test]
fn a_receiver_believes_nothing() {
    let (_queue, _near, refused) = by_hand(2, 4096);
    assert!(matches!(refused, Err(ChannelError::Wire(WireError::Range { .. }))));
    let (near, far) = ends();
    say(&near, ChannelMessage::Hello { slots: 1, slot_bytes: 1 });
    assert!(matches!(MessageReceiver::accept(far), Err(ChannelError::Wire(WireError::Order(_)))));
    for (slot, len) in [(2, 10), (31, 10), (0, 2049)] {
        let (_queue, near, receiver) = by_hand(2, 2048);
        say(&near, ChannelMessage::Sent { slot, len, task: None });
        let received = receiver.as_ref().unwrap().receive();
        assert!(matches!(received, Err(ChannelError::Wire(WireError::Range { .. }))));
    }
    let (_queue, near, receiver) = by_hand(2, 2048);
    let receiver = receiver.unwrap();
    say(&near, ChannelMessage::Sent { slot: 1, len: 10, task: None });
    let message = receiver.receive().unwrap().unwrap();
    let mut out = [1; 11];
    assert!(message.read_at(0, &mut out).is_err());
    assert!(message.read_at(usize::MAX, &mut out).is_err());
    message.read_at(3, &mut out[..7]).unwrap();
    assert_eq!(out[..7], [0; 7]);
    say(&near, ChannelMessage::Sent { slot: 1, len: 10, task: None });
    assert!(matches!(receiver.receive(), Err(ChannelError::Wire(WireError::Order(_)))));
    assert!(matches!(message.reply(&[0; 25]), Err(ChannelError::TooLong { .. })));
    say(&near, ChannelMessage::Stalled { slot: 1 });
    assert!(matches!(receiver.receive(), Err(ChannelError::Wire(WireError::Order(_)))));
    drop(near);
    assert!(receiver.receive().unwrap().is_none());
}

#[test]
fn a_message_that_does_not_come_is_asked_for_and_given_up() {
    let (queue, near, receiver) = by_hand(2, 2048);
    let mut receiver = receiver.unwrap();
    receiver.set_stall_max(Duration::from_millis(20));
    let ticket = queue.try_acquire().unwrap();
    queue.publish(ticket, &Task::copy(0x1000, 0x9000, 2048));
    let task = Some(TaskPlace { ticket: ticket.0, granule_shift: 10 });
    say(&near, ChannelMessage::Sent { slot: 0, len: 2048, task });
    let message = receiver.receive().unwrap().unwrap();
    let progress = queue.progress(ticket);
    progress.finish(progress.claim(0b01));
    message.read_at(0, &mut [0; 1024]).unwrap();
    assert!(!message.is_ready(0..1025));
    let given_up = message.read_at(1000, &mut [0; 100]);
    assert!(matches!(given_up, Err(ChannelError::Stalled { .. })), "{given_up:?}");
    let asked = socket::receive(near.as_fd()).unwrap().unwrap();
    assert_eq!(ChannelMessage::decode(asked.bytes()), Ok(ChannelMessage::Stalled { slot: 0 }));
    // An error of the task is an error of the message.
    progress.fail(unlade_copy::TaskFailure::BadAddress.code(), progress.claim(0b10));
    assert!(matches!(message.read_at(1024, &mut [0; 1]), Err(ChannelError::Copy(_))));
    drop(message);
    let said: Vec<ChannelMessage> = std::iter::from_fn(|| {
        let word = socket::receive(near.as_fd()).unwrap().unwrap();
        let said = ChannelMessage::decode(word.bytes()).unwrap();
        matches!(said, ChannelMessage::Stalled { .. }).then_some(said)
    })
    .collect();
    assert!(said.iter().all(|said| *said == ChannelMessage::Stalled { slot: 0 }));
}

#[test]
fn a_sender_that_closes_ends_the_wait() {
    let (queue, near, receiver) = by_hand(1, 2048);
    let receiver = receiver.unwrap();
    let ticket = queue.try_acquire().unwrap();
    queue.publish(ticket, &Task::copy(0x1000, 0x9000, 2048));
    let task = Some(TaskPlace { ticket: ticket.0, granule_shift: 10 });
    say(&near, ChannelMessage::Sent { slot: 0, len: 2048, task });
    let message = receiver.receive().unwrap().unwrap();
    drop(near);
    let ended = message.read_at(0, &mut [0; 10]);
    assert!(matches!(ended, Err(ChannelError::Closed | ChannelError::Socket(_))), "{ended:?}");
}

#[test]
fn a_sender_rejects_a_release_of_an_unsent_message() {
    let running = Running::start();
    for said in [
        ChannelMessage::Released { slot: 0, reply: ReplyBytes::default() },
        ChannelMessage::Released { slot: 31, reply: ReplyBytes::default() },
        ChannelMessage::Stalled { slot: 31 },
        ChannelMessage::Sent { slot: 0, len: 1, task: None },
    ] {
        let (near, far) = ends();
        let remote = Remote::connect(&running.path()).unwrap();
        let mut sender = MessageSender::connect(remote, near, 2, 100).unwrap();
        let reply = sender.draft().unwrap().send().unwrap();
        say(&far, ChannelMessage::Released { slot: 0, reply: ReplyBytes::default() });
        sender.wait(reply).unwrap();
        let second = sender.draft().unwrap().send().unwrap();
        say(&far, ChannelMessage::Released { slot: 0, reply: ReplyBytes::default() });
        say(&far, said);
        sender.wait(second).unwrap();
        let third = sender.draft().unwrap().send().unwrap();
        let heard = sender.wait(third);
        let is_release_of_third =
            said == ChannelMessage::Released { slot: 0, reply: ReplyBytes::default() };
        assert_eq!(heard.is_ok(), is_release_of_third, "{said:?}: {heard:?}");
    }
}
