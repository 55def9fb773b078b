//! The queue against a model of a controller, correct and faulty.

mod model;

use bytes::Bytes;
use std::time::Duration;
use unlade_net::SeqNumber;
use unlade_nic_engine::software::pdus::Input;
use unlade_nvme_wire::{Command, Digests, IoOpcode, Status};
use unlade_testkit::{Random, cases};

use self::model::{BLOCK_BYTES, Fault, Model};
use super::queue::{Failure, Payload, Queue, QueueError, Refused, Request, Settings};

const NOW: Duration = Duration::ZERO;
/// Blocks that a command may use; each command in flight has its own region.
const REGION_BLOCKS: usize = 8;

/// The expected result of a command in flight.
#[derive(Clone, Debug)]
struct Expected {
    region: usize,
    first: usize,
    /// The written data; `None` for a read.
    written: Option<Vec<u8>>,
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        depth: 1 + random.below(12) as u16,
        digests: Digests { header: random.once_in(2), data: random.once_in(2) },
        alignment_bytes: 4 << random.below(5),
        data_bytes_max: 4096,
        in_capsule_bytes: [0, 512, 8192][random.below(3) as usize],
        transfers_max: 1 + random.below(4) as u32,
    }
}

fn command(random: &mut Random, expected: &Expected, blocks: usize) -> Request {
    let first = (expected.region * REGION_BLOCKS + expected.first) as u64;
    let (opcode, payload) = match &expected.written {
        Some(bytes) => (IoOpcode::Write, Payload::Out(Bytes::from(bytes.clone()))),
        None => {
            // The previous content of the buffer must not matter.
            let filler = random.next() as u8;
            (IoOpcode::Read, Payload::In(vec![filler; blocks * BLOCK_BYTES]))
        }
    };
    let command = Command::build(opcode as u8, 0, 1).with_blocks(first, blocks as u32);
    Request { command, payload, timeout: None }
}

/// Queue and model, joined by two byte streams.
struct Rig {
    queue: Queue<Expected>,
    model: Model,
    /// Regions without a command in flight.
    idle: Vec<usize>,
    done: usize,
    digest_failures: usize,
}

impl Rig {
    fn new(random: &mut Random) -> Rig {
        let settings = settings(random);
        let regions = usize::from(settings.depth);
        Rig {
            queue: Queue::new(settings, SeqNumber(random.next() as u32)),
            model: Model::new(settings, regions * REGION_BLOCKS, random),
            idle: (0..regions).collect(),
            done: 0,
            digest_failures: 0,
        }
    }

    fn submit(&mut self, random: &mut Random) {
        let Some(region) = self.idle.pop() else { return };
        let first = random.below(REGION_BLOCKS as u64) as usize;
        let blocks = 1 + random.below((REGION_BLOCKS - first) as u64) as usize;
        let is_write = random.once_in(2);
        let mut bytes = || (0..blocks * BLOCK_BYTES).map(|_| random.next() as u8).collect();
        let written = is_write.then(&mut bytes);
        let expected = Expected { region, first, written };
        let request = command(random, &expected, blocks);
        self.queue.submit(request, expected, NOW).unwrap();
    }

    /// Moves some bytes to the model.
    fn send_to_model(&mut self, random: &mut Random) {
        let mut bytes: Vec<u8> = self.queue.outgoing().flatten().copied().collect();
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        self.queue.sent(bytes.len());
        self.model.receive(&bytes);
    }

    /// Moves some bytes to the queue.
    fn send_to_queue(&mut self, random: &mut Random) -> Result<(), QueueError> {
        let count = random.below(self.model.outgoing.len() as u64 + 1) as usize;
        let bytes: Vec<u8> = self.model.outgoing.drain(..count).collect();
        let received = self.queue.receive(&mut Input::plain(&bytes));
        self.check_completed();
        received
    }

    fn check_completed(&mut self) {
        while let Some(completed) = self.queue.completed() {
            self.check(completed.tag, completed.outcome);
        }
    }

    /// Checks that a reported success is correct.
    fn check(&mut self, tag: Expected, outcome: Result<super::queue::Answer, Failure>) {
        let start = (tag.region * REGION_BLOCKS + tag.first) * BLOCK_BYTES;
        let failed = self.model.failed.remove(&tag.region);
        match (outcome, tag.written) {
            (Ok(answer), None) => {
                let disk = &self.model.disk[start..start + answer.data.len()];
                assert_eq!(answer.data, disk, "a read is what is on the disk");
                assert!(!failed && !answer.data.is_empty());
            }
            (Ok(answer), Some(bytes)) => {
                assert!(answer.data.is_empty());
                assert_eq!(bytes, self.model.disk[start..start + bytes.len()]);
                assert!(!failed);
            }
            (Err(Failure::Status(status)), _) => {
                assert!(failed && status.is(Status::INTERNAL));
            }
            (Err(Failure::DataDigest), written) => {
                assert!(written.is_none() && self.model.flipped > 0);
                self.digest_failures += 1;
            }
        }
        self.done += 1;
        self.idle.push(tag.region);
    }

    /// Runs `steps` steps, or until the connection ends.
    fn run(&mut self, random: &mut Random, steps: usize) -> Result<(), QueueError> {
        for _ in 0..steps {
            match random.below(4) {
                0 => self.submit(random),
                1 => self.send_to_model(random),
                2 => self.model.work(random),
                _ => self.send_to_queue(random)?,
            }
        }
        Ok(())
    }

    /// Completes everything in flight.
    fn settle(&mut self, random: &mut Random) -> Result<(), QueueError> {
        for _ in 0..20_000 {
            // Nothing else may be left over.
            if self.queue.in_flight() == 0 && self.model.outgoing.is_empty() {
                return Ok(());
            }
            self.send_to_model(random);
            self.model.work(random);
            self.send_to_queue(random)?;
        }
        panic!("commands never end");
    }
}

#[test]
fn an_honest_controller_is_understood_whatever_it_does_in_which_order() {
    cases(400, |random| {
        let mut rig = Rig::new(random);
        rig.run(random, 800).unwrap();
        rig.settle(random).unwrap();
        let regions = rig.idle.len();
        assert!(rig.done > 0, "no command");
        assert_eq!(regions, rig.queue.free(), "every slot is free again");
        assert_eq!(rig.queue.stats().commands, rig.done as u64);
    });
}

/// Each fault ends the connection with a matching error, or, for changed data, only the command;
/// no wrong data is ever reported as good (checked on the way).
#[test]
fn a_lying_controller_is_found_out() {
    let hits: Vec<std::cell::Cell<u32>> = Fault::ALL.iter().map(|_| 0.into()).collect();
    cases(3000, |random| {
        let mut rig = Rig::new(random);
        let number = random.below(Fault::ALL.len() as u64) as usize;
        let fault = Fault::ALL[number];
        rig.run(random, 150).unwrap();
        rig.model.fault = Some(fault);
        let ended = rig.run(random, 400).and_then(|()| rig.settle(random));
        if rig.model.fault.is_some() {
            // The fault did not occur.
            ended.unwrap();
            return;
        }
        hits[number].set(hits[number].get() + 1);
        match ended {
            // If the R2Ts come one by one, each is answered before the next is there.
            Ok(()) if fault == Fault::TooManyReady => {}
            Ok(()) => {
                assert_eq!(fault, Fault::FlippedData, "{fault:?} went unnoticed");
                assert_eq!(rig.digest_failures, 1);
            }
            Err(error) => {
                let named = fault.errors().iter().any(|is_it| is_it(&error));
                assert!(named, "{fault:?} is called {error:?}");
                let left = rig.queue.abandon();
                assert!(left.len() + rig.idle.len() <= rig.queue.in_flight() + rig.idle.len());
                assert_eq!(rig.queue.free(), 0, "nothing more is taken");
            }
        }
    });
    if std::env::var_os("UNLADE_SEED").is_none() {
        for (fault, hits) in Fault::ALL.iter().zip(&hits) {
            assert!(hits.get() > 5, "{fault:?} was tried {} times only", hits.get());
        }
    }
}

#[test]
fn bytes_that_are_changed_anywhere_never_panic() {
    cases(2000, |random| {
        let mut rig = Rig::new(random);
        rig.run(random, 150).unwrap();
        let bytes: Vec<u8> = rig.model.outgoing.drain(..).collect();
        let mut bytes = bytes;
        for _ in 0..=random.below(4) {
            let length = bytes.len() as u64;
            match random.below(3) {
                0 if length > 0 => bytes[random.below(length) as usize] ^= 1 << random.below(8),
                1 => bytes.truncate(random.below(length + 1) as usize),
                _ => bytes.extend((0..random.below(40)).map(|_| random.next() as u8)),
            }
        }
        // The digests determine if the change is detected; it must not hang or panic.
        let _ = rig.queue.receive(&mut Input::plain(&bytes));
        while rig.queue.completed().is_some() {}
        rig.queue.terminate();
        rig.queue.abandon();
    });
}

fn one(digests: Digests) -> Queue<u32> {
    let settings = Settings {
        depth: 2,
        digests,
        alignment_bytes: 4,
        data_bytes_max: 4096,
        in_capsule_bytes: 0,
        transfers_max: 1,
    };
    Queue::new(settings, SeqNumber(0))
}

fn read(bytes: usize) -> Request {
    let command = Command::build(IoOpcode::Read as u8, 0, 1);
    Request { command, payload: Payload::In(vec![0; bytes]), timeout: None }
}

#[test]
fn a_full_queue_and_too_much_data_are_refused() {
    let mut queue = one(Digests::NONE);
    queue.submit(read(512), 1, NOW).unwrap();
    queue.submit(read(512), 2, NOW).unwrap();
    assert!(matches!(queue.submit(read(512), 3, NOW), Err(Refused::Full(_, 3))));
    let mut queue = one(Digests::NONE);
    let refused = queue.submit(read(super::queue::DATA_BYTES_MAX as usize + 1), 4, NOW);
    assert!(matches!(refused, Err(Refused::TooLarge(_, 4))));
}

#[test]
fn more_requests_for_data_than_allowed_end_the_connection() {
    let mut queue = one(Digests::NONE);
    let command = Command::build(IoOpcode::Write as u8, 0, 1);
    let payload = Payload::Out(Bytes::from(vec![1; 1024]));
    queue.submit(Request { command, payload, timeout: None }, 1, NOW).unwrap();
    let id: Vec<u8> = queue.outgoing().flatten().skip(10).take(2).copied().collect();
    let mut ready = vec![9, 0, 24, 0, 24, 0, 0, 0, id[0], id[1], 0, 0];
    ready.extend_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    let mut second = ready.clone();
    second[12] = 8;
    queue.receive(&mut Input::plain(&ready)).unwrap();
    let error = queue.receive(&mut Input::plain(&second)).unwrap_err();
    assert!(matches!(error, QueueError::LimitExceeded(_)));
}

#[test]
fn a_command_that_is_not_answered_in_time_ends_the_connection() {
    let mut queue = one(Digests::NONE);
    queue.submit(read(512), 1, NOW).unwrap();
    let limited = Request { timeout: Some(Duration::from_secs(2)), ..read(512) };
    queue.submit(limited, 2, Duration::from_secs(1)).unwrap();
    queue.check_timeouts(Duration::from_millis(2999)).unwrap();
    let late = queue.check_timeouts(Duration::from_secs(3)).unwrap_err();
    assert!(matches!(late, QueueError::Timeout(_)));
    assert!(matches!(queue.submit(read(512), 3, NOW), Err(Refused::Over(_, 3))));
    assert_eq!(queue.abandon(), [1, 2]);
}

#[test]
fn identifiers_differ_from_one_use_of_a_slot_to_the_next() {
    let mut queue = one(Digests::NONE);
    let mut seen = Vec::new();
    for turn in 0..20 {
        queue.submit(read(0), turn, NOW).unwrap();
        let sent: Vec<u8> = queue.outgoing().flatten().copied().collect();
        queue.sent(sent.len());
        let id = [sent[10], sent[11]];
        assert!(!seen.contains(&id));
        seen.push(id);
        let mut response = vec![5, 0, 24, 0, 24, 0, 0, 0];
        response.resize(24, 0);
        response[20..22].copy_from_slice(&id);
        queue.receive(&mut Input::plain(&response)).unwrap();
        assert_eq!(queue.completed().unwrap().tag, turn);
        if turn == 19 {
            // The same answer a second time.
            let again = queue.receive(&mut Input::plain(&response)).unwrap_err();
            assert!(matches!(again, QueueError::UnknownCommand(_)));
            queue.terminate();
            let sent: Vec<u8> = queue.outgoing().flatten().copied().collect();
            assert_eq!((sent.len(), sent[0], sent[8]), (24, 2, 2), "H2CTermReq, sequence error");
        }
    }
}
