//! Far ends of many connections in one port: they answer requests for connections, and send frames
//! that were made beforehand.

use std::collections::{HashMap, VecDeque};
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, classify};
use unlade_net::{FlowKey, SeqNumber};
use unlade_research_nic::port::{Frame, Port};

/// Bytes of a frame that the host sends: acknowledgements, with options.
const ANSWER_BYTES: usize = 256;
/// Where TCP's flags are: Ethernet, IPv4.
const FLAGS_AT: usize = 34 + 13;
const ISN: SeqNumber = SeqNumber(77);

/// The port.
pub struct Far {
    mss_bytes: usize,
    /// Frames to the host, in order.
    out: VecDeque<Frame>,
    /// Buffers that the host has taken, released outside of measurements.
    taken: Vec<Frame>,
    spare: Vec<Frame>,
    /// Next data of each host's end.
    next: HashMap<FlowKey, SeqNumber>,
}

impl Far {
    /// Has no connections yet.
    pub fn new(mss_bytes: usize) -> Far {
        Far {
            mss_bytes,
            out: VecDeque::new(),
            taken: Vec::new(),
            spare: Vec::new(),
            next: HashMap::new(),
        }
    }

    /// Sends `bytes` of the stream to the host's end of `flow`, `at` bytes behind its start, in
    /// frames of an MSS. False where there is no such connection.
    pub fn load(&mut self, flow: &FlowKey, at: usize, bytes: &[u8]) -> bool {
        let Some(ack) = self.next.get(flow).copied() else { return false };
        let mut seq = ISN + 1 + at as u32;
        for payload in bytes.chunks(self.mss_bytes) {
            let frame = self.frame(*flow, (seq, ack), TcpFlags::ACK, payload);
            seq = seq + payload.len() as u32;
            self.out.push_back(frame);
        }
        true
    }

    /// Lets go of what the host has taken, and makes room to take as much again as is to come.
    pub fn settle(&mut self) {
        self.taken.clear();
        self.taken.reserve(self.out.len());
    }

    fn frame(
        &self,
        flow: FlowKey,
        (seq, ack): (SeqNumber, SeqNumber),
        flags: TcpFlags,
        payload: &[u8],
    ) -> Frame {
        let mut options = TcpOptions::default();
        if flags.contains(TcpFlags::SYN) {
            options.mss = Some(self.mss_bytes as u16);
            options.sack_permitted = true;
        }
        let direction = Direction::ToClient;
        let window = 0xffff;
        let segment = Segment { flow, direction, seq, ack, flags, window, options, payload };
        let bytes = segment.ethernet_frame([4; 6], [2; 6]).expect("a frame that fits");
        let mut frame = Frame::new(bytes.len());
        assert!(frame.copy_from(&bytes));
        frame
    }
}

impl Port for Far {
    fn room(&mut self) -> usize {
        1024
    }

    fn empty(&mut self) -> Frame {
        self.spare.pop().unwrap_or_else(|| Frame::new(ANSWER_BYTES))
    }

    fn send(&mut self, frame: Frame) -> bool {
        let bytes = frame.as_slice();
        let flags = bytes.get(FLAGS_AT).copied().unwrap_or(0);
        if TcpFlags(flags).contains(TcpFlags::SYN)
            && let Some(found) = classify(bytes)
        {
            let next = found.seq + 1;
            self.next.insert(found.flow, next);
            let flags = TcpFlags::SYN | TcpFlags::ACK;
            let answer = self.frame(found.flow, (ISN, next), flags, &[]);
            self.out.push_back(answer);
        }
        self.spare.push(frame);
        true
    }

    fn receive(&mut self) -> Option<Frame> {
        self.out.pop_front()
    }

    fn recycle(&mut self, frame: Frame) {
        self.taken.push(frame);
    }
}
