//! Copies from and to sockets: under way until all bytes have gone, however often the socket has to
//! be waited for.
//!
//! The order of such a task stays outstanding meanwhile, so that everything that does not depend on
//! it goes on. What has come or gone is marked as it does ([`Transfer::news`]).

use smallvec::SmallVec;
use std::io::{self, ErrorKind};
use unlade_copy_kernels::Space;
use unlade_copy_kernels::relay::Relay;
use unlade_copy_kernels::space::PARTS_MAX;
use unlade_copy_scheduler::Micros;
use unlade_copy_scheduler::plan::{Inlet, Landing, Order, Piece};
use unlade_copy_scheduler::task::Kind;

use crate::error::TaskFailure;

/// A socket that has nothing, or takes nothing, is asked again after so long; twice as long each
/// time, ...
const RETRY_US_MIN: u64 = 20;
/// ... and at most so long.
const RETRY_US_MAX: u64 = 1_000;
/// Tasks at sockets that are under way at a time; fewer than orders may be outstanding.
pub(crate) const TRANSFERS_MAX: usize = 48;
/// Pipes that a client keeps for the next forward.
const RELAYS_MAX: usize = 4;
/// The kernel's EFAULT.
const EFAULT: i32 = 14;

/// The stream that a socket is in a plan: one for each direction.
pub(crate) fn stream(fd: i32, is_send: bool) -> Option<u64> {
    Some(u64::try_from(fd).ok()? * 2 + u64::from(is_send))
}

/// A stream's socket. A number that is none is a socket that is closed.
fn socket(stream: u64) -> i32 {
    i32::try_from(stream / 2).unwrap_or(-1)
}

/// Places and bytes.
type Parts = SmallVec<[(u64, u64); 4]>;

/// One task at a socket.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub order: Order,
    fd: i32,
    /// Offset in the task of the next byte, and behind the last one.
    position: u64,
    end: u64,
    /// Of each landing: what was marked, and what became of the rest, if that is known.
    told: SmallVec<[(u32, Option<TaskFailure>); 2]>,
    /// A place of several is bad: which one shows when they are tried one by one.
    one_by_one: bool,
    /// What is between two sockets.
    relay: Option<Relay>,
    retry_at: Micros,
    retry_us: u64,
}

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Everything has gone.
    Done,
    /// The socket has to be waited for.
    Blocked,
    /// It is over.
    Failed(TaskFailure),
}

/// Segments of which there is something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    pub ticket: unlade_copy_scheduler::Ticket,
    pub bits: u32,
    /// They are there, or this is why they are not.
    pub failure: Option<TaskFailure>,
}

impl Transfer {
    /// An order at the socket of `stream`.
    pub fn new(order: Order, stream: u64) -> Transfer {
        let own = order.landings.first();
        let (position, end) = own.map_or((0, 0), range);
        let told = order.landings.iter().map(|_| (0, None)).collect();
        Transfer {
            fd: socket(stream),
            position,
            end,
            told,
            one_by_one: false,
            relay: None,
            retry_at: Micros(0),
            retry_us: RETRY_US_MIN,
            order,
        }
    }

    /// Gives it a way from socket to socket that was kept, if it needs one.
    pub fn lend(&mut self, relays: &mut Vec<Relay>) {
        let splices = |inlet: &Inlet| Relay::splices(inlet.len, self.fd);
        if self.order.inlet.as_ref().is_some_and(splices) {
            self.relay = relays.pop();
        }
    }

    /// Gives it back.
    pub fn give_back(&mut self, relays: &mut Vec<Relay>) {
        let relay = self.relay.take_if(|relay| relay.is_reusable());
        if relays.len() < RELAYS_MAX {
            relays.extend(relay);
        }
    }

    /// Bytes that were given to a second socket, and that were taken from the first.
    pub fn forwarded(&self) -> [u64; 2] {
        [self.position, self.position + self.relay.as_ref().map_or(0, Relay::held)]
    }

    /// Copies what is to be copied besides. Bytes copied.
    pub fn copy_edges(&mut self, space: &dyn Space) -> u64 {
        let mut copied_bytes = 0;
        for piece in std::mem::take(&mut self.order.copies) {
            match space.copy(piece.dst, piece.src, piece.len) {
                Ok(()) => copied_bytes += piece.len,
                Err(_) => self.give_up_taker(piece.src.wrapping_sub(self.order.home)),
            }
        }
        copied_bytes
    }

    /// When it is worth another attempt.
    pub fn retry_at(&self) -> Micros {
        self.retry_at
    }

    /// How many bytes go past their receive's destination.
    pub fn taken_bytes(&self) -> u64 {
        if let (Kind::Sink, Some(inlet)) = (self.order.kind, self.order.inlet) {
            return inlet.len;
        }
        let is_taken = |piece: &&Piece| !self.is_home(piece);
        let pieces = self.order.pieces.iter().filter(is_taken);
        if self.order.kind == Kind::Source { pieces.map(|piece| piece.len).sum() } else { 0 }
    }

    /// Goes on as far as the socket lets it. What was moved, and what it came to.
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
                Err(error) if error.raw_os_error() == Some(EFAULT) && self.goes_round() => {}
                Err(error) => {
                    let failure = TaskFailure::of_socket(&error);
                    if !self.takes_nevertheless(failure) {
                        return (moved_bytes, Attempt::Failed(failure));
                    }
                }
            }
        }
        (moved_bytes, Attempt::Done)
    }

    /// One system call's worth.
    fn step(&mut self, space: &dyn Space) -> io::Result<u64> {
        if let Some(inlet) = self.order.inlet.filter(|inlet| inlet.at <= self.position) {
            return self.pass_on(inlet);
        }
        let parts = self.parts();
        match (self.order.kind, &parts[..]) {
            (Kind::Sink, [(src, len)]) => space.send(self.fd, *src, *len),
            (Kind::Sink, parts) => space.send_gather(self.fd, parts),
            (_, [(dst, len)]) => space.receive(self.fd, *dst, *len),
            (_, parts) => space.receive_scatter(self.fd, parts),
        }
    }

    /// Bytes that a send was to take out of a stream go where a receive would have put them, since
    /// they cannot be sent: they are promised, and others come behind them. False where it is not
    /// the send that failed, or is given up.
    pub fn takes_nevertheless(&mut self, failure: TaskFailure) -> bool {
        let held = self.relay.as_ref().map_or(0, Relay::held);
        let inlet = self.order.inlet.filter(|inlet| held > 0 || self.position < inlet.at);
        let Some(inlet) = inlet.filter(|_| self.order.kind == Kind::Sink) else { return false };
        self.relay = None;
        if let Some((_, of_send)) = self.told.first_mut() {
            *of_send = Some(failure);
        }
        self.position = self.position.max(inlet.at) + held;
        self.fd = socket(inlet.stream);
        self.order.kind = Kind::Source;
        self.order.inlet = None;
        self.order.home = inlet.home.wrapping_sub(inlet.at);
        let piece = Piece { dst: inlet.home, src: inlet.at, len: inlet.len };
        self.order.pieces.clear();
        self.order.pieces.push(piece);
        true
    }

    /// From socket to socket; what was given to the second.
    fn pass_on(&mut self, inlet: Inlet) -> io::Result<u64> {
        let left = inlet.len - (self.position - inlet.at);
        let relay = self.relay.get_or_insert_with(|| Relay::new(inlet.len, self.fd));
        relay.pass_on(socket(inlet.stream), self.fd, left)
    }

    /// Where the next bytes go to or come from, as many places as fit one system call.
    fn parts(&self) -> Parts {
        let is_sink = self.order.kind == Kind::Sink;
        let most = if self.one_by_one { 1 } else { PARTS_MAX };
        let pieces = self.order.pieces.iter().filter_map(|piece| {
            let (at, place) = if is_sink { (piece.dst, piece.src) } else { (piece.src, piece.dst) };
            let skipped = self.position.saturating_sub(at);
            (skipped < piece.len).then(|| (place + skipped, piece.len - skipped))
        });
        pieces.take(most).collect()
    }

    /// A place is bad. True where the bytes can go on nevertheless: another place has to be found
    /// bad, or a taker's is, and they go where the receive puts them.
    fn goes_round(&mut self) -> bool {
        if self.order.kind != Kind::Source {
            return false;
        }
        if !self.one_by_one && self.parts().len() > 1 {
            self.one_by_one = true;
            return true;
        }
        let holds = |piece: &&Piece| self.position - piece.src.min(self.position) < piece.len;
        let next = self.order.pieces.iter().find(holds).copied();
        match next.filter(|piece| !self.is_home(piece)) {
            Some(piece) => {
                self.give_up_taker(piece.src);
                true
            }
            None => false,
        }
    }

    fn is_home(&self, piece: &Piece) -> bool {
        piece.dst == self.order.home.wrapping_add(piece.src)
    }

    /// The one whose bytes are at this offset does not take them.
    fn give_up_taker(&mut self, offset: u64) {
        let home = self.order.home;
        let takers = self.order.landings.iter().zip(&mut self.told).skip(1);
        for (landing, (_, bad)) in takers {
            let (from, to) = offsets(landing);
            if !(from..to).contains(&(offset as i64)) {
                continue;
            }
            *bad = Some(TaskFailure::BadAddress);
            for piece in &mut self.order.pieces {
                if (from..to).contains(&(piece.src as i64)) {
                    piece.dst = home.wrapping_add(piece.src);
                }
            }
            return;
        }
    }

    /// Segments that have come or gone since the last time, or whose place is bad.
    pub fn news(&mut self) -> SmallVec<[News; 2]> {
        let mut news = SmallVec::new();
        let all = self.position >= self.end;
        for (landing, (told, failure)) in self.order.landings.iter().zip(&mut self.told) {
            let arrived = if all { landing.bits } else { landing.arrived(self.position) };
            let bits = if failure.is_some() { landing.bits } else { arrived } & !*told;
            *told |= bits;
            if bits != 0 {
                news.push(News { ticket: landing.ticket, bits, failure: *failure });
            }
        }
        news
    }

    /// What has not come or gone, of each landing.
    pub fn missing(
        &self,
    ) -> impl DoubleEndedIterator<Item = (unlade_copy_scheduler::Ticket, u32)> + '_ {
        let landings = self.order.landings.iter().zip(&self.told);
        landings
            .map(|(landing, (told, _))| (landing.ticket, landing.bits & !told))
            .filter(|(_, bits)| *bits != 0)
    }
}

/// The bytes of a landing, as offsets in its task.
fn range(landing: &Landing) -> (u64, u64) {
    let (first, behind) = (landing.bits.trailing_zeros(), u32::BITS - landing.bits.leading_zeros());
    let count = behind.saturating_sub(first);
    let bytes = landing.segments.bytes(unlade_copy_scheduler::span::Run { first, count });
    (bytes.start, bytes.end())
}

/// The bytes of a landing, as offsets in the order's task.
fn offsets(landing: &Landing) -> (i64, i64) {
    let (start, end) = range(landing);
    (landing.offset.saturating_add(start as i64), landing.offset.saturating_add(end as i64))
}
