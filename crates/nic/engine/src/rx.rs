//! Received packets: works on those that come in order, and gets back into order by itself.
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
//! (Figure 7 of the paper.) With [`Rx::presume`] a candidate is decrypted at once where its number
//! can be presumed: messages had one length, and it is a multiple of that behind the last start
//! that was known. A tag proves the number then, or software answers; until that the machine is
//! PRESUMING, and what it has decrypted wrongly software makes ciphertext again.
//!
//! Packets are passed on as they come: none is kept, put elsewhere,
//! dropped, or changed but for the payload that [`Received::pass`] tells of. What is decrypted is
//! written apart, so that a packet in which a message fails can go up as it came.
//!
//! # What software may conclude
//! A message of which every byte is in packets of one [`Pass`] is authentic: within a pass the
//! machine takes no byte twice, and the packet with the end of a message has the pass only if the
//! message was verified. Bytes of two passes prove nothing, since in each one the rest may have
//! been another: who can send packets that TCP refuses and the device takes in would otherwise
//! have it verify a message other than the one that TCP has.
//!
//! And the device must have seen the message start where it does, with its number: such a sender
//! could else have it take a message for the middle of another one, which is verified later or never.
//! Each result tells a message of its pass ([`Worked`]). Where it is that of software, all that follow
//! in the pass are, as long as every byte of them is of it. For that it does not matter whether the
//! number was presumed.
//!
//! Such a sender can make the device decrypt wrongly what comes next, and so end the connection, as
//! anybody can whose packets TCP does take. It cannot change what is read.

use unlade_net::SeqNumber;

use crate::framing::{Framing, Place, Step, distance};
use crate::l5p::L5p;
use crate::placement::Placer;
use crate::resync::{Extent, Pass, Request, Response, Worked};
use crate::rule::{Rule, holds};
use crate::search::Carry;
use crate::stats::Stats;

/// Most candidates that are followed within one packet: all of them may be false.
pub const CANDIDATES_MAX: usize = 16;
/// Bytes of payload, of any packets of the flow, that a first candidate waits for its answer.
pub const ANSWER_BYTES_MIN: u32 = 1 << 20;
/// Times that the wait is doubled while no answer comes: software answers when TCP has delivered
/// so far, which is at most a window of 1 GiB later.
const DOUBLINGS_MAX: u8 = 10;
/// Messages in a row that had one length and were verified, before a number is presumed.
pub const REPEATS_MIN: u8 = 2;
/// Furthest that a candidate whose number is presumed is behind the last start that was known.
pub const PRESUMED_BYTES_MAX: u32 = 1 << 20;

/// What the machine does with the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Packets that are next are decrypted.
    Offloading,
    /// Where messages start is not known.
    Searching,
    /// A candidate is followed while software is asked.
    Tracking,
    /// And packets that are next are decrypted, with a number that is not proved.
    Presuming,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The payload was worked on, and is in `out`; the messages that end in it are authentic. If
    /// not, it is to go up as it came. Packets that differ here must not be merged.
    pub pass: Option<Pass>,
    /// So many bytes of a payload with a pass are as they came: the rest of a message of which some
    /// was lost. They must not be merged with those behind them.
    pub from: u32,
    /// With a pass: the message of the first byte that was worked on.
    pub message: Option<Extent>,
    /// Where in the payload a message starts, the first one of those that start in it; of a packet
    /// with a pass. By it software can tell that the device and itself see the same messages.
    pub boundary: Option<u32>,
    /// A question for software.
    pub request: Option<Request>,
}

impl Received {
    /// What is said of the bytes from [`Received::from`] on.
    pub fn worked(&self) -> Option<Worked> {
        Some(Worked { pass: self.pass?, message: self.message? })
    }
}

/// The length that messages have.
#[derive(Clone, Copy, Debug)]
struct Usual {
    bytes: u32,
    /// So many in a row had it.
    repeats: u8,
}

impl Usual {
    const NONE: Usual = Usual { bytes: 0, repeats: 0 };

    /// A message was verified.
    fn note(&mut self, bytes: u32) {
        if self.bytes != bytes {
            *self = Usual { bytes, repeats: 0 };
        }
        self.repeats = self.repeats.saturating_add(1);
    }
}

/// The machine of one flow: its dynamic state.
#[derive(Clone, Copy, Debug)]
pub struct Rx<P> {
    framing: Framing,
    /// The work on the current message, while it is worked on.
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
    usual: Usual,
    /// The last start of a message that was known before a search.
    anchor: SeqNumber,
    /// Its number; while a number is presumed, that of the candidate.
    number: u64,
}

impl<P: Copy> Rx<P> {
    /// A message starts at `start`, after `number` others (`l5o_create`).
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
            usual: Usual::NONE,
            anchor: start,
            number,
        }
    }

    /// Candidates are decrypted at once where their number can be presumed. The paper's machine
    /// awaits an answer.
    pub fn presume(&mut self, presumes: bool) {
        self.presumes = presumes;
    }

    /// Starts again with other static state, which software knows as `key`, at `start` with message
    /// `number`, wherever the stream is meanwhile. Answers to earlier questions are void.
    pub fn restart(&mut self, start: SeqNumber, number: u64, key: u16) {
        let generation = self.generation.wrapping_add(1);
        let (frontier, presumes) = (self.frontier, self.presumes);
        *self = Rx { key, generation, frontier, presumes, ..Rx::new(start, number) };
    }

    /// What the machine does.
    pub fn state(&self) -> State {
        self.state
    }

    /// The byte that it goes on with, where it knows.
    pub fn expected(&self) -> SeqNumber {
        self.framing.position()
    }

    /// Takes a packet whose checksum is good. What is in `out` behind the payload's length, or
    /// without [`Received::pass`], means nothing. Nothing is placed.
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

    /// Like [`Rx::receive`], and puts data where it belongs: `placer` says afterwards what of this
    /// packet was placed, whether its messages were right or not.
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
            // It may be a keepalive: any byte, before the one that TCP awaits.
            stats.rx_past_packets += 1;
            return Received::default();
        }
        let received = self.take(l5p, stats, (seq, payload), out, placer);
        stats.rx_placed_bytes += placer.placed_bytes() - placed_bytes;
        received
    }

    /// Takes bytes of the stream.
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

    /// Where the stream stands.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// All bytes of the stream that are still to come are `bytes` further than was thought.
    pub(crate) fn shift(&mut self, bytes: u32) {
        self.framing.shift(bytes);
    }

    /// Bytes were missed, nobody knows how many.
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

    /// True where bytes from `seq` on, and all behind them, are new to the device.
    pub(crate) fn is_fresh(&self, seq: SeqNumber) -> bool {
        !seq.before(self.frontier)
    }

    /// Takes an answer of software; true where it was to the question that is open.
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

    /// The candidate is message `number`: goes on at the next header.
    fn resume(&mut self, number: u64) {
        self.framing.count(number);
        if self.framing.in_body() {
            self.framing.skip_to_header();
        }
        self.state = State::Offloading;
    }

    /// The number of the candidate was right.
    fn prove(&mut self, stats: &mut Stats) {
        stats.rx_presumed_right += 1;
        self.state = State::Offloading;
    }

    /// The number of the candidate is not known after all: it is followed, and counted from.
    fn give_up(&mut self, stats: &mut Stats) {
        stats.rx_presumed_wrong += 1;
        self.framing.count(self.number.wrapping_neg());
        self.progress = None;
        self.usual = Usual::NONE;
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
        let place = self.framing.place(seq, payload.len());
        match place {
            Place::Past => stats.rx_past_packets += 1,
            Place::Within => stats.rx_ahead_packets += 1,
            Place::Overlap(_) => stats.rx_overlap_packets += 1,
            Place::Header(_) => stats.rx_ahead_header_packets += 1,
            Place::Next | Place::Lost => (),
        }
        if let Place::Header(_) = place {
            self.framing.skip_to_header();
            self.progress = None;
        }
        let (from, is_shown) = match place {
            Place::Past | Place::Within => return Received::default(),
            Place::Lost => return self.lose(l5p, stats, (seq, payload, 0), out, placer),
            Place::Next => (0, true),
            // What starts with the header that is next has lost nothing that it needs. What is
            // before it stays as it came; that can be said of what is decrypted only.
            Place::Header(before) => (before, before == 0 || L::REWRITES),
            // What is before the new bytes cannot be given back, unless it is another message.
            Place::Overlap(before) => (before, L::REWRITES && self.framing.is_at_start()),
        };
        let shown = is_shown.then_some(&mut *out);
        match self.walk(l5p, stats, (payload, from), shown, placer) {
            Walk::Alien { done } => {
                // Where a message should start there is none: nothing was known.
                self.usual = Usual::NONE;
                self.lose(l5p, stats, (seq, payload, done), out, placer)
            }
            Walk::Done(walked) if !is_shown => {
                if !walked.authentic && self.state == State::Presuming {
                    self.give_up(stats);
                }
                Received::default()
            }
            Walk::Done(walked) => self.decrypted(stats, payload.len(), from, walked),
        }
    }

    /// What is said of a packet, of which all bytes from `from` on were worked on.
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

    /// Works on what is next, `payload` after its first `done` bytes; to `out`, where somebody
    /// wants to see them.
    fn walk<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (payload, mut done): (&[u8], usize),
        out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> Walk {
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
                Step::Alien => return Walk::Alien { done },
            }
        }
        // Of a header that is not complete, or has just become so.
        let message = first.unwrap_or(self.framing.extent());
        Walk::Done(Walked { authentic, boundary, message })
    }

    /// A message ended.
    fn ended(&mut self, stats: &mut Stats, message_bytes: u32, verified: bool) {
        if verified {
            self.usual.note(message_bytes);
            if self.state == State::Presuming {
                self.prove(stats);
            }
        }
    }

    /// (a): where messages start is not known after `done` bytes of the payload.
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

    /// (b): looks for a candidate after `done` bytes of the payload, and follows it to the end of
    /// the packet.
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

    /// The number that the candidate has if messages went on as they did before.
    fn presumption<L: L5p<Progress = P>>(&self, l5p: &L, candidate: SeqNumber) -> Option<u64> {
        let Usual { bytes, repeats } = self.usual;
        if !self.presumes || !l5p.proves_number() || repeats < REPEATS_MIN {
            return None;
        }
        let gap = u32::try_from(distance(candidate, self.anchor)).ok()?;
        let fits = gap <= PRESUMED_BYTES_MAX && gap % bytes == 0;
        fits.then(|| self.number.wrapping_add(u64::from(gap / bytes)))
    }

    /// Decrypts from the candidate on, which is presumed to be message `number`: of its header some
    /// bytes were `carried`, the next one is `payload[from]`.
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
        // It is a part of a header only, and was followed before.
        let begun = self.framing.follow(l5p, carried).is_ok();
        match self.walk(l5p, stats, (payload, from), Some(out), placer) {
            Walk::Done(walked) if begun => self.decrypted(stats, payload.len(), from, walked),
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

    /// What is asked of the current candidate.
    fn request(&self) -> Request {
        Request { tcpsn: self.candidate, key: self.key, generation: self.generation }
    }

    /// Follows the candidate's messages while its answer is awaited.
    fn track<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        self.waited_bytes = self.waited_bytes.saturating_add(payload.len() as u32);
        let followed = match self.framing.place(seq, payload.len()) {
            _ if self.waited_bytes > ANSWER_BYTES_MIN << self.doublings => {
                // The candidate may be where TCP never comes; or the way there is long.
                stats.rx_resync_expired += 1;
                self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
                Err(0)
            }
            Place::Past | Place::Within => Ok(()),
            Place::Next => self.framing.follow(l5p, payload),
            Place::Overlap(before) => {
                let followed = self.framing.follow(l5p, &payload[before..]);
                followed.map_err(|done| before + done)
            }
            Place::Header(before) => {
                self.framing.skip_to_header();
                let followed = self.framing.follow(l5p, &payload[before..]);
                followed.map_err(|done| before + done)
            }
            Place::Lost => Err(0),
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

/// How bytes went that were next.
enum Walk {
    /// Headers were where they must be.
    Done(Walked),
    /// After `done` bytes there is no header where one must be.
    Alien { done: usize },
}

/// What was found in bytes that were next.
struct Walked {
    /// Every message that ended was.
    authentic: bool,
    /// Where the first message starts that does.
    boundary: Option<u32>,
    /// The message of the first byte.
    message: Extent,
}
