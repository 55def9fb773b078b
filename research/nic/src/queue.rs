//! The queues between a host thread and an engine: packets and commands in one direction,
//! completions and received frames in the other, and empty buffers back.
//!
//! Everything moves by ownership, through non-blocking rings of one producer and one consumer
//! each. Objects circulate: descriptors return as completions, with the references that they
//! hold, so that only the host's core counts these; batches return as empty ones. Therefore only
//! the send ring can be full, and nothing is allocated after the start-up.

use std::ops::Range;

use rtrb::{Consumer, Producer, RingBuffer};
use unlade_net::SeqNumber;
use unlade_nic_engine::resync::{Request, Worked};
use unlade_nic_engine::software::pdus::PduResult;

use crate::buffers::{BUFFERS_MAX, Withdrawn};
use crate::command::Addressed;
use crate::flow::FlowId;
use crate::span::Span;

/// Largest number of payload bytes in a descriptor.
pub const SUPER_SEGMENT_BYTES_MAX: usize = 64 << 10;
/// Largest number of frames of a descriptor.
pub const SUPER_SEGMENT_FRAMES_MAX: usize = 128;
/// Largest number of spans in a descriptor.
pub const PIECES_MAX: usize = 64;
/// Longest TCP header.
pub const TCP_HEADER_BYTES_MAX: usize = 60;
/// Bytes of a batch: a large segment with its headers.
pub const BATCH_BYTES: usize = (64 << 10) + 1024;
/// Largest number of segments in a batch.
pub const BATCH_SEGMENTS_MAX: usize = 256;

/// Sizes of a pair of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Descriptors and commands to the device; 2 to 65536.
    pub tx_entries: usize,
    /// Batches for received frames; 1 to 65536.
    pub rx_batches: usize,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig { tx_entries: 64, rx_batches: 32 }
    }
}

/// Largest number of entries of a ring.
const ENTRIES_MAX: usize = 1 << 16;

/// A message for the device to replay before a packet.
#[derive(Debug, Default)]
pub struct Recovery {
    /// True if it is to be replayed.
    pub wanted: bool,
    /// Start of the message.
    pub start: SeqNumber,
    /// Number of messages before it under the key.
    pub number: u64,
    /// References to its bytes, as software wrote them, up to the packet's.
    pub pieces: Vec<Span>,
    /// The message of another protocol inside it.
    pub inner: InnerRecovery,
}

/// A PDU for the device to replay before the record that is to be replayed.
#[derive(Debug, Default)]
pub struct InnerRecovery {
    /// True if it is to be replayed.
    pub wanted: bool,
    /// Start of the record's content in the stream of PDUs, which is counted separately.
    pub content_start: SeqNumber,
    /// Start of the PDU that contains the content's start, in that stream.
    pub start: SeqNumber,
    /// Number of PDUs before it.
    pub number: u64,
    /// Its bytes up to the record's.
    pub raw: Vec<u8>,
}

impl Recovery {
    /// Drops its references; buffers keep their capacity.
    fn clear(&mut self) {
        self.pieces.clear();
        self.inner.raw.clear();
        (self.wanted, self.inner.wanted) = (false, false);
    }
}

/// The result of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sent {
    /// All of it was sent.
    #[default]
    Whole,
    /// Some of it must not be sent, and was not; TCP retransmits it.
    Dropped,
}

/// A descriptor: one large segment of a flow.
#[derive(Debug, Default)]
pub struct TxPacket {
    /// Its flow.
    pub flow: FlowId,
    /// The TCP header, without a checksum: ports to options.
    pub header: TcpHeader,
    /// Sequence number of the first byte of payload.
    pub seq: SeqNumber,
    /// The payload.
    pub pieces: Vec<Span>,
    /// Length of the payload.
    pub payload_bytes: usize,
    /// Largest number of payload bytes in a frame.
    pub mss_bytes: usize,
    /// The key that seals it, if the flow seals.
    pub key: u16,
    /// Number of first bytes that are from before the offload, and are sent unchanged.
    pub clear_bytes: usize,
    /// The message for the device to replay before the first other byte.
    pub recovery: Recovery,
    /// Its result, when it is completed.
    pub sent: Sent,
}

impl TxPacket {
    /// Drops its references; buffers keep their capacity.
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
    /// A header of the first `bytes` bytes of `raw`.
    pub fn new(raw: [u8; TCP_HEADER_BYTES_MAX], bytes: usize) -> TcpHeader {
        TcpHeader { raw, bytes: bytes.min(TCP_HEADER_BYTES_MAX) as u8 }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.raw[..usize::from(self.bytes)]
    }
}

/// An entry of the send ring.
pub enum TxEntry {
    /// A segment.
    Packet(Box<TxPacket>),
    /// A command.
    Command(Box<Addressed>),
    /// A frame without a flow, sent unchanged.
    Frame(Vec<u8>),
}

/// The kind of a range of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxKind {
    /// A TCP segment, or several consecutive ones, with correct checksums.
    Segment,
    /// A TCP segment that was damaged in transit.
    Damaged,
    /// Any other frame.
    Other,
}

/// A received frame, or several consecutive ones that differ only in their payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxSegment {
    /// Its kind.
    pub kind: RxKind,
    /// Its flow, if the device has one for it.
    pub flow: Option<FlowId>,
    /// The first frame's headers; the whole frame if it is not a segment.
    pub headers: Range<usize>,
    /// Offset of its TCP header.
    pub tcp_at: usize,
    /// Sequence number of the first byte of payload.
    pub seq: SeqNumber,
    /// The payload of all frames.
    pub payload: Range<usize>,
    /// Number of frames.
    pub frames: u32,
    /// The pass in which the payload was decrypted.
    pub worked: Option<Worked>,
    /// Number of first bytes of the payload that are not decrypted, but as they came.
    pub from: usize,
    /// A question to software.
    pub request: Option<Request>,
    /// Results for PDUs in it; offsets count from the start of the payload.
    pub pdus: PduResult,
    /// A question to software, from the machine above TLS.
    pub pdu_request: Option<Request>,
}

/// A buffer of received frames.
#[derive(Debug)]
pub struct RxBatch {
    /// The bytes.
    pub raw: Box<[u8]>,
    /// Number of used bytes.
    pub used_bytes: usize,
    /// The segments in them.
    pub segments: Vec<RxSegment>,
}

impl RxBatch {
    fn new() -> Box<RxBatch> {
        let segments = Vec::with_capacity(BATCH_SEGMENTS_MAX);
        Box::new(RxBatch { raw: vec![0; BATCH_BYTES].into(), used_bytes: 0, segments })
    }
}

/// The host's end of the queues.
pub struct HostQueue {
    /// The send ring.
    pub(crate) tx: Producer<TxEntry>,
    /// Completed descriptors.
    pub(crate) completions: Consumer<Box<TxPacket>>,
    /// Batches of received frames.
    pub(crate) rx: Consumer<Box<RxBatch>>,
    /// Batches that are empty again.
    pub(crate) free: Producer<Box<RxBatch>>,
    /// Buffers that the device returns.
    pub(crate) withdrawn: Consumer<Withdrawn>,
    /// Unused descriptors.
    #[allow(clippy::vec_box, reason = "a descriptor stays in its box all the way round")]
    pub(crate) spare: Vec<Box<TxPacket>>,
}

/// The device's end of the queues.
pub struct DeviceQueue {
    pub(crate) tx: Consumer<TxEntry>,
    pub(crate) completions: Producer<Box<TxPacket>>,
    pub(crate) rx: Producer<Box<RxBatch>>,
    pub(crate) free: Consumer<Box<RxBatch>>,
    /// Has room for every registered buffer.
    pub(crate) withdrawn: Producer<Withdrawn>,
}

/// Creates the two ends of a pair of queues.
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
