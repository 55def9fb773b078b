//! Transmit machine: software writes messages in the clear, and the device seals them.
//!
//! The driver keeps a copy of the device's position ([`Shadow`]). An in-order packet goes directly
//! to the device. For any other packet the driver asks software for the message that contains its
//! start, and the device replays that message up to the packet without sending it.
//!
//! Each key of a flow has its own machine. A packet that extends beyond the last message of a key
//! is split there ([`Sent::under_one_key`](crate::software::sent::Sent::under_one_key)).
//!
//! A packet leaves sealed or not at all: a packet with unknown or malformed content is dropped,
//! and TCP retransmits it.

use unlade_net::SeqNumber;

use crate::framing::{Framing, Step};
use crate::l5p::L5p;
use crate::rule::{Rule, holds};
use crate::stats::Stats;
use crate::tls::{self, TAG_BYTES, Tls};

/// Bytes that are replayed in one step.
const REPLAY_BYTES: usize = 2048;

/// A sent message that is not completely acknowledged, as software wrote it.
#[derive(Clone, Copy, Debug)]
pub struct MessageState<'m> {
    /// Start of the message.
    pub start: SeqNumber,
    /// Number of messages before it under the same key.
    pub number: u64,
    /// Index of the flow's key that seals it; software numbers the keys.
    pub key: u16,
    /// Its bytes from its start on, at least up to the requested byte.
    pub bytes: &'m [u8],
}

/// Software's answer for a byte of the stream.
#[derive(Clone, Copy, Debug)]
pub enum Found<'m> {
    /// The byte is in this message.
    Message(MessageState<'m>),
    /// The byte precedes the offload, which starts at `until`, and is already in its form on the
    /// wire.
    Before {
        /// The first byte that the device seals.
        until: SeqNumber,
    },
    /// The byte is in no known message.
    Unknown,
}

/// Software's messages (`l5o_get_tx_msgstate`).
pub trait Messages {
    /// The message of the byte `seq`.
    fn find(&self, seq: SeqNumber) -> Found<'_>;
}

/// The device's work for a packet.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<'m> {
    /// Number of leading payload bytes that are sent unchanged.
    pub clear_bytes: usize,
    /// The message that the device replays first, up to the byte after those.
    pub recovery: Option<MessageState<'m>>,
}

/// The result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet can leave.
    Send,
    /// The packet must not leave; its payload is undefined.
    Drop,
}

/// The driver's copy of the device's position in a flow.
#[derive(Clone, Copy, Debug)]
pub struct Shadow {
    next: Option<SeqNumber>,
}

impl Shadow {
    /// Creates a shadow of a device context whose next byte is `start`.
    pub fn new(start: SeqNumber) -> Shadow {
        Shadow { next: Some(start) }
    }

    /// Prepares a packet of `payload_bytes` bytes from `seq` on; returns `None` if it must be
    /// dropped.
    pub fn prepare<'m>(
        &mut self,
        messages: &'m impl Messages,
        stats: &mut Stats,
        seq: SeqNumber,
        payload_bytes: usize,
    ) -> Option<Prepared<'m>> {
        let end = seq + payload_bytes as u32;
        if payload_bytes == 0 || self.next == Some(seq) {
            self.next = self.next.map(|next| if payload_bytes == 0 { next } else { end });
            return Some(Prepared { clear_bytes: 0, recovery: None });
        }
        stats.tx_tls_ooo += 1;
        let mut clear_bytes = 0;
        let mut found = messages.find(seq);
        if let Found::Before { until } = found {
            let before = until.since(seq).max(0) as usize;
            if before >= payload_bytes {
                stats.tx_tls_skip_no_sync_data += 1;
                return Some(Prepared { clear_bytes: payload_bytes, recovery: None });
            }
            clear_bytes = before;
            found = messages.find(until);
        }
        let Found::Message(message) = found else {
            stats.tx_tls_drop_no_sync_data += 1;
            return None;
        };
        self.next = Some(end);
        Some(Prepared { clear_bytes, recovery: Some(message) })
    }

    /// Returns true if the device continues with the byte `seq` without recovery.
    pub fn is_next(&self, seq: SeqNumber) -> bool {
        self.next == Some(seq)
    }

    /// Invalidates the shadow after the device has dropped a packet.
    pub fn forget(&mut self) {
        self.next = None;
    }
}

/// The dynamic state of the machine of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Tx<P> {
    framing: Framing,
    progress: Option<P>,
    key: u16,
    /// The last processed bytes were well-formed.
    sound: bool,
}

impl<P: Copy> Tx<P> {
    /// Creates a machine for a stream in which message `number` under `key`, one of the flow's
    /// keys, starts at `start` (`l5o_create`).
    pub fn new(start: SeqNumber, number: u64, key: u16) -> Tx<P> {
        Tx { framing: Framing::at(start, number), progress: None, key, sound: true }
    }

    /// The next byte that the machine processes.
    pub fn expected(&self) -> SeqNumber {
        self.framing.position()
    }

    /// The position in the stream.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Restores the state before the byte `seq`, which is in `message` or directly behind it.
    /// Returns false if the message is too short, malformed or under another key; nothing can be
    /// sent then.
    pub fn recover<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        message: &MessageState<'_>,
        seq: SeqNumber,
    ) -> bool {
        let before = usize::try_from(seq.since(message.start)).ok();
        let before = before.and_then(|bytes| message.bytes.get(..bytes));
        self.recover_pieces(l5p, stats, message, seq, before.into_iter())
    }

    /// As [`Tx::recover`], if the message's bytes up to `seq`, and no others, are in `chunks`; the
    /// bytes in `message` are ignored.
    pub fn recover_pieces<'p, L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        message: &MessageState<'_>,
        seq: SeqNumber,
        chunks: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        if message.key != self.key {
            self.sound = false;
            return false;
        }
        *self = Tx::new(message.start, message.number, message.key);
        let mut replayed = [0; REPLAY_BYTES];
        for bytes in chunks.flat_map(|chunk| chunk.chunks(REPLAY_BYTES)) {
            stats.tx_replayed_bytes += bytes.len() as u64;
            let replayed = &mut replayed[..bytes.len()];
            self.sound = self.sound && self.walk_to(l5p, bytes, replayed);
        }
        self.sound = self.sound && self.framing.position() == seq;
        self.sound
    }

    /// Seals the payload of a packet in place.
    pub fn transmit<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &mut [u8],
    ) -> Verdict {
        if payload.is_empty() {
            return Verdict::Send;
        }
        self.sound = self.sound && seq == self.framing.position() && self.walk(l5p, payload);
        if !self.sound {
            stats.tx_tls_err += 1;
            return Verdict::Drop;
        }
        stats.tx_tls_encrypted_packets += 1;
        stats.tx_tls_encrypted_bytes += payload.len() as u64;
        Verdict::Send
    }

    /// Seals the payload of a packet that is in several `chunks` into `out`, of the same total
    /// length. The output for a dropped packet may contain plaintext.
    pub fn transmit_pieces<'p, L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        chunks: impl Iterator<Item = &'p [u8]>,
        out: &mut [u8],
    ) -> Verdict {
        let mut done = 0;
        self.sound = self.sound && (out.is_empty() || seq == self.framing.position());
        for chunk in chunks {
            let place = out.get_mut(done..done + chunk.len());
            self.sound = self.sound && place.is_some_and(|out| self.walk_to(l5p, chunk, out));
            done += chunk.len();
        }
        if !self.sound || done != out.len() {
            self.sound = false;
            stats.tx_tls_err += 1;
            return Verdict::Drop;
        }
        stats.tx_tls_encrypted_packets += u64::from(done > 0);
        stats.tx_tls_encrypted_bytes += done as u64;
        Verdict::Send
    }

    /// As [`Tx::walk`], from `bytes` to `out`.
    fn walk_to<L: L5p<Progress = P>>(&mut self, l5p: &L, bytes: &[u8], out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            match self.framing.step(l5p, &bytes[done..]) {
                Step::Header { bytes: count, complete } => {
                    out[done..done + count].copy_from_slice(&bytes[done..done + count]);
                    if complete {
                        self.progress = Some(l5p.begin(&self.framing.message()));
                    }
                    done += count;
                }
                Step::Body { bytes: count, offset, .. } => {
                    let message = self.framing.message();
                    let Some(at) = &mut self.progress else { return false };
                    let range = done..done + count;
                    l5p.transmit_to(&message, at, offset, &bytes[range.clone()], &mut out[range]);
                    self.framing.pass(count);
                    done += count;
                }
                Step::Malformed => return false,
            }
        }
        true
    }

    /// Seals the next bytes; returns false if a header is malformed.
    pub(crate) fn walk<L: L5p<Progress = P>>(&mut self, l5p: &L, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            match self.framing.step(l5p, &bytes[done..]) {
                Step::Header { bytes, complete } => {
                    if complete {
                        self.progress = Some(l5p.begin(&self.framing.message()));
                    }
                    done += bytes;
                }
                Step::Body { bytes: count, offset, .. } => {
                    let message = self.framing.message();
                    let Some(at) = &mut self.progress else { return false };
                    l5p.transmit(&message, at, offset, &mut bytes[done..done + count]);
                    self.framing.pass(count);
                    done += count;
                }
                Step::Malformed => return false,
            }
        }
        true
    }
}

impl Tx<tls::Progress> {
    /// A value that identifies the content of the record sealed last, as far as it was sealed: the
    /// tag that a record of this content would have. Other content of the same length has the same
    /// value with a probability of 2^-117, which cannot be increased without the key. The value
    /// must not leave the device. `None` if no record has begun.
    pub fn fingerprint(&self, tls: &Tls) -> Option<[u8; TAG_BYTES]> {
        self.progress.as_ref().map(|at| tls.fingerprint(at))
    }
}

/// Runs driver and device in one call: turns a packet into its form on the wire.
pub fn send<L: L5p>(
    l5p: &L,
    (shadow, tx): (&mut Shadow, &mut Tx<L::Progress>),
    stats: &mut Stats,
    messages: &impl Messages,
    seq: SeqNumber,
    payload: &mut [u8],
) -> Verdict {
    let Some(prepared) = shadow.prepare(messages, stats, seq, payload.len()) else {
        return if holds(Rule::FailClosed) { Verdict::Drop } else { Verdict::Send };
    };
    let first = seq + prepared.clear_bytes as u32;
    if let Some(message) = &prepared.recovery {
        tx.recover(l5p, stats, message, first);
    }
    let verdict = tx.transmit(l5p, stats, first, &mut payload[prepared.clear_bytes..]);
    if verdict == Verdict::Drop {
        shadow.forget();
    }
    verdict
}
