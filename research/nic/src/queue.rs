//! The queues between a host thread and an engine: what is sent and commands one way, what was sent
//! and what has come the other, and empty buffers back.
//!
//! Everything moves by ownership, through rings of one producer and one consumer each that never
//! wait. A thing goes round: descriptors come back as completions, with the references that they
//! hold, so that these are counted by the host's core only; batches come back as empty ones. So no
//! ring can be full but the send ring, and nothing is allocated once all of it exists.

use std::ops::Range;

use rtrb::{Consumer, Producer, RingBuffer};
use unlade_net::SeqNumber;
use unlade_nic_engine::resync::{Request, Worked};
use unlade_nic_engine::software::pdus::PduResult;

use crate::buffers::{BUFFERS_MAX, Withdrawn};
use crate::command::Addressed;
use crate::flow::FlowId;
use crate::span::Span;

/// Most bytes of payload in a descriptor.
pub const SUPER_SEGMENT_BYTES_MAX: usize = 64 << 10;
/// Most frames that a descriptor is cut into.
pub const SUPER_SEGMENT_FRAMES_MAX: usize = 128;
/// Most pieces in a descriptor.
pub const PIECES_MAX: usize = 64;
/// Longest TCP header.
pub const TCP_HEADER_BYTES_MAX: usize = 60;
/// Bytes of a batch: a large segment with its headers.
pub const BATCH_BYTES: usize = (64 << 10) + 1024;
/// Most segments in a batch.
pub const BATCH_SEGMENTS_MAX: usize = 256;

/// Sizes of a pair of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Descriptors and commands on their way to the device; 2 to 65536.
    pub tx_entries: usize,
    /// Batches for what comes; 1 to 65536.
    pub rx_batches: usize,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig { tx_entries: 64, rx_batches: 32 }
    }
}

/// Most entries of a ring.
const ENTRIES_MAX: usize = 1 << 16;

/// A message that the device is to replay before a packet.
#[derive(Debug, Default)]
pub struct Recovery {
    /// It is to be replayed.
    pub wanted: bool,
    /// Where it starts.
    pub start: SeqNumber,
    /// How many were before it under the key.
    pub number: u64,
    /// Its bytes, as software wrote them, up to the packet's: references on them.
    pub pieces: Vec<Span>,
    /// What the message holds of another protocol.
    pub inner: InnerRecovery,
}

/// A PDU that the device is to replay before the record that is to be replayed.
#[derive(Debug, Default)]
pub struct InnerRecovery {
    /// It is to be replayed.
    pub wanted: bool,
    /// Where in the stream of PDUs the record's content starts; that stream is counted by itself.
    pub content_start: SeqNumber,
    /// Where in it the PDU starts that the content starts in.
    pub start: SeqNumber,
    /// How many PDUs were before it.
    pub number: u64,
    /// Its bytes up to the record's.
    pub raw: Vec<u8>,
}

impl Recovery {
    /// Lets go of what it holds; buffers keep their room.
    fn clear(&mut self) {
        self.pieces.clear();
        self.inner.raw.clear();
        (self.wanted, self.inner.wanted) = (false, false);
    }
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sent {
    /// All of it has left.
    #[default]
    Whole,
    /// Some of it must not leave, and did not; TCP sends it again.
    Dropped,
}

/// A descriptor: one large segment of a flow.
#[derive(Debug, Default)]
pub struct TxPacket {
    /// Whose it is.
    pub flow: FlowId,
    /// The TCP header, without a checksum: ports to options.
    pub header: TcpHeader,
    /// Sequence number of the first byte of payload.
    pub seq: SeqNumber,
    /// The payload.
    pub pieces: Vec<Span>,
    /// Bytes of it.
    pub payload_bytes: usize,
    /// Most bytes of payload in a frame.
    pub mss_bytes: usize,
    /// The key that seals it, where the flow seals.
    pub key: u16,
    /// So many bytes of it are from before the offload, and leave as they are.
    pub clear_bytes: usize,
    /// What the device is to replay before the first other byte.
    pub recovery: Recovery,
    /// What became of it, when it comes back.
    pub sent: Sent,
}

impl TxPacket {
    /// Lets go of what it holds; buffers keep their room.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.recovery.clear();
        (self.payload_bytes, self.clear_bytes, self.key) = (0, 0, 0);
        self.sent = Sent::Whole;
    }
}

/// A TCP header in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct TcpHeader {
    raw: [u8; TCP_HEADER_BYTES_MAX],
    bytes: u8,
}

impl Default for TcpHeader {
    fn default() -> TcpHeader {
        TcpHeader { raw: [0; TCP_HEADER_BYTES_MAX], bytes: 0 }
    }
}

impl TcpHeader {
    /// The first `bytes` of `bytes`, of which there are at most as many.
    pub fn new(raw: [u8; TCP_HEADER_BYTES_MAX], bytes: usize) -> TcpHeader {
        TcpHeader { raw, bytes: bytes.min(TCP_HEADER_BYTES_MAX) as u8 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.raw[..usize::from(self.bytes)]
    }
}

/// What goes to the device, in order.
pub enum TxEntry {
    /// A segment.
    Packet(Box<TxPacket>),
    /// A command.
    Command(Box<Addressed>),
    /// A frame that belongs to no flow, as it is to leave.
    Frame(Vec<u8>),
}

/// What a range of a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxKind {
    /// A TCP segment, or several in a row, whose checksums are right.
    Segment,
    /// A TCP segment that was damaged on its way.
    Damaged,
    /// Any other frame.
    Other,
}

/// A frame that came, or several that are alike but for their payloads, which follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxSegment {
    /// What it is.
    pub kind: RxKind,
    /// Whose it is, where the device knows.
    pub flow: Option<FlowId>,
    /// The first frame's headers; the whole frame where it is no segment.
    pub headers: Range<usize>,
    /// Where its TCP header starts.
    pub tcp_at: usize,
    /// Sequence number of the first byte of payload.
    pub seq: SeqNumber,
    /// The payload of all frames.
    pub payload: Range<usize>,
    /// How many frames.
    pub frames: u32,
    /// The payload was decrypted so.
    pub worked: Option<Worked>,
    /// But not the first bytes of it, so many: they are as they came.
    pub from: usize,
    /// A question for software.
    pub request: Option<Request>,
    /// What is said of PDUs in it; places count from the start of the payload.
    pub pdus: PduResult,
    /// A question for software, of the machine above TLS.
    pub pdu_request: Option<Request>,
}

/// A buffer with what came.
#[derive(Debug)]
pub struct RxBatch {
    /// The bytes.
    pub raw: Box<[u8]>,
    /// How many of them are used.
    pub used_bytes: usize,
    /// What they are.
    pub segments: Vec<RxSegment>,
}

impl RxBatch {
    fn new() -> Box<RxBatch> {
        let segments = Vec::with_capacity(BATCH_SEGMENTS_MAX);
        Box::new(RxBatch { raw: vec![0; BATCH_BYTES].into(), used_bytes: 0, segments })
    }
}

/// The host's end.
pub struct HostQueue {
    /// To the device.
    pub(crate) tx: Producer<TxEntry>,
    /// Descriptors that were worked on.
    pub(crate) completions: Consumer<Box<TxPacket>>,
    /// What came.
    pub(crate) rx: Consumer<Box<RxBatch>>,
    /// Batches that are empty again.
    pub(crate) free: Producer<Box<RxBatch>>,
    /// Buffers that the device gives back.
    pub(crate) withdrawn: Consumer<Withdrawn>,
    /// Descriptors that are not in use.
    #[allow(clippy::vec_box, reason = "a descriptor stays in its box all the way round")]
    pub(crate) spare: Vec<Box<TxPacket>>,
}

/// The device's end.
pub struct DeviceQueue {
    pub(crate) tx: Consumer<TxEntry>,
    pub(crate) completions: Producer<Box<TxPacket>>,
    pub(crate) rx: Producer<Box<RxBatch>>,
    pub(crate) free: Consumer<Box<RxBatch>>,
    /// Has room for every buffer that there is.
    pub(crate) withdrawn: Producer<Withdrawn>,
}

/// The two ends of a pair of queues.
pub fn pair(config: QueueConfig) -> (HostQueue, DeviceQueue) {
    let tx_entries = config.tx_entries.clamp(2, ENTRIES_MAX);
    let rx_batches = config.rx_batches.clamp(1, ENTRIES_MAX);
    let (host_tx, tx) = RingBuffer::new(tx_entries);
    let (completions, host_completions) = RingBuffer::new(tx_entries);
    let (rx, host_rx) = RingBuffer::new(rx_batches);
    let (mut host_free, free) = RingBuffer::new(rx_batches);
    let (withdrawn, host_withdrawn) = RingBuffer::new(BUFFERS_MAX);
    for _ in 0..rx_batches {
        // There is room for all of them.
        let _ = host_free.push(RxBatch::new());
    }
    let spare = (0..tx_entries).map(|_| Box::default()).collect();
    let host = HostQueue {
        tx: host_tx,
        completions: host_completions,
        rx: host_rx,
        free: host_free,
        withdrawn: host_withdrawn,
        spare,
    };
    (host, DeviceQueue { tx, completions, rx, free, withdrawn })
}
