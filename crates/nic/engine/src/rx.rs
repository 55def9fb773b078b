//! Receive machine: processes in-order packets, and resynchronises on its own after a gap.
//!
//! ```text
//!             next: decrypt                      in line: follow headers
//!           ┌────────────┐                       ┌────────────┐
//!           ▼            │ (a) beyond the        ▼            │
//!        OFFLOADING ─────┴── next header ──► SEARCHING ──(b)──► TRACKING
//!           ▲                                    ▲  a candidate:  │ │
//!           │                                    │  ask software  │ │
//!           │                                    └──(d1) no ──────┘ │
//!           └───────────(c, d2) yes: at the next header ────────────┘
//! ```
//! (Figure 7 of the paper.) With [`Rx::presume`] a candidate is decrypted immediately if its
//! number can be inferred: recent messages had one length, and the distance from the last known
//! message start is a multiple of it. A tag or software's response then proves the number. Until
//! then the machine is PRESUMING, and software restores the ciphertext of wrongly decrypted bytes.
//!
//! Packets are forwarded in order and without delay. None is queued, dropped or changed, except
//! for the payload that [`Received::pass`] describes. Plaintext is written to a separate buffer,
//! so a packet in which a message fails can go up as it was received.
//!
//! # Guarantees to software
//! A message is authentic if every byte of it is in packets of one [`Pass`]: within a pass the
//! machine processes no byte twice, and the packet that ends a message carries the pass only if
//! the message was verified. Bytes of two passes prove nothing, because the rest of the message
//! may have been different in each of them. Otherwise an attacker whose packets TCP rejects and
//! the device accepts could make the device verify a message other than the one that TCP delivers.
//!
//! The device must also have seen the message start at its position, with its number. Otherwise
//! the attacker could make the device treat it as the middle of another message, which is verified
//! later or never. Each result describes one message of its pass ([`Worked`]). If that message
//! agrees with software's, all following messages of the pass do, as long as every byte of them
//! belongs to it. This does not depend on whether the number was presumed.
//!
//! The attacker can make the device decrypt the following bytes wrongly, and thereby end the
//! connection, as can any sender whose packets TCP accepts. It cannot change the data that is
//! read.

use unlade_net::SeqNumber;

use crate::framing::{Framing, SegmentPosition, Step, distance};
use crate::l5p::L5p;
use crate::placement::Placer;
use crate::resync::{Extent, Pass, Request, Response, Worked};
use crate::rule::{Rule, holds};
use crate::search::Carry;
use crate::stats::Stats;

/// Maximum number of candidates tried per packet: all of them may be false.
pub const CANDIDATES_MAX: usize = 16;
/// Payload bytes, of any packets of the flow, that the first candidate waits for its response.
pub const ANSWER_BYTES_MIN: u32 = 1 << 20;
/// Maximum number of times that the wait is doubled while no response comes. Software answers when
/// TCP has delivered up to the candidate, which is at most a window of 1 GiB later.
const DOUBLINGS_MAX: u8 = 10;
/// Consecutive verified messages of one length before a number is presumed.
pub const REPEATS_MIN: u8 = 2;
/// Maximum distance of a presumed candidate from the last known message start, bytes.
pub const PRESUMED_BYTES_MAX: u32 = 1 << 20;

/// State of the receive machine of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Synchronised: in-order packets are decrypted.
    Offloading,
    /// Message boundaries are unknown.
    Searching,
    /// A candidate is tracked until software responds.
    Tracking,
    /// As `Tracking`, and in-order packets are decrypted with an unproved number.
    Presuming,
}

/// Result for a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Set if the payload was processed and is in `out`; the messages that end in it are
    /// authentic. Otherwise the packet goes up as it was received. Packets that differ here must
    /// not be merged.
    pub pass: Option<Pass>,
    /// With a pass: number of leading payload bytes that are unchanged, the rest of a message of
    /// which a part was lost. They must not be merged with the bytes after them.
    pub from: u32,
    /// With a pass: the message of the first processed byte.
    pub message: Option<Extent>,
    /// With a pass: offset in the payload of the first message that starts in it. With it software
    /// checks that the device and itself see the same message boundaries.
    pub boundary: Option<u32>,
    /// A resynchronisation request to software.
    pub request: Option<Request>,
}

impl Received {
    /// Metadata of the bytes from [`Received::from`] on.
    pub fn worked(&self) -> Option<Worked> {
        Some(Worked { pass: self.pass?, message: self.message? })
    }
}

/// The common length of recent messages.
#[derive(Clone, Copy, Debug)]
struct RepeatedLength {
    bytes: u32,
    /// Number of consecutive messages of this length.
    repeats: u8,
}

impl RepeatedLength {
    const NONE: RepeatedLength = RepeatedLength { bytes: 0, repeats: 0 };

    /// Records a verified message.
    fn note(&mut self, bytes: u32) {
        if self.bytes != bytes {
            *self = RepeatedLength { bytes, repeats: 0 };
        }
        self.repeats = self.repeats.saturating_add(1);
    }
}

/// The dynamic state of the machine of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Rx<P> {
    framing: Framing,
    /// Progress in the current message, if it is being processed.
    progress: Option<P>,
    carry: Carry,
    state: State,
    doublings: u8,
    key: u16,
    generation: u32,
    candidate: SeqNumber,
    waited_bytes: u32,
    /// The end of the furthest packet.
    frontier: SeqNumber,
    presumes: bool,
    repeated_length: RepeatedLength,
    /// The last known start of a message before a search.
    anchor: SeqNumber,
    /// Number of the message at `anchor`; while presuming, of the candidate.
    number: u64,
}

impl<P: Copy> Rx<P> {
    /// Creates a machine for a stream in which message `number` starts at `start` (`l5o_create`).
    pub fn new(start: SeqNumber, number: u64) -> Rx<P> {
        Rx {
            framing: Framing::at(start, number),
            progress: None,
            carry: Carry::EMPTY,
            state: State::Offloading,
            doublings: 0,
            key: 0,
            generation: 0,
            candidate: start,
            waited_bytes: 0,
            frontier: start,
            presumes: false,
            repeated_length: RepeatedLength::NONE,
            anchor: start,
            number,
        }
    }

    /// Enables decryption of candidates whose number can be inferred. The machine of the paper
    /// waits for a response.
    pub fn presume(&mut self, presumes: bool) {
        self.presumes = presumes;
    }

    /// Restarts with other static state, numbered `key` by software, at `start` with message
    /// `number`, independent of the current position. Outstanding requests become void.
    pub fn restart(&mut self, start: SeqNumber, number: u64, key: u16) {
        let generation = self.generation.wrapping_add(1);
        let (frontier, presumes) = (self.frontier, self.presumes);
        *self = Rx { key, generation, frontier, presumes, ..Rx::new(start, number) };
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The next byte that is processed, while the machine is synchronised.
    pub fn expected(&self) -> SeqNumber {
        self.framing.position()
    }

    /// Processes a packet whose checksum is correct. Bytes of `out` beyond the payload's length
    /// are undefined, and so are all of them without [`Received::pass`]. Nothing is placed.
    ///
    /// # Panics
    /// `out` is shorter than `payload`, and the protocol [rewrites](L5p::REWRITES) it.
    pub fn receive<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &[u8],
        out: &mut [u8],
    ) -> Received {
        self.receive_placing(l5p, stats, (seq, payload), out, &mut Placer::none())
    }

    /// As [`Rx::receive`], with data placement: afterwards `placer` holds the ranges of this
    /// packet that were placed, even if a message of the packet failed.
    ///
    /// # Panics
    /// As [`Rx::receive`].
    pub fn receive_placing<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        placer.packet(self.is_fresh(seq));
        let placed_bytes = placer.placed_bytes();
        if payload.is_empty() {
            return Received::default();
        }
        let out = if L::REWRITES { &mut out[..payload.len()] } else { &mut [] };
        let end = seq + payload.len() as u32;
        if self.frontier.before(end) {
            self.frontier = end;
        } else if payload.len() == 1 && holds(Rule::Keepalive) {
            // It may be a keepalive: an arbitrary byte before the next byte that TCP expects.
            stats.rx_past_packets += 1;
            return Received::default();
        }
        let received = self.take(l5p, stats, (seq, payload), out, placer);
        stats.rx_placed_bytes += placer.placed_bytes() - placed_bytes;
        received
    }

    /// Processes bytes of the stream.
    pub(crate) fn take<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        match self.state {
            State::Offloading | State::Presuming => {
                self.offload(l5p, stats, (seq, payload), out, placer)
            }
            State::Searching => self.search(l5p, stats, (seq, payload, 0), out, placer),
            State::Tracking => self.track(l5p, stats, (seq, payload), out, placer),
        }
    }

    /// The position in the stream.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Moves the position forward by `bytes`, because the numbers of all further bytes change.
    pub(crate) fn shift(&mut self, bytes: u32) {
        self.framing.shift(bytes);
    }

    /// Handles a gap of unknown length.
    pub(crate) fn interrupt(&mut self, stats: &mut Stats) {
        match self.state {
            State::Offloading | State::Presuming => stats.rx_searches += 1,
            State::Tracking => stats.rx_tls_resync_req_skip += 1,
            State::Searching => (),
        }
        self.progress = None;
        self.carry = Carry::EMPTY;
        self.state = State::Searching;
    }

    /// Returns true if the device has seen no byte at or after `seq`.
    pub(crate) fn is_fresh(&self, seq: SeqNumber) -> bool {
        !seq.before(self.frontier)
    }

    /// Processes a response; returns true if it answers the outstanding request.
    pub fn respond(&mut self, stats: &mut Stats, response: &Response) -> bool {
        let asked = response.request == self.request();
        let open = matches!(self.state, State::Tracking | State::Presuming);
        if !open || (holds(Rule::Generation) && !asked) {
            stats.rx_tls_resync_res_skip += 1;
            return false;
        }
        stats.rx_tls_resync_res_ok += 1;
        stats.rx_tls_resync_req_end += 1;
        self.doublings = 0;
        if self.state == State::Presuming {
            if response.number == Some(self.number) {
                self.prove(stats);
                return true;
            }
            self.give_up(stats);
        }
        match response.number {
            Some(number) => self.resume(number),
            None => {
                stats.rx_resync_denied += 1;
                self.state = State::Searching;
                self.carry = Carry::EMPTY;
            }
        }
        true
    }

    /// Synchronises on the candidate, message `number`, from the next header on.
    fn resume(&mut self, number: u64) {
        self.framing.count(number);
        if self.framing.in_body() {
            self.framing.skip_to_header();
        }
        self.state = State::Offloading;
    }

    /// Leaves the presuming state: the candidate's number was correct.
    fn prove(&mut self, stats: &mut Stats) {
        stats.rx_presumed_right += 1;
        self.state = State::Offloading;
    }

    /// Returns to tracking: the candidate's number is unknown, and messages are counted from it.
    fn give_up(&mut self, stats: &mut Stats) {
        stats.rx_presumed_wrong += 1;
        self.framing.count(self.number.wrapping_neg());
        self.progress = None;
        self.repeated_length = RepeatedLength::NONE;
        self.state = State::Tracking;
    }

    fn offload<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        let place = self.framing.locate(seq, payload.len());
        match place {
            SegmentPosition::Past => stats.rx_past_packets += 1,
            SegmentPosition::Within => stats.rx_ahead_packets += 1,
            SegmentPosition::Overlap(_) => stats.rx_overlap_packets += 1,
            SegmentPosition::Header(_) => stats.rx_ahead_header_packets += 1,
            SegmentPosition::Next | SegmentPosition::Lost => (),
        }
        if let SegmentPosition::Header(_) = place {
            self.framing.skip_to_header();
            self.progress = None;
        }
        let (from, is_shown) = match place {
            SegmentPosition::Past | SegmentPosition::Within => return Received::default(),
            SegmentPosition::Lost => return self.lose(l5p, stats, (seq, payload, 0), out, placer),
            SegmentPosition::Next => (0, true),
            // A packet that starts with the next header has lost no needed byte. Bytes before the
            // header stay unchanged; only a rewriting protocol can report such a partial result.
            SegmentPosition::Header(before) => (before, before == 0 || L::REWRITES),
            // Bytes before the new ones cannot be restored, unless they belong to another message.
            SegmentPosition::Overlap(before) => (before, L::REWRITES && self.framing.is_at_start()),
        };
        let shown = is_shown.then_some(&mut *out);
        match self.walk(l5p, stats, (payload, from), shown, placer) {
            WalkResult::Malformed { done } => {
                // A malformed header in an expected position: all earlier inferences are invalid.
                self.repeated_length = RepeatedLength::NONE;
                self.lose(l5p, stats, (seq, payload, done), out, placer)
            }
            WalkResult::Done(walked) if !is_shown => {
                if !walked.authentic && self.state == State::Presuming {
                    self.give_up(stats);
                }
                Received::default()
            }
            WalkResult::Done(walked) => self.decrypted(stats, payload.len(), from, walked),
        }
    }

    /// The result for a packet of which all bytes from `from` on were processed.
    fn decrypted(
        &mut self,
        stats: &mut Stats,
        payload_bytes: usize,
        from: usize,
        walked: Walked,
    ) -> Received {
        if !walked.authentic && holds(Rule::Failing) {
            match self.state {
                State::Presuming => self.give_up(stats),
                _ => stats.rx_tls_err += 1,
            }
            return Received::default();
        }
        stats.rx_tls_decrypted_packets += 1;
        stats.rx_tls_decrypted_bytes += (payload_bytes - from) as u64;
        let pass = Pass { key: self.key, generation: self.generation };
        let (boundary, message) = (walked.boundary, Some(walked.message));
        Received { pass: Some(pass), from: from as u32, message, boundary, request: None }
    }

    /// Processes the next bytes: `payload` after its first `done` bytes. The output is written to
    /// `out` if it is given.
    fn walk<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (payload, mut done): (&[u8], usize),
        out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> WalkResult {
        let mut out = out.filter(|_| L::REWRITES);
        let mut authentic = true;
        let mut boundary = None;
        let mut first = None;
        while done < payload.len() {
            if self.framing.is_at_start() {
                boundary = boundary.or(Some(done as u32));
            }
            let rest = &payload[done..];
            let mut out = out.as_deref_mut().map(|out| &mut out[done..]);
            match self.framing.step(l5p, rest) {
                Step::Header { bytes, complete } => {
                    if let Some(out) = &mut out {
                        out[..bytes].copy_from_slice(&rest[..bytes]);
                    }
                    if complete {
                        self.progress = Some(l5p.begin(&self.framing.message()));
                    }
                    done += bytes;
                }
                Step::Body { bytes, offset, last } => {
                    let message = self.framing.message();
                    first = first.or(Some(self.framing.extent()));
                    let out = out.map(|out| &mut out[..bytes]);
                    placer.turn_to(done);
                    authentic &= self.progress.as_mut().is_some_and(|at| {
                        l5p.receive(&message, at, offset, &rest[..bytes], out, placer)
                    });
                    if last {
                        let at = self.progress.take();
                        let verified = at.is_some_and(|at| l5p.verify(&message, &at));
                        self.ended(stats, message.message_bytes, verified);
                        authentic &= verified;
                    }
                    self.framing.pass(bytes);
                    done += bytes;
                }
                Step::Malformed => return WalkResult::Malformed { done },
            }
        }
        // Only header bytes were processed: the extent is that of the header's message.
        let message = first.unwrap_or(self.framing.extent());
        WalkResult::Done(Walked { authentic, boundary, message })
    }

    /// Records the end of a message.
    fn ended(&mut self, stats: &mut Stats, message_bytes: u32, verified: bool) {
        if verified {
            self.repeated_length.note(message_bytes);
            if self.state == State::Presuming {
                self.prove(stats);
            }
        }
    }

    /// Transition (a): message boundaries are unknown after `done` bytes of the payload.
    fn lose<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        packet: (SeqNumber, &[u8], usize),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        stats.rx_searches += 1;
        if self.framing.in_body() {
            self.framing.skip_to_header();
        }
        let Extent { start, number, .. } = self.framing.extent();
        (self.anchor, self.number) = (start, number);
        self.progress = None;
        self.carry = Carry::EMPTY;
        self.state = State::Searching;
        self.search(l5p, stats, packet, out, placer)
    }

    /// Transition (b): searches for a candidate after `done` bytes of the payload, and tracks it
    /// up to the end of the packet.
    fn search<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload, done): (SeqNumber, &[u8], usize),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        stats.rx_unsynchronised_bytes += (payload.len() - done) as u64;
        let searched = self.carry.join::<L>(seq + done as u32, &payload[done..]);
        let mut from = 0;
        for _ in 0..CANDIDATES_MAX {
            let Some(index) = searched.find(l5p, from) else { break };
            let candidate = searched.seq(index);
            let mut framing = Framing::at(candidate, 0);
            let (carried, behind) = searched.from(index);
            let follows = framing.follow(l5p, carried).and_then(|()| framing.follow(l5p, behind));
            if follows.is_err() {
                from = index + 1;
                continue;
            }
            let request = Some(self.ask(stats, candidate, framing));
            let Some(number) = self.presumption(l5p, candidate) else {
                return Received { request, ..Received::default() };
            };
            let found = (number, carried, payload.len() - behind.len());
            let received = self.take_presumed(l5p, stats, found, payload, out, placer);
            return Received { request, ..received };
        }
        self.carry.keep::<L>(&searched);
        Received::default()
    }

    /// The candidate's number, inferred from the common message length.
    fn presumption<L: L5p<Progress = P>>(&self, l5p: &L, candidate: SeqNumber) -> Option<u64> {
        let RepeatedLength { bytes, repeats } = self.repeated_length;
        if !self.presumes || !l5p.proves_number() || repeats < REPEATS_MIN {
            return None;
        }
        let gap = u32::try_from(distance(candidate, self.anchor)).ok()?;
        let fits = gap <= PRESUMED_BYTES_MAX && gap % bytes == 0;
        fits.then(|| self.number.wrapping_add(u64::from(gap / bytes)))
    }

    /// Decrypts from the candidate on, as message `number`. The first bytes of its header are
    /// `carried`; the next byte is `payload[from]`.
    fn take_presumed<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (number, carried, from): (u64, &[u8], usize),
        payload: &[u8],
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        stats.rx_presumed += 1;
        self.number = number;
        self.state = State::Presuming;
        let followed = self.framing;
        self.framing = Framing::at(self.candidate, number);
        // The carried bytes are only a part of a header, and were parsed before.
        let begun = self.framing.follow(l5p, carried).is_ok();
        match self.walk(l5p, stats, (payload, from), Some(out), placer) {
            WalkResult::Done(walked) if begun => self.decrypted(stats, payload.len(), from, walked),
            _ => {
                self.framing = followed;
                self.framing.count(number);
                self.give_up(stats);
                Received::default()
            }
        }
    }

    fn ask(&mut self, stats: &mut Stats, candidate: SeqNumber, framing: Framing) -> Request {
        stats.rx_tls_resync_req_start += 1;
        stats.rx_tls_resync_req_pkt += 1;
        self.framing = framing;
        self.candidate = candidate;
        self.generation = self.generation.wrapping_add(1);
        self.waited_bytes = 0;
        self.state = State::Tracking;
        let request = self.request();
        if !holds(Rule::Confirm) {
            self.resume(0);
        }
        request
    }

    /// The request for the current candidate.
    fn request(&self) -> Request {
        Request { tcpsn: self.candidate, key: self.key, generation: self.generation }
    }

    /// Tracks the candidate's messages until the response arrives.
    fn track<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        self.waited_bytes = self.waited_bytes.saturating_add(payload.len() as u32);
        let followed = match self.framing.locate(seq, payload.len()) {
            _ if self.waited_bytes > ANSWER_BYTES_MIN << self.doublings => {
                // TCP may never deliver up to the candidate, or the way there is long.
                stats.rx_resync_expired += 1;
                self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
                Err(0)
            }
            SegmentPosition::Past | SegmentPosition::Within => Ok(()),
            SegmentPosition::Next => self.framing.follow(l5p, payload),
            SegmentPosition::Overlap(before) => {
                let followed = self.framing.follow(l5p, &payload[before..]);
                followed.map_err(|done| before + done)
            }
            SegmentPosition::Header(before) => {
                self.framing.skip_to_header();
                let followed = self.framing.follow(l5p, &payload[before..]);
                followed.map_err(|done| before + done)
            }
            SegmentPosition::Lost => Err(0),
        };
        match followed {
            Ok(()) => {
                stats.rx_unsynchronised_bytes += payload.len() as u64;
                Received::default()
            }
            Err(done) => {
                stats.rx_tls_resync_req_skip += 1;
                self.carry = Carry::EMPTY;
                self.state = State::Searching;
                self.search(l5p, stats, (seq, payload, done), out, placer)
            }
        }
    }
}

/// Result of processing the next bytes.
enum WalkResult {
    /// All headers were well-formed.
    Done(Walked),
    /// A header after `done` bytes is malformed.
    Malformed { done: usize },
}

/// Properties of processed bytes.
struct Walked {
    /// Every message that ended in them is authentic.
    authentic: bool,
    /// Start of the first message that starts in them.
    boundary: Option<u32>,
    /// The message of the first byte.
    message: Extent,
}
