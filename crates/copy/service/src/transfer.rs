//! Copies from and to sockets. They stay in progress until all bytes have gone, with any number of
//! waits for the socket.
//!
//! The order of such a task stays outstanding meanwhile, so independent tasks continue. Segments
//! are marked as soon as their bytes have come or gone ([`Transfer::updates`]).

use smallvec::SmallVec;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use unlade_copy_kernels::Space;
use unlade_copy_kernels::relay::Relay;
use unlade_copy_kernels::space::{Cancelled, PARTS_MAX};
use unlade_copy_scheduler::Micros;
use unlade_copy_scheduler::plan::{Chunk, Order, SegmentProgress, StreamInput};
use unlade_copy_scheduler::task::Kind;

use crate::error::TaskFailure;
use crate::held::HeldBytes;

/// Initial delay before the next attempt at a blocked socket; it doubles each time.
const RETRY_US_MIN: u64 = 20;
/// Maximum delay before the next attempt.
const RETRY_US_MAX: u64 = 1_000;
/// Maximum number of transfers in progress; smaller than the limit of outstanding orders.
pub(crate) const TRANSFERS_MAX: usize = 48;
/// Maximum number of pipes that a client keeps for the next forward.
const RELAYS_MAX: usize = 4;
/// The kernel's EFAULT.
const EFAULT: i32 = 14;

/// Returns the plan's stream number for a socket; each direction has its own.
pub(crate) fn stream(fd: i32, is_send: bool) -> Option<u64> {
    Some(u64::try_from(fd).ok()? * 2 + u64::from(is_send))
}

/// Returns a stream's socket. An invalid number gives a closed socket's descriptor.
fn socket(stream: u64) -> i32 {
    i32::try_from(stream / 2).unwrap_or(-1)
}

/// Addresses and lengths.
type Parts = SmallVec<[(u64, u64); 4]>;

/// A task at a socket.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub order: Order,
    fd: i32,
    /// Offset in the task of the next byte, and of the end.
    position: u64,
    end: u64,
    /// For each entry of the order's progress list: the segments that are marked, and the failure
    /// of the others, if known.
    marked: SmallVec<[(u32, Option<TaskFailure>); 2]>,
    /// One of several addresses is bad; single attempts find out which.
    one_by_one: bool,
    /// Pipe between two sockets.
    relay: Option<Relay>,
    /// Places of a send's bytes, if they may move.
    held: Option<Arc<HeldBytes>>,
    /// Bytes that went from socket to socket in a pipe, and were not counted yet.
    spliced_bytes: u64,
    retry_at: Micros,
    retry_us: u64,
    /// The client has given the task up, and another thread was moving its bytes.
    is_aborted: bool,
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// All bytes have gone.
    Done,
    /// The socket blocks.
    Blocked,
    /// The transfer has failed.
    Failed(TaskFailure),
}

/// Segments with a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentUpdate {
    pub ticket: unlade_copy_scheduler::Ticket,
    pub bits: u32,
    /// `None` if the bytes are there, else the reason.
    pub failure: Option<TaskFailure>,
}

impl Transfer {
    /// Creates the transfer of an order at the socket of `stream`. `held`: the places of a send's
    /// bytes, if they may move.
    pub fn new(order: Order, stream: u64, held: Option<Arc<HeldBytes>>) -> Transfer {
        let own = order.segment_progress.first();
        let (position, end) = own.map_or((0, 0), range);
        let sent = held.as_ref().map_or(0, |held| held.sent());
        let position = position.max(sent.min(end));
        let marked = order.segment_progress.iter().map(|_| (0, None)).collect();
        Transfer {
            fd: socket(stream),
            position,
            end,
            marked,
            one_by_one: false,
            relay: None,
            held,
            spliced_bytes: 0,
            retry_at: Micros(0),
            retry_us: RETRY_US_MIN,
            is_aborted: false,
            order,
        }
    }

    /// Returns true if all bytes have come or gone.
    pub fn is_complete(&self) -> bool {
        self.position >= self.end
    }

    pub fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Gives the task up. Returns the number of bytes that another thread has moved since the last
    /// attempt; `None` if it moves some now: try again later.
    pub fn cancel(&mut self, space: &dyn Space, now: Micros) -> Option<u64> {
        self.is_aborted = true;
        match space.cancel(self.fd, self.order.kind == Kind::Sink) {
            Cancelled::Moved(bytes) => {
                let bytes = bytes.min(self.end - self.position.min(self.end));
                self.position += bytes;
                Some(bytes)
            }
            Cancelled::Busy => {
                self.retry_at = Micros(now.0 + self.retry_us);
                self.retry_us = (2 * self.retry_us).min(RETRY_US_MAX);
                None
            }
        }
    }

    /// Lends the transfer a kept relay if it needs one.
    pub fn lend(&mut self, relays: &mut Vec<Relay>) {
        let splices = |stream_input: &StreamInput| Relay::splices(stream_input.len, self.fd);
        if self.order.stream_input.as_ref().is_some_and(splices) {
            self.relay = relays.pop();
        }
    }

    /// Takes the relay back.
    pub fn give_back(&mut self, relays: &mut Vec<Relay>) {
        let relay = self.relay.take_if(|relay| relay.is_reusable());
        if relays.len() < RELAYS_MAX {
            relays.extend(relay);
        }
    }

    /// Returns the numbers of bytes that were sent to the second socket and received from the
    /// first.
    pub fn forwarded(&self) -> [u64; 2] {
        [self.position, self.position + self.relay.as_ref().map_or(0, Relay::buffered_bytes)]
    }

    /// Copies the additional chunks between memory. Returns the number of copied bytes.
    pub fn copy_edges(&mut self, space: &dyn Space) -> u64 {
        let mut copied_bytes = 0;
        for chunk in std::mem::take(&mut self.order.copies) {
            match space.copy(chunk.dst, chunk.src, chunk.len) {
                Ok(()) => copied_bytes += chunk.len,
                Err(_) => self.give_up_taker(chunk.src.wrapping_sub(self.order.dst_base)),
            }
        }
        copied_bytes
    }

    /// Returns the time of the next attempt.
    pub fn retry_at(&self) -> Micros {
        self.retry_at
    }

    /// Returns the number of bytes that bypass their receive's destination.
    pub fn taken_bytes(&self) -> u64 {
        if let (Kind::Sink, Some(stream_input)) = (self.order.kind, self.order.stream_input) {
            return stream_input.len;
        }
        let is_taken = |chunk: &&Chunk| !self.goes_to_receive_dst(chunk);
        let chunks = self.order.chunks.iter().filter(is_taken);
        if self.order.kind == Kind::Source { chunks.map(|chunk| chunk.len).sum() } else { 0 }
    }

    /// Continues as far as the socket permits. Returns the number of moved bytes, and the result.
    pub fn attempt(&mut self, space: &dyn Space, now: Micros) -> (u64, Attempt) {
        let mut moved_bytes = 0;
        while self.position < self.end {
            match self.step(space) {
                Ok(0) => return (moved_bytes, Attempt::Failed(TaskFailure::Ended)),
                Ok(bytes) => {
                    self.position += bytes;
                    moved_bytes += bytes;
                    self.retry_us = RETRY_US_MIN;
                    self.one_by_one = false;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.retry_at = Micros(now.0 + self.retry_us);
                    self.retry_us = (2 * self.retry_us).min(RETRY_US_MAX);
                    return (moved_bytes, Attempt::Blocked);
                }
                Err(error) if error.raw_os_error() == Some(EFAULT) && self.recover_address() => {}
                Err(error) => {
                    let failure = TaskFailure::of_socket(&error);
                    if !self.redirect_to_receive(failure) {
                        return (moved_bytes, Attempt::Failed(failure));
                    }
                }
            }
        }
        (moved_bytes, Attempt::Done)
    }

    /// Makes one system call.
    fn step(&mut self, space: &dyn Space) -> io::Result<u64> {
        if let Some(stream_input) =
            self.order.stream_input.filter(|stream_input| stream_input.at <= self.position)
        {
            return self.pass_on(stream_input);
        }
        if let Some(held) = &self.held {
            return held.with(self.position, self.end, |parts| send(space, self.fd, parts));
        }
        let parts = self.parts();
        match (self.order.kind, &parts[..]) {
            (Kind::Sink, parts) => send(space, self.fd, parts),
            (_, [(dst, len)]) => space.receive(self.fd, *dst, *len),
            (_, parts) => space.receive_scatter(self.fd, parts),
        }
    }

    /// Redirects the bytes that a failed send was to take out of a stream to the receive's
    /// destination. They must leave the stream, because later receives follow them. Returns false
    /// if the order has no such bytes left.
    pub fn redirect_to_receive(&mut self, failure: TaskFailure) -> bool {
        let held = self.relay.as_ref().map_or(0, Relay::buffered_bytes);
        let stream_input = self
            .order
            .stream_input
            .filter(|stream_input| held > 0 || self.position < stream_input.at);
        let Some(stream_input) = stream_input.filter(|_| self.order.kind == Kind::Sink) else {
            return false;
        };
        self.relay = None;
        if let Some((_, of_send)) = self.marked.first_mut() {
            *of_send = Some(failure);
        }
        self.position = self.position.max(stream_input.at) + held;
        self.fd = socket(stream_input.stream);
        self.order.kind = Kind::Source;
        self.order.stream_input = None;
        self.order.dst_base = stream_input.dst_base.wrapping_sub(stream_input.at);
        let chunk =
            Chunk { dst: stream_input.dst_base, src: stream_input.at, len: stream_input.len };
        self.order.chunks.clear();
        self.order.chunks.push(chunk);
        true
    }

    /// Moves bytes from socket to socket; returns the number that the second one took.
    fn pass_on(&mut self, stream_input: StreamInput) -> io::Result<u64> {
        let left = stream_input.len - (self.position - stream_input.at);
        let relay = self.relay.get_or_insert_with(|| Relay::new(stream_input.len, self.fd));
        let given = relay.pass_on(socket(stream_input.stream), self.fd, left)?;
        if relay.is_pipe() {
            self.spliced_bytes += given;
        }
        Ok(given)
    }

    /// Returns the number of bytes that a pipe has passed on since the last call.
    pub fn take_spliced_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.spliced_bytes)
    }

    /// Returns the addresses for the next bytes, as many as one system call accepts.
    fn parts(&self) -> Parts {
        let is_sink = self.order.kind == Kind::Sink;
        let most = if self.one_by_one { 1 } else { PARTS_MAX };
        let chunks = self.order.chunks.iter().filter_map(|chunk| {
            let (at, place) = if is_sink { (chunk.dst, chunk.src) } else { (chunk.src, chunk.dst) };
            let skipped = self.position.saturating_sub(at);
            (skipped < chunk.len).then(|| (place + skipped, chunk.len - skipped))
        });
        chunks.take(most).collect()
    }

    /// Handles a bad address. Returns true if the transfer can continue: with single addresses to
    /// find the bad one, or with the receive's destination instead of a taker's.
    fn recover_address(&mut self) -> bool {
        if self.order.kind != Kind::Source {
            return false;
        }
        if !self.one_by_one && self.parts().len() > 1 {
            self.one_by_one = true;
            return true;
        }
        let holds = |chunk: &&Chunk| self.position - chunk.src.min(self.position) < chunk.len;
        let next = self.order.chunks.iter().find(holds).copied();
        match next.filter(|chunk| !self.goes_to_receive_dst(chunk)) {
            Some(chunk) => {
                self.give_up_taker(chunk.src);
                true
            }
            None => false,
        }
    }

    fn goes_to_receive_dst(&self, chunk: &Chunk) -> bool {
        chunk.dst == self.order.dst_base.wrapping_add(chunk.src)
    }

    /// Redirects the bytes of the taker at this offset to the receive's destination.
    fn give_up_taker(&mut self, offset: u64) {
        let dst_base = self.order.dst_base;
        let takers = self.order.segment_progress.iter().zip(&mut self.marked).skip(1);
        for (entry, (_, bad)) in takers {
            let (from, to) = offsets(entry);
            if !(from..to).contains(&(offset as i64)) {
                continue;
            }
            *bad = Some(TaskFailure::BadAddress);
            for chunk in &mut self.order.chunks {
                if (from..to).contains(&(chunk.src as i64)) {
                    chunk.dst = dst_base.wrapping_add(chunk.src);
                }
            }
            return;
        }
    }

    /// Returns the segments that have come or gone since the last call, or whose address is bad.
    pub fn updates(&mut self) -> SmallVec<[SegmentUpdate; 2]> {
        let mut news = SmallVec::new();
        let all = self.position >= self.end;
        for (entry, (marked, failure)) in self.order.segment_progress.iter().zip(&mut self.marked) {
            let arrived = if all { entry.bits } else { entry.arrived(self.position) };
            let bits = if failure.is_some() { entry.bits } else { arrived } & !*marked;
            *marked |= bits;
            if bits != 0 {
                news.push(SegmentUpdate { ticket: entry.ticket, bits, failure: *failure });
            }
        }
        news
    }

    /// Returns the segments that have not come or gone, for each progress entry.
    pub fn missing(
        &self,
    ) -> impl DoubleEndedIterator<Item = (unlade_copy_scheduler::Ticket, u32)> + '_ {
        let segment_progress = self.order.segment_progress.iter().zip(&self.marked);
        segment_progress
            .map(|(entry, (marked, _))| (entry.ticket, entry.bits & !marked))
            .filter(|(_, bits)| *bits != 0)
    }
}

/// Sends from these places, in order.
fn send(space: &dyn Space, fd: i32, parts: &[(u64, u64)]) -> io::Result<u64> {
    match parts {
        [(src, len)] => space.send(fd, *src, *len),
        parts => space.send_gather(fd, parts),
    }
}

/// Returns the byte range of a progress entry, as offsets in its task.
fn range(entry: &SegmentProgress) -> (u64, u64) {
    let (first, behind) = (entry.bits.trailing_zeros(), u32::BITS - entry.bits.leading_zeros());
    let count = behind.saturating_sub(first);
    let bytes = entry.segments.bytes(unlade_copy_scheduler::span::Run { first, count });
    (bytes.start, bytes.end())
}

/// Returns the byte range of a progress entry, as offsets in the order's task.
fn offsets(entry: &SegmentProgress) -> (i64, i64) {
    let (start, end) = range(entry);
    (entry.offset.saturating_add(start as i64), entry.offset.saturating_add(end as i64))
}
