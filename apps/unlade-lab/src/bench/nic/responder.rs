//! A far end that costs next to nothing: a port that answers what is sent through it.

use std::collections::VecDeque;

use super::controller::Controller;
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, classify, transport_checksum};
use unlade_net::{FlowKey, SeqNumber};
use unlade_research_nic::port::{Frame, Port};
use unlade_research_nic::tls::keys::{Secrets, SoftKey};

/// Bytes of a frame's headers, and a few.
const HEADERS_BYTES: usize = 128;
/// Bytes that one acknowledgement covers: those that a receiver merges that does not count packets.
const ACKNOWLEDGED_BYTES: u32 = 64 << 10;
const WINDOW_SCALE: u8 = 8;
const ISN: SeqNumber = SeqNumber(77);
/// Where in a frame TCP begins: Ethernet and IPv4.
const TCP_AT: usize = 34;

/// Acknowledges, or sends records.
pub struct Responder {
    spare: Vec<Frame>,
    out: VecDeque<Frame>,
    flow: Option<FlowKey>,
    /// An acknowledgement, in which numbers are to be changed: a frame that is made from nothing
    /// would cost the engine's core more than all that is measured of it.
    acknowledgement: Vec<u8>,
    /// The host's next data.
    next: SeqNumber,
    acknowledged: SeqNumber,
    /// The data to send, in frames once the host's sequence numbers are known.
    stream: Vec<u8>,
    frames: VecDeque<(SeqNumber, Frame)>,
    /// Edge of the host's window, and its shift.
    edge: SeqNumber,
    /// End of the sent data.
    sent: SeqNumber,
    shift: u8,
    started: bool,
    mss_bytes: usize,
    answers: Option<Answers>,
    controller: Option<Controller>,
    /// Where what the controller says next begins.
    tail: SeqNumber,
    said: Vec<Vec<u8>>,
}

/// Sends answers: the next one after this number of further bytes from the host.
#[derive(Debug, Clone, Copy)]
pub struct Answers {
    /// Bytes of a question.
    pub question_bytes: u32,
    /// Bytes of an answer.
    pub answer_bytes: usize,
    /// Where in the host's stream questions start.
    start: SeqNumber,
}

impl Answers {
    /// Of so many bytes each.
    pub fn new(question_bytes: u32, answer_bytes: usize) -> Answers {
        Answers { question_bytes, answer_bytes, start: SeqNumber(0) }
    }
}

impl Responder {
    /// Acknowledges.
    pub fn sink(mss_bytes: usize) -> Responder {
        Responder {
            spare: Vec::new(),
            out: VecDeque::new(),
            flow: None,
            acknowledgement: Vec::new(),
            next: SeqNumber(0),
            acknowledged: SeqNumber(0),
            stream: Vec::new(),
            frames: VecDeque::new(),
            edge: ISN,
            sent: ISN + 1,
            shift: 0,
            started: false,
            mss_bytes,
            answers: None,
            controller: None,
            tail: ISN + 1,
            said: Vec::new(),
        }
    }

    /// Is the far end of a queue.
    pub fn controller(mss_bytes: usize, controller: Controller) -> Responder {
        let controller = Some(controller);
        Responder { controller, started: true, ..Responder::sink(mss_bytes) }
    }

    /// The controller, where there is one.
    pub fn far(&mut self) -> Option<&mut Controller> {
        self.controller.as_mut()
    }

    /// Sends so many records of `record_bytes` of content each; without keys the content alone.
    pub fn source(
        mss_bytes: usize,
        keys: Option<Secrets>,
        records: usize,
        record_bytes: usize,
    ) -> Responder {
        let content = vec![0x55; record_bytes];
        let mut stream = Vec::new();
        let key = keys.map(|keys| SoftKey::new(&keys).expect("a key that fits"));
        for number in 0..records as u64 {
            let Some(key) = &key else {
                stream.extend_from_slice(&content);
                continue;
            };
            let mut record = vec![0; key.prefix_bytes() + record_bytes + key.suffix_bytes()];
            key.seal(number, 23, &content, &mut record).expect("a record that fits");
            stream.extend(record);
        }
        Responder { stream, ..Responder::sink(mss_bytes) }
    }

    /// Sends `stream`, an answer for each question that it hears.
    pub fn answers(mss_bytes: usize, stream: Vec<u8>, answers: Answers) -> Responder {
        Responder { stream, answers: Some(answers), ..Responder::sink(mss_bytes) }
    }

    /// From now on what is to be sent is sent.
    pub fn start(&mut self) {
        self.started = true;
        let Some(flow) = self.flow else { return };
        let stream = std::mem::take(&mut self.stream);
        let mut seq = ISN + 1;
        if let Some(answers) = &mut self.answers {
            answers.start = self.next;
        }
        let whole = self.answers.map_or(stream.len(), |answers| answers.answer_bytes);
        let payloads = stream.chunks(whole.max(1)).flat_map(|part| part.chunks(self.mss_bytes));
        let mut frames = Vec::new();
        for payload in payloads {
            let frame = self.frame(flow, seq, TcpFlags::ACK, payload);
            seq = seq + payload.len() as u32;
            frames.push((seq, frame));
        }
        self.frames.extend(frames);
    }

    /// Where what may be sent ends: by the host's window, and by what it has asked.
    fn edge(&self) -> SeqNumber {
        let Some(answers) = self.answers else { return self.edge };
        let questions = self.next.since(answers.start) as u32 / answers.question_bytes;
        let answered = ISN + 1 + questions * answers.answer_bytes as u32;
        if answered.before(self.edge) { answered } else { self.edge }
    }

    fn frame(&self, flow: FlowKey, seq: SeqNumber, flags: TcpFlags, payload: &[u8]) -> Frame {
        let mut options = TcpOptions::default();
        if flags.contains(TcpFlags::SYN) {
            options.mss = Some(self.mss_bytes as u16);
            options.window_scale = Some(WINDOW_SCALE);
            options.sack_permitted = true;
        }
        let segment = Segment {
            flow,
            direction: Direction::ToClient,
            seq,
            ack: self.next,
            flags,
            window: 0xffff,
            options,
            payload,
        };
        let bytes = segment.ethernet_frame([4; 6], [2; 6]).expect("a frame that fits");
        let mut frame = Frame::new(self.mss_bytes + HEADERS_BYTES);
        assert!(frame.copy_from(&bytes));
        frame
    }

    /// Looks at a frame's headers; returns how many bytes at the end of its payload are new.
    fn hear(&mut self, headers: &[u8], payload_bytes: usize) -> usize {
        if self.flow.is_none() {
            let found = classify(headers).expect("a segment");
            self.flow = Some(found.flow);
            self.next = found.seq + 1;
            self.acknowledged = self.next;
            self.shift = shift(headers);
            let answer = self.frame(found.flow, ISN, TcpFlags::SYN | TcpFlags::ACK, &[]);
            self.out.push_back(answer);
            return 0;
        }
        let field = |at: usize| u32::from_be_bytes(headers[at..at + 4].try_into().expect("four"));
        let window = u16::from_be_bytes([headers[TCP_AT + 14], headers[TCP_AT + 15]]);
        self.edge = SeqNumber(field(TCP_AT + 8)) + (u32::from(window) << self.shift);
        // Where this machine was busy with something else, TCP sends again.
        let seq = SeqNumber(field(TCP_AT + 4));
        let end = seq + payload_bytes as u32;
        if self.next.before(seq) || !self.next.before(end) {
            return 0;
        }
        let fresh = end.since(self.next) as usize;
        self.next = end;
        fresh
    }

    /// The controller hears what is new, and what it says is to be sent.
    fn converse(&mut self, fresh: &[u8]) {
        let Some(flow) = self.flow else { return };
        if let Some(controller) = &mut self.controller {
            controller.take(fresh, &mut self.said);
        }
        for bytes in std::mem::take(&mut self.said) {
            let frame = self.frame(flow, self.tail, TcpFlags::ACK, &bytes);
            self.tail = self.tail + bytes.len() as u32;
            self.frames.push_back((self.tail, frame));
        }
    }

    fn acknowledge(&mut self) {
        let Some(flow) = self.flow else { return };
        self.acknowledged = self.next;
        if self.acknowledgement.is_empty() {
            let frame = self.frame(flow, self.sent, TcpFlags::ACK, &[]);
            self.acknowledgement = frame.as_slice().to_vec();
        }
        let tcp = &mut self.acknowledgement[TCP_AT..];
        // Where TCP expects the next byte, or the acknowledgement does not count.
        tcp[4..8].copy_from_slice(&self.sent.0.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.next.0.to_be_bytes());
        tcp[16..18].fill(0);
        let sum = transport_checksum(flow.service.ip(), flow.client.ip(), tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = self.empty();
        assert!(frame.copy_from(&self.acknowledgement), "a frame that fits");
        self.out.push_back(frame);
    }
}

/// The shift of windows in the options of a SYN.
fn shift(frame: &[u8]) -> u8 {
    let view = unlade_net::packet::TcpView::new(&frame[TCP_AT..]).expect("a segment");
    let options = unlade_net::packet::TcpRepr::parse(&view).options;
    options.window_scale.unwrap_or(0)
}

impl Port for Responder {
    fn room(&mut self) -> usize {
        1024
    }

    fn empty(&mut self) -> Frame {
        self.spare.pop().unwrap_or_else(|| Frame::new(self.mss_bytes + HEADERS_BYTES))
    }

    fn send(&mut self, frame: Frame) -> bool {
        let bytes = frame.as_slice();
        let data_at = TCP_AT + usize::from(bytes[TCP_AT + 12] >> 4) * 4;
        let (headers, payload) = bytes.split_at(data_at);
        let sent = self.send_parts(headers, payload);
        self.recycle(frame);
        sent
    }

    fn send_parts(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        let fresh = self.hear(headers, payload.len());
        if fresh > 0 && self.controller.is_some() {
            self.converse(&payload[payload.len() - fresh..]);
        }
        if self.next.since(self.acknowledged) as u32 >= ACKNOWLEDGED_BYTES {
            self.acknowledge();
        }
        true
    }

    fn receive(&mut self) -> Option<Frame> {
        if let Some(frame) = self.out.pop_front() {
            return Some(frame);
        }
        if self.started && self.acknowledged != self.next {
            self.acknowledge();
            return self.out.pop_front();
        }
        let (end, _) = self.frames.front()?;
        if self.edge().before(*end) {
            return None;
        }
        let (end, frame) = self.frames.pop_front()?;
        self.sent = end;
        Some(frame)
    }

    fn recycle(&mut self, frame: Frame) {
        if self.spare.len() < 256 {
            self.spare.push(frame);
        }
    }
}
