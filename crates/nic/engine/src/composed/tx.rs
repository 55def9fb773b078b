//! Packets to send of a flow with both protocols.
//!
//! Software writes PDUs with room for digests into records with room for tags. The content type of
//! a record is known at its end only. Therefore the inner machine keeps its state from the start
//! of each record, and restores it if the record held something else. Software keeps two rules,
//! and a packet that breaks one is dropped: a record with application data is not padded, and a
//! record with another type comes between PDUs, where no digest is due. The output for a byte
//! depends on the stream alone and never on packet boundaries, so a nonce is never used for two
//! plaintexts.

use unlade_net::SeqNumber;

use crate::composed::{RecordPart, Stats, step};
use crate::nvme::{self, Nvme};
use crate::rule::{Rule, holds};
use crate::tls::{self, APPLICATION_DATA, Tls};
use crate::tx::{self, MessageState, Messages, Shadow, Verdict};

/// Bytes that are replayed in one step.
const REPLAY_BYTES: usize = 2048;
/// TLS content types without application data: alerts and handshake messages.
const OTHER_TYPES: [u8; 2] = [21, 22];

/// Software's state of the application data of a record.
#[derive(Clone, Copy, Debug)]
pub struct InnerState<'m> {
    /// Position in the inner stream at which the data starts; the inner stream has its own
    /// numbers.
    pub start: SeqNumber,
    /// The PDU that contains `start` or starts there, with its bytes at least up to `start`.
    pub pdu: MessageState<'m>,
}

/// Software's messages of both protocols.
pub trait ComposedMessages: Messages {
    /// The application data of the record that starts at `record`, a record that
    /// [`Messages::find`] returns.
    fn inner(&self, record: SeqNumber) -> Option<InnerState<'_>>;
}

/// The dynamic state of the inner machine.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    tx: tx::Tx<nvme::Progress>,
    /// The state at the start of the record.
    before: tx::Tx<nvme::Progress>,
    /// The record contains no PDUs.
    is_other_type: bool,
}

/// The dynamic state of the outer machine.
#[derive(Clone, Copy, Debug)]
pub struct Outer {
    tx: tx::Tx<tls::Progress>,
    sound: bool,
}

/// The state machines of one flow under one key: two contexts.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    tls: Outer,
    nvme: Inner,
}

impl Tx {
    /// Creates machines for a stream in which record `number` under `key`, and a PDU with its
    /// application data, begin at `start`.
    pub fn new(start: SeqNumber, number: u64, key: u16) -> Tx {
        let inner = tx::Tx::new(SeqNumber(0), 0, 0);
        Tx {
            tls: Outer { tx: tx::Tx::new(start, number, key), sound: true },
            nvme: Inner { tx: inner, before: inner, is_other_type: false },
        }
    }

    /// The next byte that the machine processes.
    pub fn expected(&self) -> SeqNumber {
        self.tls.tx.expected()
    }

    /// Invalidates the state: nothing can be sent until [`Tx::recover`] succeeds.
    pub fn fail(&mut self) {
        self.tls.sound = false;
    }

    /// Restores the state before the byte `seq`, which is in `record` or directly behind it: first
    /// the inner machine up to the start of the record, then both machines up to the byte. Returns
    /// false if the given messages do not reach `seq`; nothing can be sent then.
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
        // Nothing is replayed before the record: this checks the record's key.
        let start = record.start;
        self.tls.sound = found && self.tls.tx.recover(tls, &mut stats.tls, record, start);
        self.nvme = Inner { tx, before: tx, is_other_type: false };
        stats.tls.tx_replayed_bytes += before.len() as u64;
        let mut replayed = [0; REPLAY_BYTES];
        for bytes in before.chunks(REPLAY_BYTES) {
            let replayed = &mut replayed[..bytes.len()];
            replayed.copy_from_slice(bytes);
            self.tls.sound = self.tls.sound && self.walk((tls, nvme), replayed);
        }
        self.tls.sound
    }

    /// Fills in the digests and seals the payload of a packet, in place.
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

    /// Processes the next bytes; returns false if they are malformed.
    fn walk(&mut self, (tls, nvme): (&Tls, &Nvme), bytes: &mut [u8]) -> bool {
        // Sealing does not change headers, so record boundaries are the same before and after it.
        let mut framing = self.tls.tx.framing();
        let mut done = 0;
        while done < bytes.len() {
            let stepped = step(tls, &mut framing, bytes, done);
            let Some((end, _, parts)) = stepped else { return false };
            done = end;
            for part in parts.into_iter().flatten() {
                if !self.nvme.take(nvme, part, bytes) {
                    return false;
                }
            }
        }
        self.tls.tx.walk(tls, bytes)
    }
}

impl Inner {
    fn take(&mut self, nvme: &Nvme, part: RecordPart, bytes: &mut [u8]) -> bool {
        match part {
            RecordPart::Record => {
                // A TLS 1.2 record has no type byte at its end.
                let was_other_type = std::mem::take(&mut self.is_other_type);
                self.before = self.tx;
                !was_other_type
            }
            RecordPart::Content { start, end } => {
                self.is_other_type =
                    self.is_other_type || !self.tx.walk(nvme, &mut bytes[start..end]);
                true
            }
            RecordPart::Type { at } if bytes[at] == APPLICATION_DATA => !self.is_other_type,
            RecordPart::Type { at } => {
                self.tx = self.before;
                self.is_other_type = false;
                OTHER_TYPES.contains(&bytes[at]) && self.tx.framing().is_at_start()
            }
        }
    }
}

/// Runs driver and device in one call: turns a packet into its form on the wire.
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
