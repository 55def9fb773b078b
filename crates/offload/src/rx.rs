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
//! (Figure 7 of the paper.) Packets are passed on as they come: none is kept, put elsewhere,
//! dropped, or changed but for the payload that [`Received::pass`] tells of. What is decrypted is
//! written apart, so that a packet in which a message fails can go up as it came.
//!
//! # What software may conclude
//! A message of which every octet is in packets of one [`Pass`] is authentic: within a pass the
//! machine takes no octet twice, and the packet with the end of a message has the pass only if the
//! message was verified. Octets of two passes prove nothing, since in each one the rest may have
//! been another: who can send packets that TCP refuses and the device takes in would otherwise
//! have it verify a message other than the one that TCP has.
//!
//! Such a sender can make the device decrypt wrongly what comes next, and so end the connection, as
//! anybody can whose packets TCP does take. It cannot change what is read.

use wire::SeqNumber;

use crate::framing::{Framing, Place, Step};
use crate::l5p::L5p;
use crate::placement::Placer;
use crate::resync::{Pass, Request, Response};
use crate::rule::{Rule, holds};
use crate::search::Carry;
use crate::stats::Stats;

/// Most candidates that are followed within one packet: all of them may be false.
pub const CANDIDATES_MAX: usize = 16;
/// Octets of payload, of any packets of the flow, that a first candidate waits for its answer.
pub const ANSWER_BYTES_MIN: u32 = 1 << 20;
/// Times that the wait is doubled while no answer comes: software answers when TCP has delivered
/// so far, which is at most a window of 1 GiB later.
const DOUBLINGS_MAX: u8 = 10;

/// What the machine does with the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Packets that are next are decrypted.
    Offloading,
    /// Where messages start is not known.
    Searching,
    /// A candidate is followed while software is asked.
    Tracking,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The payload was worked on, and is in `out`; the messages that end in it are authentic. If
    /// not, it is to go up as it came. Packets that differ here must not be merged.
    pub pass: Option<Pass>,
    /// A question for software.
    pub request: Option<Request>,
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
        }
    }

    /// Starts again with other static state, which software knows as `key`, at `start` with message
    /// `number`, wherever the stream is meanwhile. Answers to earlier questions are void.
    pub fn restart(&mut self, start: SeqNumber, number: u64, key: u16) {
        let generation = self.generation.wrapping_add(1);
        let frontier = self.frontier;
        *self = Rx { key, generation, frontier, ..Rx::new(start, number) };
    }

    /// What the machine does.
    pub fn state(&self) -> State {
        self.state
    }

    /// The octet that it goes on with, where it knows.
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
        placer.packet(!seq.before(self.frontier));
        if payload.is_empty() {
            return Received::default();
        }
        let out = if L::REWRITES { &mut out[..payload.len()] } else { &mut [] };
        let end = seq + payload.len() as u32;
        if self.frontier.before(end) {
            self.frontier = end;
        } else if payload.len() == 1 && holds(Rule::Keepalive) {
            // It may be a keepalive: any octet, before the one that TCP awaits.
            stats.rx_past_packets += 1;
            return Received::default();
        }
        match self.state {
            State::Offloading => self.offload(l5p, stats, (seq, payload), out, placer),
            State::Searching => self.search(l5p, stats, seq, payload),
            State::Tracking => self.track(l5p, stats, seq, payload),
        }
    }

    /// Takes an answer of software; true where it was to the question that is open.
    pub fn respond(&mut self, stats: &mut Stats, response: &Response) -> bool {
        let asked = response.request == self.request();
        if self.state != State::Tracking || (holds(Rule::Generation) && !asked) {
            stats.rx_tls_resync_res_skip += 1;
            return false;
        }
        stats.rx_tls_resync_res_ok += 1;
        stats.rx_tls_resync_req_end += 1;
        self.doublings = 0;
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
        match place {
            Place::Past | Place::Within => Received::default(),
            // What starts with the header that is next has lost nothing that it needs.
            Place::Next | Place::Header(0) => match self.walk(l5p, (payload, 0), Some(out), placer)
            {
                Walk::Authentic => self.decrypted(stats, payload.len()),
                Walk::Failed if !holds(Rule::Failing) => self.decrypted(stats, payload.len()),
                Walk::Failed => {
                    stats.rx_tls_err += 1;
                    Received::default()
                }
                Walk::Alien { done } => self.lose(l5p, stats, seq, payload, done),
            },
            // What is before the new octets, or before the header, cannot be given back.
            Place::Overlap(before) | Place::Header(before) => {
                match self.walk(l5p, (payload, before), None, placer) {
                    Walk::Authentic | Walk::Failed => Received::default(),
                    Walk::Alien { done } => self.lose(l5p, stats, seq, payload, done),
                }
            }
            Place::Lost => self.lose(l5p, stats, seq, payload, 0),
        }
    }

    fn decrypted(&self, stats: &mut Stats, payload_bytes: usize) -> Received {
        stats.rx_tls_decrypted_packets += 1;
        stats.rx_tls_decrypted_bytes += payload_bytes as u64;
        let pass = Pass { key: self.key, generation: self.generation };
        Received { pass: Some(pass), request: None }
    }

    /// Works on what is next, `payload` after its first `done` octets; to `out`, where somebody
    /// wants to see them.
    fn walk<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        (payload, mut done): (&[u8], usize),
        out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> Walk {
        let mut out = out.filter(|_| L::REWRITES);
        let mut authentic = true;
        while done < payload.len() {
            let rest = &payload[done..];
            let mut out = out.as_deref_mut().map(|out| &mut out[done..]);
            match self.framing.step(l5p, rest) {
                Step::Header { octets, complete } => {
                    if let Some(out) = &mut out {
                        out[..octets].copy_from_slice(&rest[..octets]);
                    }
                    if complete {
                        self.progress = Some(l5p.begin(&self.framing.message()));
                    }
                    done += octets;
                }
                Step::Body { octets, offset, last } => {
                    let message = self.framing.message();
                    let out = out.map(|out| &mut out[..octets]);
                    placer.turn_to(done, self.framing.position());
                    authentic &= self.progress.as_mut().is_some_and(|at| {
                        l5p.receive(&message, at, offset, &rest[..octets], out, placer)
                    });
                    if last {
                        let at = self.progress.take();
                        authentic &= at.is_some_and(|at| l5p.verify(&message, &at));
                    }
                    self.framing.pass(octets);
                    done += octets;
                }
                Step::Alien => return Walk::Alien { done },
            }
        }
        if authentic { Walk::Authentic } else { Walk::Failed }
    }

    /// (a): where messages start is not known after `done` octets of the payload.
    fn lose<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &[u8],
        done: usize,
    ) -> Received {
        stats.rx_searches += 1;
        self.progress = None;
        self.carry = Carry::EMPTY;
        self.state = State::Searching;
        self.search(l5p, stats, seq + done as u32, &payload[done..])
    }

    /// (b): looks for a candidate, and follows it to the end of the packet.
    fn search<L: L5p<Progress = P>>(
        &mut self,
        l5p: &L,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &[u8],
    ) -> Received {
        stats.rx_unsynchronised_bytes += payload.len() as u64;
        let searched = self.carry.join::<L>(seq, payload);
        let mut from = 0;
        for _ in 0..CANDIDATES_MAX {
            let Some(index) = searched.find(l5p, from) else { break };
            let mut framing = Framing::at(searched.seq(index), 0);
            let (carried, behind) = searched.from(index);
            let follows = framing.follow(l5p, carried).and_then(|()| framing.follow(l5p, behind));
            if follows.is_ok() {
                return self.ask(stats, searched.seq(index), framing);
            }
            from = index + 1;
        }
        self.carry.keep::<L>(&searched);
        Received::default()
    }

    fn ask(&mut self, stats: &mut Stats, candidate: SeqNumber, framing: Framing) -> Received {
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
        Received { pass: None, request: Some(request) }
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
        seq: SeqNumber,
        payload: &[u8],
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
                self.search(l5p, stats, seq + done as u32, &payload[done..])
            }
        }
    }
}

/// How octets went that were next.
enum Walk {
    /// Every message that ended was authentic.
    Authentic,
    /// One was not.
    Failed,
    /// After `done` octets there is no header where one must be.
    Alien { done: usize },
}
