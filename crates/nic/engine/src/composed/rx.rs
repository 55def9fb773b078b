//! Received packets of a flow with both protocols.

use unlade_net::SeqNumber;

use crate::composed::{Piece, Stats, step};
use crate::framing::Framing;
use crate::nvme::{self, Nvme};
use crate::placement::Placer;
use crate::resync::{Pass, Request, Response};
use crate::rule::{Rule, holds};
use crate::rx::{self, State};
use crate::tls::{self, APPLICATION_DATA, Tls};

/// What became of a packet. The outer result is that of TLS: without its pass the packet goes up as
/// it came, and there is nothing else to say of it but a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The outer machine's.
    pub tls: rx::Received,
    /// All application data in the packet is of this pass of the inner machine, and every digest
    /// that ends in it is right.
    pub nvme: Option<Pass>,
    /// Where in the payload the first PDU starts, of those that start in it.
    pub boundary: Option<u32>,
    /// A question of the inner machine; it names a place in TCP's stream.
    pub nvme_request: Option<Request>,
}

/// The inner machine: its dynamic state.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    rx: rx::Rx<nvme::Progress>,
    /// The byte of TCP's stream behind the application data that was taken.
    end: SeqNumber,
}

/// The machines of one flow: two contexts.
#[derive(Clone, Copy, Debug)]
pub struct Rx {
    tls: rx::Rx<tls::Progress>,
    nvme: Inner,
}

impl Rx {
    /// A record starts at `start`, after `number` others, and a PDU with its application data.
    pub fn new(start: SeqNumber, number: u64) -> Rx {
        let nvme = Inner { rx: rx::Rx::new(start, 0), end: start };
        Rx { tls: rx::Rx::new(start, number), nvme }
    }

    /// The outer machine starts again with another key, as [`rx::Rx::restart`] does; the inner one
    /// has to search.
    pub fn restart(&mut self, stats: &mut Stats, start: SeqNumber, number: u64, key: u16) {
        self.tls.restart(start, number, key);
        self.nvme.rx.interrupt(&mut stats.nvme);
    }

    /// What the machines do: TLS, NVMe/TCP.
    pub fn states(&self) -> (State, State) {
        (self.tls.state(), self.nvme.rx.state())
    }

    /// The byte that the outer machine goes on with, where it knows.
    pub fn expected(&self) -> SeqNumber {
        self.tls.expected()
    }

    /// Takes a packet whose checksum is good. What is in `out` behind the payload's length, or
    /// without the outer pass, means nothing. `placer` says afterwards what was placed.
    ///
    /// # Panics
    /// `out` is shorter than `payload`.
    pub fn receive(
        &mut self,
        (tls, nvme): (&Tls, &Nvme),
        stats: &mut Stats,
        (seq, payload): (SeqNumber, &[u8]),
        out: &mut [u8],
        placer: &mut Placer<'_>,
    ) -> Received {
        let before = self.tls.framing();
        let was_offloading = self.tls.state() == State::Offloading;
        let fresh = self.tls.is_fresh(seq);
        let outer = self.tls.receive(tls, &mut stats.tls, seq, payload, out);
        placer.packet(fresh);
        if outer.pass.is_none() {
            let went_on = self.tls.framing().position() != before.position()
                || self.tls.state() != State::Offloading;
            if was_offloading && went_on && holds(Rule::InnerGap) {
                self.nvme.rx.interrupt(&mut stats.nvme);
            }
            return Received { tls: outer, ..Received::default() };
        }
        let mut framing = before;
        if before.position() != seq + outer.from {
            // It starts with the next header; the rest of the record before was missed.
            framing.skip_to_header();
            debug_assert_eq!(framing.position(), seq + outer.from);
            if holds(Rule::InnerGap) {
                self.nvme.rx.interrupt(&mut stats.nvme);
            }
        }
        let placed_bytes = placer.placed_bytes();
        let bytes = (&out[..payload.len()], outer.from as usize);
        let taken = self.nvme.take((tls, nvme), stats, framing, seq, bytes, placer);
        stats.nvme.rx_placed_bytes += placer.placed_bytes() - placed_bytes;
        Received { tls: outer, ..taken }
    }

    /// Takes an answer of software to a question of the outer machine.
    pub fn respond(&mut self, stats: &mut Stats, response: &Response) -> bool {
        self.tls.respond(&mut stats.tls, response)
    }

    /// Takes an answer of software to a question of the inner machine.
    pub fn respond_nvme(&mut self, stats: &mut Stats, response: &Response) -> bool {
        self.nvme.rx.respond(&mut stats.nvme, response)
    }
}

impl Inner {
    /// Takes the application data of `bytes` at `seq`, which are decrypted after the first `done` of
    /// them; there the records' framing is `framing`. Gives the inner machine's results.
    fn take(
        &mut self,
        (tls, nvme): (&Tls, &Nvme),
        stats: &mut Stats,
        mut framing: Framing,
        seq: SeqNumber,
        (bytes, mut done): (&[u8], usize),
        placer: &mut Placer<'_>,
    ) -> Received {
        let mut passes = Passes { common: None, differ: false };
        let mut taken = Received::default();
        while done < bytes.len() {
            let Some((end, _, pieces)) = step(tls, &mut framing, bytes, done) else { break };
            done = end;
            for piece in pieces.into_iter().flatten() {
                match piece {
                    Piece::Record => (),
                    Piece::Content { start, end } => {
                        placer.part(start);
                        let content = (seq + start as u32, &bytes[start..end]);
                        let received = self.content(nvme, stats, content, placer);
                        passes.join(received.pass);
                        taken.nvme_request = received.request.or(taken.nvme_request);
                        let boundary = received.boundary.map(|at| at + start as u32);
                        taken.boundary = taken.boundary.or(boundary);
                    }
                    Piece::Type { at } if bytes[at] == APPLICATION_DATA => (),
                    Piece::Type { .. } => {
                        if holds(Rule::InnerType) {
                            self.rx.interrupt(&mut stats.nvme);
                            passes.join(None);
                            // What was placed of it was not PDUs.
                            placer.forget();
                        }
                    }
                }
            }
        }
        taken.nvme = passes.common.filter(|_| !passes.differ);
        taken
    }

    /// Takes application data that is next.
    fn content(
        &mut self,
        nvme: &Nvme,
        stats: &mut Stats,
        (seq, content): (SeqNumber, &[u8]),
        placer: &mut Placer<'_>,
    ) -> rx::Received {
        // Nothing of the inner stream is between.
        self.rx.shift(seq.0.wrapping_sub(self.end.0));
        self.end = seq + content.len() as u32;
        self.rx.take(nvme, &mut stats.nvme, (seq, content), &mut [], placer)
    }
}

/// The passes of a packet's parts.
struct Passes {
    common: Option<Pass>,
    differ: bool,
}

impl Passes {
    fn join(&mut self, pass: Option<Pass>) {
        match (self.common, pass) {
            (_, None) => self.differ = true,
            (None, Some(pass)) => self.common = Some(pass),
            (Some(first), Some(pass)) => self.differ |= first != pass,
        }
    }
}
