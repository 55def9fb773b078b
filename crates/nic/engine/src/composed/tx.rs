//! Packets to send of a flow with both protocols.
//!
//! Software writes PDUs with room for digests into records with room for tags. What a record holds
//! is known at its end; so the inner machine remembers where it was at the start of a record, and
//! goes back there if the record held something else. For this software keeps two rules, and a
//! packet that breaks one is dropped: a record with application data is not padded, and one with
//! something else comes between PDUs, where no digest is due. What is done to an byte depends on
//! the stream alone, never on packets: under one nonce there is one text.

use unlade_net::SeqNumber;

use crate::composed::{Piece, Stats, step};
use crate::nvme::{self, Nvme};
use crate::rule::{Rule, holds};
use crate::tls::{self, APPLICATION_DATA, Tls};
use crate::tx::{self, MessageState, Messages, Shadow, Verdict};

/// Bytes that are replayed at once.
const REPLAY_BYTES: usize = 2048;
/// Content types of TLS that hold no application data: alerts and handshake messages.
const OTHER_TYPES: [u8; 2] = [21, 22];

/// What software knows of the application data of a record.
#[derive(Clone, Copy, Debug)]
pub struct InnerState<'m> {
    /// Where in the inner stream it starts; that stream is counted by itself.
    pub start: SeqNumber,
    /// The PDU that this is in, or that starts there, at least up to there.
    pub pdu: MessageState<'m>,
}

/// Software's messages of both protocols.
pub trait ComposedMessages: Messages {
    /// What is in the record that starts at `record`, of those that [`Messages::find`] tells of.
    fn inner(&self, record: SeqNumber) -> Option<InnerState<'_>>;
}

/// The inner machine: its dynamic state.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    tx: tx::Tx<nvme::Progress>,
    /// How it was at the start of the record.
    before: tx::Tx<nvme::Progress>,
    /// The record holds what are no PDUs.
    alien: bool,
}

/// The outer machine: its dynamic state.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    tx: tx::Tx<tls::Progress>,
    sound: bool,
}

/// The machines of one flow under one key: two contexts.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    tls: Outer,
    nvme: Inner,
}

impl Tx {
    /// A record starts at `start`, after `number` others under `key`, and a PDU with its
    /// application data.
    pub fn new(start: SeqNumber, number: u64, key: u16) -> Tx {
        let inner = tx::Tx::new(SeqNumber(0), 0, 0);
        Tx {
            tls: Outer { tx: tx::Tx::new(start, number, key), sound: true },
            nvme: Inner { tx: inner, before: inner, alien: false },
        }
    }

    /// The byte that it goes on with.
    pub fn expected(&self) -> SeqNumber {
        self.tls.tx.expected()
    }

    /// Nothing can be sent until [`Tx::recover`] has succeeded.
    pub fn fail(&mut self) {
        self.tls.sound = false;
    }

    /// Gets in front of the byte `seq`, which is in `record` or right behind it: first the inner
    /// machine in front of the record, then both in front of the byte. False where what is known
    /// does not reach so far; nothing can be sent then.
    pub fn recover(
        &mut self,
        (tls, nvme): (&Tls, &Nvme),
        stats: &mut Stats,
        (record, inner): (&MessageState<'_>, &InnerState<'_>),
        seq: SeqNumber,
    ) -> bool {
        let before = usize::try_from(seq.since(record.start)).ok();
        let Some(before) = before.and_then(|bytes| record.bytes.get(..bytes)) else {
            self.tls.sound = false;
            return false;
        };
        let mut tx = tx::Tx::new(inner.pdu.start, inner.pdu.number, 0);
        let pdu = MessageState { key: 0, ..inner.pdu };
        let found = match holds(Rule::InnerReplay) {
            true => tx.recover(nvme, &mut stats.nvme, &pdu, inner.start),
            false => true,
        };
        // In front of the record nothing is replayed: this says whether it is of our key.
        let start = record.start;
        self.tls.sound = found && self.tls.tx.recover(tls, &mut stats.tls, record, start);
        self.nvme = Inner { tx, before: tx, alien: false };
        stats.tls.tx_replayed_bytes += before.len() as u64;
        let mut piece = [0; REPLAY_BYTES];
        for bytes in before.chunks(REPLAY_BYTES) {
            let piece = &mut piece[..bytes.len()];
            piece.copy_from_slice(bytes);
            self.tls.sound = self.tls.sound && self.walk((tls, nvme), piece);
        }
        self.tls.sound
    }

    /// Fills in digests and seals the payload of a packet, in place.
    pub fn transmit(
        &mut self,
        protocols: (&Tls, &Nvme),
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &mut [u8],
    ) -> Verdict {
        if payload.is_empty() {
            return Verdict::Send;
        }
        self.tls.sound = self.tls.sound && seq == self.expected() && self.walk(protocols, payload);
        if !self.tls.sound {
            stats.tls.tx_tls_err += 1;
            return Verdict::Drop;
        }
        stats.tls.tx_tls_encrypted_packets += 1;
        stats.tls.tx_tls_encrypted_bytes += payload.len() as u64;
        Verdict::Send
    }

    /// Works on bytes that are next; false where they are not what they must be.
    fn walk(&mut self, (tls, nvme): (&Tls, &Nvme), bytes: &mut [u8]) -> bool {
        // Where records are is as plain before sealing as after.
        let mut framing = self.tls.tx.framing();
        let mut done = 0;
        while done < bytes.len() {
            let stepped = step(tls, &mut framing, bytes, done);
            let Some((end, _, pieces)) = stepped else { return false };
            done = end;
            for piece in pieces.into_iter().flatten() {
                if !self.nvme.take(nvme, piece, bytes) {
                    return false;
                }
            }
        }
        self.tls.tx.walk(tls, bytes)
    }
}

impl Inner {
    fn take(&mut self, nvme: &Nvme, piece: Piece, bytes: &mut [u8]) -> bool {
        match piece {
            Piece::Record => {
                // A record of TLS 1.2 has no byte at its end that would say so.
                let was_alien = std::mem::take(&mut self.alien);
                self.before = self.tx;
                !was_alien
            }
            Piece::Content { start, end } => {
                self.alien = self.alien || !self.tx.walk(nvme, &mut bytes[start..end]);
                true
            }
            Piece::Type { at } if bytes[at] == APPLICATION_DATA => !self.alien,
            Piece::Type { at } => {
                self.tx = self.before;
                self.alien = false;
                OTHER_TYPES.contains(&bytes[at]) && self.tx.framing().is_at_start()
            }
        }
    }
}

/// Driver and device in one: makes of a packet what the wire gets.
pub fn send(
    protocols: (&Tls, &Nvme),
    (shadow, tx): (&mut Shadow, &mut Tx),
    stats: &mut Stats,
    messages: &impl ComposedMessages,
    seq: SeqNumber,
    payload: &mut [u8],
) -> Verdict {
    let Some(prepared) = shadow.prepare(messages, &mut stats.tls, seq, payload.len()) else {
        return Verdict::Drop;
    };
    let first = seq + prepared.clear_bytes as u32;
    if let Some(record) = &prepared.recovery {
        let Some(inner) = messages.inner(record.start) else {
            shadow.forget();
            return Verdict::Drop;
        };
        tx.recover(protocols, stats, (record, &inner), first);
    }
    let verdict = tx.transmit(protocols, stats, first, &mut payload[prepared.clear_bytes..]);
    if verdict == Verdict::Drop {
        shadow.forget();
    }
    verdict
}
