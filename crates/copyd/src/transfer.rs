//! Copies from and to sockets: under way until all bytes have gone, however often the socket has to
//! be waited for.
//!
//! The order of such a task stays outstanding meanwhile, so that everything that does not depend on
//! it goes on.

use copyplan::Micros;
use copyplan::plan::Order;
use copyplan::task::Kind;
use copyunit::Space;
use std::io::ErrorKind;

use crate::error::TaskFailure;

/// A socket that has nothing, or takes nothing, is asked again after so long; twice as long each
/// time, ...
const RETRY_US_MIN: u64 = 20;
/// ... and at most so long.
const RETRY_US_MAX: u64 = 1_000;
/// Tasks at sockets that are under way at a time; fewer than orders may be outstanding.
pub(crate) const TRANSFERS_MAX: usize = 48;

/// The stream that a socket is in a plan: one for each direction.
pub(crate) fn stream(fd: i32, is_send: bool) -> Option<u64> {
    Some(u64::try_from(fd).ok()? * 2 + u64::from(is_send))
}

/// One task at a socket.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub order: Order,
    fd: i32,
    /// Of the piece that is under way.
    piece: usize,
    piece_bytes: u64,
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

impl Transfer {
    /// A task at the socket of `stream`.
    pub fn new(order: Order, stream: u64) -> Transfer {
        // A number that is none is a socket that is closed.
        let fd = i32::try_from(stream / 2).unwrap_or(-1);
        let (retry_at, retry_us) = (Micros(0), RETRY_US_MIN);
        Transfer { order, fd, piece: 0, piece_bytes: 0, retry_at, retry_us }
    }

    /// When it is worth another attempt.
    pub fn retry_at(&self) -> Micros {
        self.retry_at
    }

    /// Goes on as far as the socket lets it. What was moved, and what it came to.
    pub fn attempt(&mut self, space: &dyn Space, now: Micros) -> (u64, Attempt) {
        let mut moved_bytes = 0;
        while let Some(piece) = self.order.pieces.get(self.piece) {
            let left = piece.len - self.piece_bytes;
            if left == 0 {
                (self.piece, self.piece_bytes) = (self.piece + 1, 0);
                continue;
            }
            let moved = match self.order.kind {
                Kind::Sink => space.send(self.fd, piece.src + self.piece_bytes, left),
                _ => space.receive(self.fd, piece.dst + self.piece_bytes, left),
            };
            match moved {
                Ok(0) => return (moved_bytes, Attempt::Failed(TaskFailure::Ended)),
                Ok(bytes) => {
                    self.piece_bytes += bytes;
                    moved_bytes += bytes;
                    self.retry_us = RETRY_US_MIN;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.retry_at = Micros(now.0 + self.retry_us);
                    self.retry_us = (2 * self.retry_us).min(RETRY_US_MAX);
                    return (moved_bytes, Attempt::Blocked);
                }
                Err(error) => {
                    let failure = TaskFailure::of_socket(&error);
                    return (moved_bytes, Attempt::Failed(failure));
                }
            }
        }
        (moved_bytes, Attempt::Done)
    }
}
