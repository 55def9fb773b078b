//! Tests of the connection set-up, and of its errors.

use unlade_nvme_wire::pdu::InitResponse;
use unlade_nvme_wire::{Completion, Pdu};

use super::*;
use crate::storage::error::StreamError;
use crate::storage::initiator::{InitiatorError, ReadError};

/// Both ends of an established connection, in the clear.
struct Ends {
    hosts: [Host; 2],
    ids: [Id; 2],
    now_ns: u64,
}

impl Ends {
    fn new(case: &Case) -> Ends {
        let (left, right) = memory::pair(512, 2048);
        let mut hosts = [Host::new(left, case, 0), Host::new(right, case, 1)];
        let server: SocketAddr = SERVER.parse().unwrap();
        hosts[1].stack.tcp().listen(server, 8).unwrap();
        let client = CLIENT.parse().unwrap();
        let id = hosts[0].stack.connect(Time::from_ns(0), client, server).unwrap();
        let mut ends = Ends { hosts, ids: [id; 2], now_ns: 0 };
        ends.turn(20);
        ends.ids[1] = ends.hosts[1].stack.tcp().accept(server).unwrap();
        ends
    }

    fn turn(&mut self, times: usize) {
        for _ in 0..times {
            for host in &mut self.hosts {
                host.stack.poll(Time::from_ns(self.now_ns));
                host.engine.poll(self.now_ns);
            }
            self.now_ns += 10_000;
        }
    }

    fn start(&mut self) -> Initiator {
        let config = Config {
            nvme: nvme(Digests { header: true, data: false }),
            offload: true,
            secured: false,
            depth: 4,
            nsid: 1,
            block_bytes: BLOCK_BYTES,
        };
        let [host, _] = &mut self.hosts;
        Initiator::connect(&mut host.stack, self.ids[0], config, opening(0)).unwrap()
    }

    fn say(&mut self, pdu: &Pdu, digests: Digests) {
        let said = controller::ControllerPdu { pdu: *pdu, data: Bytes::new(), wrong: false };
        let raw = said.bytes(digests);
        self.hosts[1].stack.write(self.ids[1], raw.into()).unwrap();
        self.turn(20);
    }

    fn poll(&mut self, initiator: &mut Initiator) -> Result<usize, InitiatorError> {
        let done = initiator.poll(&mut self.hosts[0].stack);
        self.turn(20);
        done
    }
}

fn agree(digests: Digests) -> Pdu {
    let (version, alignment_bytes, data_bytes_max) = (0, 4, 4096);
    Pdu::InitResponse(InitResponse { version, alignment_bytes, digests, data_bytes_max })
}

#[test]
fn nothing_is_submitted_before_the_controller_has_answered() {
    let mut ends = Ends::new(&usual());
    let mut initiator = ends.start();
    ends.turn(20);
    let early = initiator.write(&mut ends.hosts[0].stack, 0, vec![0; 512].into());
    assert_eq!(early, Err(ReadError::NotReady));
    let digests = Digests { header: true, data: false };
    ends.say(&agree(digests), Digests::NONE);
    ends.poll(&mut initiator).unwrap();
    assert_eq!(initiator.controller(), None);
    let completion = Completion { result: 9, ..Completion::new(0, Status::SUCCESS) };
    ends.say(&Pdu::ResponseCapsule(completion.encode()), digests);
    ends.poll(&mut initiator).unwrap();
    assert_eq!(initiator.controller(), Some(9));
    let stack = &mut ends.hosts[0].stack;
    assert_eq!(initiator.write(stack, 0, vec![0; 512].into()), Ok(1));
    assert_eq!(initiator.write(stack, 0, vec![0; 500].into()), Err(ReadError::Length));
    // Raw bytes between PDUs would never leave.
    let raw = stack.write(ends.ids[0], Bytes::from_static(b"x"));
    assert_eq!(raw, Err(stack::WriteError::Framed));
}

#[test]
fn what_was_not_asked_for_is_not_agreed_on() {
    let with = |version, digests: Digests| {
        let (alignment_bytes, data_bytes_max) = (4, 4096);
        Pdu::InitResponse(InitResponse { version, alignment_bytes, digests, data_bytes_max })
    };
    for answer in [with(1, Digests::NONE), with(0, Digests::BOTH)] {
        let mut ends = Ends::new(&usual());
        let mut initiator = ends.start();
        ends.turn(20);
        ends.say(&answer, Digests::NONE);
        let error = ends.poll(&mut initiator).unwrap_err();
        assert!(matches!(error, InitiatorError::Stream(StreamError::Agreement(_))), "{error:?}");
    }
}

#[test]
fn a_second_answer_has_no_place() {
    let mut ends = Ends::new(&usual());
    let mut initiator = ends.start();
    ends.turn(20);
    ends.say(&agree(Digests::NONE), Digests::NONE);
    ends.poll(&mut initiator).unwrap();
    ends.say(&agree(Digests::NONE), Digests::NONE);
    let error = ends.poll(&mut initiator).unwrap_err();
    assert_eq!(error, InitiatorError::Stream(StreamError::Unexpected));
}

#[test]
fn a_queue_that_is_refused_says_so() {
    for (status, result) in [(Status::CONNECT_INVALID, 0), (Status::SUCCESS, 1 << 16)] {
        let mut ends = Ends::new(&usual());
        let mut initiator = ends.start();
        ends.turn(20);
        ends.say(&agree(Digests::NONE), Digests::NONE);
        ends.poll(&mut initiator).unwrap();
        let completion = Completion { result, ..Completion::new(0, status) };
        ends.say(&Pdu::ResponseCapsule(completion.encode()), Digests::NONE);
        let expected = match result {
            0 => InitiatorError::Refused(CommandError::Status(status.bits())),
            _ => InitiatorError::Authentication,
        };
        assert_eq!(ends.poll(&mut initiator), Err(expected));
        assert_eq!(initiator.controller(), None);
    }
}
