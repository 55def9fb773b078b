//! The oracle: the program with `memcpy`.

use std::collections::BTreeMap;

use super::{MEMORY_BYTES, STREAMS, TaskRecord};
use crate::Ticket;
use crate::span::Span;
use crate::task::{Kind, Request};

/// Expected contents of memory and streams; `None` for unknown bytes.
pub(super) struct Oracle {
    pub(super) bytes: Vec<Option<u8>>,
    /// The last copy that wrote each byte.
    writer: Vec<Option<Ticket>>,
    pub(super) sent: Vec<Vec<Option<u8>>>,
    received: [u64; STREAMS as usize],
    ended: [Option<u64>; STREAMS as usize],
    /// The task whose missing bytes are tracked.
    short: Option<Ticket>,
    missing: Vec<bool>,
    /// Segments that copied missing bytes.
    pub(super) dependents: BTreeMap<Ticket, u32>,
}

impl Oracle {
    pub(super) fn new(ended: [Option<u64>; STREAMS as usize], short: Option<Ticket>) -> Oracle {
        let bytes: Vec<_> = (0..MEMORY_BYTES).map(|at| Some(at as u8)).collect();
        let writer = vec![None; bytes.len()];
        let sent = vec![Vec::new(); STREAMS as usize];
        let (received, missing) = ([0; STREAMS as usize], vec![false; bytes.len()]);
        Oracle { bytes, writer, sent, received, ended, short, missing, dependents: BTreeMap::new() }
    }

    pub(super) fn write(&mut self, span: Span, value: u8) {
        let bytes = span.start as usize..span.end() as usize;
        self.bytes[bytes.clone()].fill(Some(value));
        self.writer[bytes.clone()].fill(None);
        self.missing[bytes].fill(false);
    }

    pub(super) fn copy(&mut self, ticket: Ticket, task: &TaskRecord) {
        let Request { dst, src, kind, last_use, .. } = task.request;
        for offset in 0..dst.len {
            let (value, is_missing) = if matches!(kind, Kind::Source | Kind::Relay) {
                let stream = src.start as usize;
                let at = self.received[stream];
                self.received[stream] += 1;
                let came = self.ended[stream].is_none_or(|end| at < end);
                (came.then(|| stream_byte(src.start, at)), !came && self.short == Some(ticket))
            } else {
                let at = (src.start + offset) as usize;
                (self.bytes[at], self.missing[at] && !task.aborted && !task.failed)
            };
            let is_lost = task.lost & task.segments.touching(offset, 1) != 0;
            let value = value.filter(|_| !is_lost);
            let is_missing = is_missing && !is_lost;
            if is_missing {
                *self.dependents.entry(ticket).or_default() |= task.segments.touching(offset, 1);
            }
            if matches!(kind, Kind::Sink | Kind::Relay) {
                if !task.unsent {
                    self.sent[dst.start as usize].push(value);
                }
            } else {
                let at = (dst.start + offset) as usize;
                self.bytes[at] = value.filter(|_| !task.failed);
                self.writer[at] = Some(ticket);
                self.missing[at] = is_missing;
            }
        }
        if matches!(kind, Kind::Memory | Kind::Sink) && last_use {
            for at in src.start as usize..src.end() as usize {
                (self.bytes[at], self.writer[at], self.missing[at]) = (None, None, false);
            }
        }
    }

    pub(super) fn abort(&mut self, ticket: Ticket, task: &TaskRecord, done: u32) {
        let dst = task.request.dst;
        for at in dst.start..dst.end() {
            let bit = task.segments.touching(at - dst.start, 1);
            if self.writer[at as usize] == Some(ticket) && done & bit == 0 {
                self.bytes[at as usize] = None;
            }
        }
    }
}

pub(super) fn stream_byte(stream: u64, at: u64) -> u8 {
    (at.wrapping_mul(151) + stream * 17 + 3) as u8
}
