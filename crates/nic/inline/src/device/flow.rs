//! One offloaded connection, shared by two threads: the L5P software, which owns the socket, and
//! the engine, which processes the kernel's segments.
//!
//! Software puts a record into [`TxSide`] before it writes the record to the socket, so the
//! engine has each record whose bytes it can meet. The engine notes in [`RxSide`] how it delivers
//! bytes before the kernel gets them, so the note is there when software has read them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use unlade_net::SeqNumber;
use unlade_nic_engine::Stats;
use unlade_nic_engine::resync::{Request, Response};
use unlade_nic_engine::rx::{Received, Rx};
use unlade_nic_engine::software::sent::{Extent, Full, Located, Sent};
use unlade_nic_engine::tls::{Progress, Tls};
use unlade_nic_engine::tx::{self, Shadow, Tx, Verdict};

use super::delivery_log::{DeliveryHistory, DeliveryLog};
use super::ended::Retention;
use super::tx_records::{Changed, Machine, MemoryRecords, SplitRecord, TxRecord};

/// Largest number of unacknowledged records of a flow.
pub const RECORDS_MAX: usize = 16 * 1024;
/// Largest number of keys of a flow with unacknowledged records.
pub const KEYS_MAX: usize = 8;

/// A connection under offload.
pub struct Flow {
    tx: Mutex<TxSide>,
    rx: Mutex<RxSide>,
    /// Used by the engine only: software need not wait while a segment is processed.
    machine: Mutex<RxMachine>,
    broken: Arc<Notify>,
    spent: AtomicBool,
}

impl Flow {
    /// Joins both directions.
    pub fn new(tx: TxSide, (rx, machine): (RxSide, RxMachine)) -> Flow {
        let broken = tx.broken.clone();
        let (tx, rx, machine) = (Mutex::new(tx), Mutex::new(rx), Mutex::new(machine));
        Flow { tx, rx, machine, broken, spent: AtomicBool::new(false) }
    }

    /// Notes that the kernel has nothing left to send or to receive on the connection. The owner
    /// of the socket has checked that ([`unlade_sys::sockopt::is_spent`]), and closes it.
    pub fn spend(&self) {
        self.spent.store(true, Ordering::Release);
    }

    /// Returns true after [`Flow::spend`].
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Acquire)
    }

    /// How long its name is to be kept after its end.
    pub(super) fn retention(&self) -> Retention {
        if self.is_spent() { Retention::Spent } else { Retention::Quiet }
    }

    /// Processes the payload of a segment that is about to be delivered; decrypted payload goes
    /// into `out`.
    pub fn receive(
        &self,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &[u8],
        out: &mut [u8],
    ) -> RxOutcome {
        let mut locked = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let RxMachine { tls, machine } = &mut *locked;
        let (restart, response) = self.rx().take_requests();
        if let Some(RxRestart { tls: next, start, key }) = restart {
            machine.restart(start, 0, key);
            *tls = next;
        }
        if let Some(response) = response {
            machine.respond(stats, &response);
        }
        let received = machine.receive(tls, stats, seq, payload, out);
        let outcome = self.rx().deliver(&received, seq, payload.len());
        if outcome == RxOutcome::Decrypted {
            let head = ..received.from as usize;
            out[head].copy_from_slice(&payload[head]);
        }
        outcome
    }

    /// Sets if the device presumes numbers ([`Rx::presume`]); the default is true.
    pub fn presume(&self, presumes: bool) {
        let mut locked = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        locked.machine.presume(presumes);
    }

    /// Waits until [`TxSide::is_broken`]. One task can wait.
    pub async fn broken(&self) {
        self.broken.notified().await;
    }

    /// The sending direction.
    pub fn tx(&self) -> MutexGuard<'_, TxSide> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiving direction.
    pub fn rx(&self) -> MutexGuard<'_, RxSide> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of a flow's keys for sending.
struct TxKey {
    key: u16,
    /// Its first record.
    start: SeqNumber,
    tls: Tls,
    shadow: Shadow,
    machine: Tx<Progress>,
}

/// The sending direction: records in the clear, which the engine seals.
pub struct TxSide {
    /// Sequence number of the stream's byte 0.
    origin: SeqNumber,
    /// Sequence number at which the offload began.
    start: SeqNumber,
    /// True while bytes from before the offload may be retransmitted.
    fresh: bool,
    sent: Sent<TxRecord>,
    keys: VecDeque<TxKey>,
    /// Records in several buffers may be before this.
    split_until: Option<SeqNumber>,
    is_broken: bool,
    broken: Arc<Notify>,
}

impl TxSide {
    /// Creates the sending direction. The stream's byte 0 is at `origin`. From byte `offset` on
    /// it consists of records to seal; `number` others were before them under their key.
    pub fn new(origin: SeqNumber, offset: u64, number: u64, tls: Tls) -> TxSide {
        let start = origin + offset as u32;
        let first = TxKey {
            key: 0,
            start,
            tls,
            shadow: Shadow::new(start),
            machine: Tx::new(start, number, 0),
        };
        let sent = Sent::new(start, number, RECORDS_MAX);
        TxSide {
            origin,
            start,
            fresh: true,
            sent,
            keys: VecDeque::from([first]),
            split_until: None,
            is_broken: false,
            broken: Arc::default(),
        }
    }

    /// Appends a record to the stream: it is about to be written to the socket.
    ///
    /// # Errors
    /// [`Full`]; the record must not be written yet.
    pub fn push(&mut self, record: Bytes) -> Result<(), Full> {
        self.sent.push(TxRecord::Memory(record))
    }

    /// As [`TxSide::push`], for a record in several buffers.
    ///
    /// # Errors
    /// As there.
    pub fn push_split(&mut self, record: SplitRecord) -> Result<(), Full> {
        self.sent.push(TxRecord::Split(Box::new(record)))?;
        self.split_until = Some(self.sent.next());
        Ok(())
    }

    /// Returns true if a file was changed before its bytes had arrived: nothing is sealed any
    /// more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The next record is the first under another key.
    ///
    /// # Errors
    /// [`Full`]: too many keys have records that are not acknowledged.
    pub fn change_key(&mut self, tls: Tls) -> Result<(), Full> {
        if self.keys.len() == KEYS_MAX {
            return Err(Full);
        }
        let (key, start) = self.sent.change_key();
        let (shadow, machine) = (Shadow::new(start), Tx::new(start, 0, key));
        self.keys.push_back(TxKey { key, start, tls, shadow, machine });
        Ok(())
    }

    /// The sequence number of an offset of the stream.
    pub fn seq(&self, offset: u64) -> SeqNumber {
        self.origin + offset as u32
    }

    /// Notes that the bytes before `offset` have arrived.
    pub fn acknowledge(&mut self, offset: u64) {
        let acknowledged = self.origin + offset as u32;
        self.fresh &= acknowledged.before(self.start);
        self.sent.acknowledge(acknowledged);
        self.split_until = self.split_until.filter(|until| acknowledged.before(*until));
        while self.keys.get(1).is_some_and(|next| !acknowledged.before(next.start)) {
            self.keys.pop_front();
        }
    }

    /// Returns true if one more record or key may be refused.
    pub fn is_crowded(&self) -> bool {
        self.sent.len() >= RECORDS_MAX / 2 || self.keys.len() >= KEYS_MAX / 2
    }

    /// Number of unacknowledged records.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Returns true if all records are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Seals the payload of a segment in place.
    pub fn send(&mut self, stats: &mut Stats, seq: SeqNumber, payload: &mut [u8]) -> Verdict {
        // Before the stream there are no bytes that may be sent unchanged.
        if self.is_broken || self.fresh && seq.before(self.origin) {
            stats.tx_tls_drop_no_sync_data += 1;
            return Verdict::Drop;
        }
        let mut done = 0;
        while done < payload.len() {
            let at = seq + done as u32;
            let rest = payload.len() - done;
            let under = match self.keys.len() {
                1 => Some((self.keys[0].key, rest)),
                _ => self.under_one_key(at, rest),
            };
            let found = under.and_then(|(key, bytes)| {
                Some((self.keys.iter().position(|one| one.key == key)?, bytes))
            });
            let Some((key, bytes)) = found else {
                stats.tx_tls_drop_no_sync_data += 1;
                return Verdict::Drop;
            };
            let piece = &mut payload[done..done + bytes];
            let sent = match self.split_until {
                None => self.send_whole(key, stats, at, piece),
                Some(_) => self.send_by_record(key, stats, at, piece),
            };
            if sent == Verdict::Drop {
                return Verdict::Drop;
            }
            done += bytes;
        }
        Verdict::Send
    }

    /// Seals bytes under one key, of records that are each in one buffer.
    fn send_whole(
        &mut self,
        key: usize,
        stats: &mut Stats,
        at: SeqNumber,
        piece: &mut [u8],
    ) -> Verdict {
        let TxKey { tls, shadow, machine, .. } = &mut self.keys[key];
        tx::send(tls, (shadow, machine), stats, &MemoryRecords(&self.sent), at, piece)
    }

    /// Seals bytes under one key, record by record.
    fn send_by_record(
        &mut self,
        key: usize,
        stats: &mut Stats,
        at: SeqNumber,
        piece: &mut [u8],
    ) -> Verdict {
        let mut done = 0;
        while done < piece.len() {
            let seq = at + done as u32;
            let rest = piece.len() - done;
            let (bytes, split) = match self.sent.locate(seq) {
                Located::Message(kept) => {
                    let left = kept.held.bytes() - seq.since(kept.start) as usize;
                    (left.min(rest), matches!(kept.held, TxRecord::Split(_)))
                }
                Located::Before { until } => (rest.min(until.since(seq).max(1) as usize), false),
                Located::Unknown => {
                    stats.tx_tls_drop_no_sync_data += 1;
                    return Verdict::Drop;
                }
            };
            let piece = &mut piece[done..done + bytes];
            let sent = match split {
                false => self.send_whole(key, stats, seq, piece),
                true => self.send_split(key, stats, seq, piece),
            };
            if sent == Verdict::Drop {
                return Verdict::Drop;
            }
            done += bytes;
        }
        Verdict::Send
    }

    /// Seals bytes of one record that is in several buffers.
    fn send_split(
        &mut self,
        key: usize,
        stats: &mut Stats,
        seq: SeqNumber,
        piece: &mut [u8],
    ) -> Verdict {
        let Located::Message(kept) = self.sent.locate(seq) else { return Verdict::Drop };
        let TxRecord::Split(record) = kept.held else { return Verdict::Drop };
        let TxKey { tls, shadow, machine, .. } = &mut self.keys[key];
        match record.send(kept, Machine { tls, shadow, tx: machine }, stats, seq, piece) {
            Ok(verdict) => verdict,
            Err(Changed) => {
                stats.tx_tls_err += 1;
                self.is_broken = true;
                self.broken.notify_one();
                Verdict::Drop
            }
        }
    }

    fn under_one_key(&self, seq: SeqNumber, bytes: usize) -> Option<(u16, usize)> {
        // Bytes from before the offload need no key, and end where it begins.
        if let Located::Before { until } = self.sent.locate(seq) {
            let before = until.since(seq).max(1) as usize;
            return Some((self.keys.front()?.key, before.min(bytes)));
        }
        self.sent.under_one_key(seq, bytes)
    }
}

/// A request to the device: go on with another key.
struct RxRestart {
    tls: Tls,
    start: SeqNumber,
    key: u16,
}

/// The result for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxOutcome {
    /// It goes to the kernel as it came.
    Raw,
    /// Its payload was decrypted.
    Decrypted,
    /// It must not be delivered: its delivery cannot be recorded.
    Drop,
}

/// The engine's part of the receiving direction.
pub struct RxMachine {
    tls: Tls,
    machine: Rx<Progress>,
}

/// The receiving direction, decrypted by the engine if it can: the notes of software and engine.
pub struct RxSide {
    origin: SeqNumber,
    deliveries: DeliveryLog,
    request: Option<Request>,
    response: Option<Response>,
    restart: Option<RxRestart>,
    /// True if nothing is decrypted any more.
    stopped: bool,
}

/// State of the received stream at the start of its offload, from software.
pub struct Receiving {
    /// The key of its records.
    pub tls: Tls,
    /// Offset in the stream at which a record starts.
    pub offset: u64,
    /// Number of records before it under the key.
    pub number: u64,
    /// Number of bytes that software has read: up to the record's start, or more.
    pub read: u64,
}

impl RxSide {
    /// Creates the receiving direction. The stream's byte 0 is at `origin`; bytes before
    /// `frontier` may have been delivered.
    pub fn new(
        origin: SeqNumber,
        receiving: Receiving,
        frontier: SeqNumber,
    ) -> (RxSide, RxMachine) {
        let Receiving { tls, offset, number, read } = receiving;
        let start = origin + offset as u32;
        let ahead = frontier.since(origin + read as u32).max(0);
        let mut machine = Rx::new(start, number);
        machine.presume(true);
        let machine = RxMachine { tls, machine };
        let side = RxSide {
            origin,
            deliveries: DeliveryLog::new(read, read + ahead as u64),
            request: None,
            response: None,
            restart: None,
            stopped: false,
        };
        (side, machine)
    }

    /// Stops decryption: from now on bytes are delivered as they come.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The sequence number of an offset of the stream.
    pub fn seq(&self, offset: u64) -> SeqNumber {
        self.origin + offset as u32
    }

    /// The offset of a byte that is at most half of the number space from the read position of
    /// software; 0 for a byte from before the stream.
    fn offset(&self, seq: SeqNumber) -> u64 {
        let near = self.deliveries.position();
        near.saturating_add_signed(i64::from(seq.since(self.seq(near))))
    }

    /// Notes that the kernel has acknowledged the bytes before `seq`.
    pub fn acknowledge(&mut self, seq: SeqNumber) {
        let offset = self.offset(seq);
        self.deliveries.acknowledge(offset);
    }

    /// Takes the requests of software to the machine.
    fn take_requests(&mut self) -> (Option<RxRestart>, Option<Response>) {
        (self.restart.take(), self.response.take())
    }

    /// Notes that the machine has processed a segment, which is delivered then: as it came, if
    /// software has stopped it in the meantime.
    fn deliver(&mut self, received: &Received, seq: SeqNumber, bytes: usize) -> RxOutcome {
        self.request = received.request.or(self.request);
        let way = if self.stopped { None } else { received.worked() };
        let from = if way.is_some() { received.from as usize } else { bytes };
        let [start, middle, end] = [0, from, bytes].map(|at| self.offset(seq + at as u32));
        let head = self.deliveries.deliver(start, middle, None);
        match (head.and_then(|()| self.deliveries.deliver(middle, end, way)), way) {
            (Err(_), _) => RxOutcome::Drop,
            (Ok(()), Some(_)) => RxOutcome::Decrypted,
            (Ok(()), None) => RxOutcome::Raw,
        }
    }

    /// Notes that software has read `bytes` more. Writes to `ranges` the end of each run of bytes
    /// that came in one way, and that way.
    pub fn read(&mut self, bytes: usize, ranges: &mut Vec<(u64, DeliveryHistory)>) {
        let end = self.deliveries.position() + bytes as u64;
        while self.deliveries.position() < end {
            let (until, history) = self.deliveries.take(end);
            match ranges.last_mut() {
                Some(last) if last.1 == history && history.is_certain() => last.0 = until,
                _ => ranges.push((until, history)),
            }
        }
    }

    /// Takes the pending question of the device.
    pub fn request(&mut self) -> Option<Request> {
        self.request.take()
    }

    /// Passes the answer of software.
    pub fn respond(&mut self, response: Response) {
        self.response = Some(response);
    }

    /// Announces that records have another key from `start` on.
    pub fn change_key(&mut self, tls: Tls, start: SeqNumber, key: u16) {
        self.restart = Some(RxRestart { tls, start, key });
        self.response = None;
    }

    /// Returns true if all bytes that were delivered and not read came as they were.
    pub fn is_plain(&self) -> bool {
        self.deliveries.is_plain()
    }

    /// Bytes that were delivered in different ways, so far.
    pub fn ambiguous_bytes(&self) -> u64 {
        self.deliveries.ambiguous_bytes()
    }
}
