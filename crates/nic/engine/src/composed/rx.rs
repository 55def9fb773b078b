//! Received packets of a flow with both protocols.

use unlade_net::SeqNumber;

use crate::composed::{RecordPart, Stats, step};
use crate::framing::Framing;
use crate::nvme::{self, Nvme};
use crate::placement::Placer;
use crate::resync::{Pass, Request, Response};
use crate::rule::{Rule, holds};
use crate::rx::{self, State};
use crate::tls::{self, APPLICATION_DATA, Tls};

/// Result for a packet. Without a pass in `tls` the packet goes up as it was received, and of the
/// other fields only a resynchronisation request can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Result of the outer machine.
    pub tls: rx::Received,
    /// The pass of the inner machine to which all application data in the packet belongs; every
    /// digest that ends in the packet is correct.
    pub nvme: Option<Pass>,
    /// Offset in the payload of the first PDU that starts in it.
    pub boundary: Option<u32>,
    /// Resynchronisation request of the inner machine; it names a position in TCP's stream.
    pub nvme_request: Option<Request>,
}

/// The dynamic state of the inner machine.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    rx: rx::Rx<nvme::Progress>,
    /// The TCP sequence number after the last application data that was processed.
    end: SeqNumber,
}

/// The state machines of one flow: two contexts.
#[derive(Clone, Copy, Debug)]
pub struct Rx {
    tls: rx::Rx<tls::Progress>,
    nvme: Inner,
}

impl Rx {
    /// Creates machines for a stream in which record `number` and a PDU begin at `start`.
    pub fn new(start: SeqNumber, number: u64) -> Rx {
        let nvme = Inner { rx: rx::Rx::new(start, 0), end: start };
        Rx { tls: rx::Rx::new(start, number), nvme }
    }

    /// Restarts the outer machine with another key, as [`rx::Rx::restart`] does; the inner machine
    /// searches.
    pub fn restart(&mut self, stats: &mut Stats, start: SeqNumber, number: u64, key: u16) {
        self.tls.restart(start, number, key);
        self.nvme.rx.interrupt(&mut stats.nvme);
    }

    /// The states of the two machines: TLS, NVMe/TCP.
    pub fn states(&self) -> (State, State) {
        (self.tls.state(), self.nvme.rx.state())
    }

    /// The next byte that the outer machine processes, while it is synchronised.
    pub fn expected(&self) -> SeqNumber {
        self.tls.expected()
    }

    /// Processes a packet whose checksum is correct. Bytes of `out` beyond the payload's length
    /// are undefined, and so are all of them without the outer pass. Afterwards `placer` holds the
    /// ranges that were placed.
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
            // It starts with the next header; the rest of the previous record is missing.
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

    /// Processes a response of software to a request of the outer machine. Returns true if it was
    /// accepted.
    pub fn respond(&mut self, stats: &mut Stats, response: &Response) -> bool {
        self.tls.respond(&mut stats.tls, response)
    }

    /// Processes a response of software to a request of the inner machine. Returns true if it was
    /// accepted.
    pub fn respond_nvme(&mut self, stats: &mut Stats, response: &Response) -> bool {
        self.nvme.rx.respond(&mut stats.nvme, response)
    }
}

impl Inner {
    /// Processes the application data of `bytes` at `seq`, which are decrypted after the first
    /// `done` bytes; `framing` is the framing of the records at that point. Returns the inner
    /// results.
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
            let Some((end, _, parts)) = step(tls, &mut framing, bytes, done) else { break };
            done = end;
            for part in parts.into_iter().flatten() {
                match part {
                    RecordPart::Record => (),
                    RecordPart::Content { start, end } => {
                        placer.part(start);
                        let content = (seq + start as u32, &bytes[start..end]);
                        let received = self.content(nvme, stats, content, placer);
                        passes.join(received.pass);
                        taken.nvme_request = received.request.or(taken.nvme_request);
                        let boundary = received.boundary.map(|at| at + start as u32);
                        taken.boundary = taken.boundary.or(boundary);
                    }
                    RecordPart::Type { at } if bytes[at] == APPLICATION_DATA => (),
                    RecordPart::Type { .. } => {
                        if holds(Rule::InnerType) {
                            self.rx.interrupt(&mut stats.nvme);
                            passes.join(None);
                            // The placed bytes were not part of a PDU.
                            placer.forget();
                        }
                    }
                }
            }
        }
        taken.nvme = passes.common.filter(|_| !passes.differ);
        taken
    }

    /// Processes the next application data.
    fn content(
        &mut self,
        nvme: &Nvme,
        stats: &mut Stats,
        (seq, content): (SeqNumber, &[u8]),
        placer: &mut Placer<'_>,
    ) -> rx::Received {
        // No byte of the inner stream lies between.
        self.rx.shift(seq.0.wrapping_sub(self.end.0));
        self.end = seq + content.len() as u32;
        self.rx.take(nvme, &mut stats.nvme, (seq, content), &mut [], placer)
    }
}

/// The common pass of the parts of a packet.
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
