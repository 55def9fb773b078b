//! Packets to send: software has written messages in the clear, the wire gets them sealed.
//!
//! The driver has a copy of where the device is ([`Shadow`]). A packet that is next goes to the
//! device as it is; for any other the driver asks software which message it starts in, and has
//! the device replay that message up to the packet, without sending anything.
//!
//! Each key of a flow has a machine of its own, and a packet that reaches beyond the last message of
//! a key is divided there ([`Sent::under_one_key`](crate::software::sent::Sent::under_one_key)).
//!
//! A packet leaves sealed or not at all: whatever is not known, or is not as it should be, drops
//! it. TCP sends it again.

use unlade_net::SeqNumber;

use crate::framing::{Framing, Step};
use crate::l5p::L5p;
use crate::rule::{Rule, holds};
use crate::stats::Stats;
use crate::tls::{self, TAG_BYTES, Tls};

/// Bytes that are replayed at once.
const REPLAY_BYTES: usize = 2048;

/// A message that was sent and not acknowledged whole, as software has written it.
#[derive(Clone, Copy, Debug)]
pub struct MessageState<'m> {
    /// Where it starts.
    pub start: SeqNumber,
    /// How many were before it under the same key.
    pub number: u64,
    /// Which of the flow's keys it is sealed with; software counts them.
    pub key: u16,
    /// Its bytes from its start on, at least up to the one that was asked for.
    pub bytes: &'m [u8],
}

/// What software knows of an byte of the stream.
#[derive(Clone, Copy, Debug)]
pub enum Found<'m> {
    /// It is in this message.
    Message(MessageState<'m>),
    /// It is from before the offload, which starts at `until`: already as the wire gets it.
    Before {
        /// The first byte that the device seals.
        until: SeqNumber,
    },
    /// Nothing.
    Unknown,
}

/// Software's messages (`l5o_get_tx_msgstate`).
pub trait Messages {
    /// What the byte `seq` belongs to.
    fn find(&self, seq: SeqNumber) -> Found<'_>;
}

/// What the device is to do with a packet.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<'m> {
    /// So many bytes of its payload are sent as they are.
    pub clear_bytes: usize,
    /// The device is to replay this message first, up to what follows those bytes.
    pub recovery: Option<MessageState<'m>>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can leave.
    Send,
    /// It must not leave; its payload means nothing.
    Drop,
}

/// What the driver knows of the device's state for a flow.
#[derive(Clone, Copy, Debug)]
pub struct Shadow {
    next: Option<SeqNumber>,
}

impl Shadow {
    /// The device's context was made for a stream whose next byte is `start`.
    pub fn new(start: SeqNumber) -> Shadow {
        Shadow { next: Some(start) }
    }

    /// What is to be done with a packet of `payload_bytes` bytes from `seq` on; nothing where it
    /// must be dropped.
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

    /// The device goes on with the byte `seq`, without being told anything.
    pub fn is_next(&self, seq: SeqNumber) -> bool {
        self.next == Some(seq)
    }

    /// The device has dropped a packet: its state is not known.
    pub fn forget(&mut self) {
        self.next = None;
    }
}

/// The machine of one flow: its dynamic state.
#[derive(Clone, Copy, Debug)]
pub struct Tx<P> {
    framing: Framing,
    progress: Option<P>,
    key: u16,
    /// What came last was as it should be.
    sound: bool,
}

impl<P: Copy> Tx<P> {
    /// A message starts at `start`, after `number` others under `key`, which is one of the flow's
    /// (`l5o_create`).
    pub fn new(start: SeqNumber, number: u64, key: u16) -> Tx<P> {
        Tx { framing: Framing::at(start, number), progress: None, key, sound: true }
    }

    /// The byte that it goes on with.
    pub fn expected(&self) -> SeqNumber {
        self.framing.position()
    }

    /// Where the stream stands.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Gets in front of the byte `seq`, which is in `message` or right behind it. False where the
    /// message does not reach so far, is none, or has another key; nothing can be sent then.
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

    /// The same where the message's bytes up to `seq`, and no others, lie in `pieces`; what
    /// `message` has of them is not looked at.
    pub fn recover_pieces<'p, L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        message: &MessageState<'_>,
        seq: SeqNumber,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        if message.key != self.key {
            self.sound = false;
            return false;
        }
        *self = Tx::new(message.start, message.number, message.key);
        let mut replayed = [0; REPLAY_BYTES];
        for bytes in pieces.flat_map(|piece| piece.chunks(REPLAY_BYTES)) {
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

    /// Seals the payload of a packet that lies in several `pieces` into `out`, which is as long as
    /// all of them. What is in `out` of a packet that is dropped may be in the clear.
    pub fn transmit_pieces<'p, L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        pieces: impl Iterator<Item = &'p [u8]>,
        out: &mut [u8],
    ) -> Verdict {
        let mut done = 0;
        self.sound = self.sound && (out.is_empty() || seq == self.framing.position());
        for piece in pieces {
            let place = out.get_mut(done..done + piece.len());
            self.sound = self.sound && place.is_some_and(|out| self.walk_to(l5p, piece, out));
            done += piece.len();
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
                Step::Alien => return false,
            }
        }
        true
    }

    /// Seals bytes that are next; false where there is no header where one must be.
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
                Step::Alien => return false,
            }
        }
        true
    }
}

impl Tx<tls::Progress> {
    /// What stands for all content of the record that was sealed last, as far as it was: other
    /// content of the same length has another value, but for one chance in 2^117, as nobody without
    /// the key can bring about (the tag that a record of this content would have). It is never to
    /// leave the device. Nothing where no record has begun.
    pub fn fingerprint(&self, tls: &Tls) -> Option<[u8; TAG_BYTES]> {
        self.progress.as_ref().map(|at| tls.fingerprint(at))
    }
}

/// Driver and device in one: makes of a packet what the wire gets.
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
