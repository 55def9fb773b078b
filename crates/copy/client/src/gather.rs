//! Sends past deferred copies: bytes that a program has received, copied and sends on are sent from
//! where they were received.
//!
//! ```text
//!  recv ─► A ── deferred copy ──► B ── send of B     the socket gets the bytes from A
//!          │                                          B is written only if something looks at it
//!          └─ A changes before the socket has taken them: the rest is saved and sent from there
//! ```
//! A queued send of this kind depends on no other task: older tasks that write its pieces are over
//! when it is queued, and the table of deferred copies saves a piece before it changes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use unlade_copy_service::{HeldBytes, TaskFailure};
use unlade_shm::segment::{self, Run};
use unlade_shm::{Flags, Task, Ticket};

use crate::admission::SEND_BYTES_MIN;
use crate::at_once::hint_for;
use crate::blocking::{send_all, send_pieces};
use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::deferred::{Deferral, PIECES_MAX, Piece, Table};
use crate::error::CopyError;
use crate::held::HeldSend;
use crate::pending::{Kind, Queued};

/// An address that no process can read, for bytes that could not be saved.
const NOWHERE: u64 = u64::MAX - 2 * TASK_BYTES_MAX as u64;

/// Result of an attempt to send past deferred copies.
enum Attempt {
    /// An ordinary send, which needs this number of bytes of deferred copies.
    Plain(usize),
    Queued(Token),
    /// The socket has taken this number of bytes; the rest needs so many of deferred copies.
    Sent(usize, usize),
}

impl Copier {
    /// Sends bytes of which deferred copies would write some. Returns `None` if there are none:
    /// then the send is an ordinary one.
    ///
    /// # Errors
    /// As for [`Copier::send`].
    ///
    /// # Safety
    /// As for [`Copier::send`].
    #[inline]
    pub(crate) unsafe fn send_past_deferred(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> io::Result<Option<Token>> {
        let readers = options.handler.is_some();
        match self.deferred().may_touch(&(src.addr()..src.addr() + len), readers) {
            // SAFETY: the caller's promise.
            true => unsafe { self.send_gathered(fd, src, len, options) },
            false => Ok(None),
        }
    }

    /// # Safety
    /// As for [`Copier::send`].
    #[cold]
    unsafe fn send_gathered(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
        options: &CopyOptions,
    ) -> io::Result<Option<Token>> {
        let start = src.expose_provenance();
        if options.handler.is_some() {
            // The handler may free the bytes, so nothing may need them then.
            self.make_deferred_where(|copy| {
                copy.writing(start, len) | copy.reading(start, len) != 0
            });
            return Ok(None);
        }
        let is_long = len >= SEND_BYTES_MIN || options.queued;
        if !is_long {
            let socket = Some(fd.as_raw_fd() as usize);
            self.each_queued_of(0..0, |queued| match queued.destination_socket() == socket {
                true => queued.all(),
                false => 0,
            });
        }
        let attempt = self.deferred().with(|table| {
            table.drop_sent(|send| self.is_sent(send));
            let Some(pieces) = table.pieces(&(start..start + len)) else {
                return Ok(Attempt::Plain(0));
            };
            let all = forwarded(&pieces, len);
            let may_hold = table.may_hold(&pieces);
            if is_long && !may_hold || pieces.len() > PIECES_MAX {
                return Ok(Attempt::Plain(all));
            }
            self.complete_writers(&pieces)?;
            if is_long && !self.sends_here(fd, options) {
                let token = self.hold(table, fd, &pieces, [len, 0], options);
                return Ok(token.map_or(Attempt::Plain(all), Attempt::Queued));
            }
            // SAFETY: the caller's promise, and that of the submitters of the deferred copies; no
            // task writes the bytes. A thread that wants to change them waits for the table.
            let sent = unsafe { send_pieces(fd, &pieces) }?;
            if is_long
                && sent < len
                && let Some(token) = self.hold(table, fd, &pieces, [len, sent], options)
            {
                return Ok(Attempt::Queued(token));
            }
            let past = forwarded(&pieces, sent);
            self.stats().count_forwarded(past);
            Ok::<_, io::Error>(Attempt::Sent(sent, all - past))
        })?;
        match attempt {
            Attempt::Queued(token) => return Ok(Some(token)),
            Attempt::Sent(sent, _) if sent == len => {}
            Attempt::Sent(sent, saved) => {
                // The socket may accept nothing for long: its bytes must not hold up the source.
                let rest = start + sent..start + len;
                self.stats().count_saved(saved);
                self.make_deferred_where(|copy| copy.writing(rest.start, rest.len()) != 0);
                // SAFETY: the caller's promise; no task and no deferred copy writes the bytes.
                send_all(fd, unsafe { std::slice::from_raw_parts(src.add(sent), rest.len()) })?;
            }
            Attempt::Plain(saved) => {
                self.stats().count_saved(saved);
                self.make_deferred_where(|copy| copy.writing(start, len) != 0);
                return Ok(None);
            }
        }
        self.stats().count_at_once(len);
        Ok(Some(Token::DONE))
    }

    /// Completes the tasks that write the pieces.
    ///
    /// # Errors
    /// The first error of such a task: its bytes are lost.
    fn complete_writers(&self, pieces: &[Piece]) -> io::Result<()> {
        let (mut at, head) = (self.pending().completed(), self.queue().head());
        let mut completed = Ok(());
        while at < head {
            if let Some(queued) = self.pending().get(at) {
                let writing = |piece: &Piece| queued.writing(piece.address, piece.len);
                let bits = pieces.iter().map(writing).fold(0, |bits, more| bits | more);
                if bits != 0
                    && !self.queue().progress(at).is_done(bits)
                    && let Err(code) = self.complete_unreported(at, bits)
                {
                    self.failures().keep(at, code, queued.written());
                    completed = completed.and(Err(CopyError::Failed(TaskFailure::of(code))));
                }
            }
            at = at.next();
        }
        completed.map_err(io::Error::from)
    }

    /// Returns true if this thread sends what the socket takes at once. Measured, that takes less
    /// time than `memcpy` and a send from 64 KiB on; a service that shared its processor took up
    /// to 26 times as long.
    fn sends_here(&self, fd: BorrowedFd<'_>, options: &CopyOptions) -> bool {
        let socket = Some(fd.as_raw_fd() as usize);
        !options.queued && !self.is_sending(socket)
    }

    /// Queues a send of these pieces, of which some of the first bytes were sent. `None` if no task
    /// is free.
    fn hold(
        &self,
        table: &mut Table,
        fd: BorrowedFd<'_>,
        pieces: &[Piece],
        [len, sent]: [usize; 2],
        options: &CopyOptions,
    ) -> Option<Token> {
        let ticket = self.acquire_here(len)?;
        let mut task = Task::copy(0, 0, len as u32);
        let places = pieces.iter().map(|piece| (piece.address as u64, piece.len as u64));
        let held = HeldBytes::new(places, sent as u64);
        let send = Arc::new(HeldSend::new(ticket, task.bits(), held, len));
        // Nothing else has bytes there: the service regards no dependency of the send.
        task.src = send.spare() as u64;
        task.kind = unlade_shm::Kind::Send;
        task.fd = fd.as_raw_fd();
        if let Some(local) = self.local() {
            local.held_sends().add(ticket, Arc::clone(&send.bytes));
        }
        table.hold(&send, pieces);
        self.stats().count_forwarded(forwarded(pieces, len));
        Some(self.publish(ticket, Kind::Send, task, options))
    }

    /// Returns true if a send is over. Nothing moves its bytes from now on.
    pub(crate) fn is_sent(&self, send: &HeldSend) -> bool {
        let is_over = self.queue().progress(send.ticket).is_done(send.all);
        if is_over && let Some(local) = self.local() {
            local.held_sends().remove(send.ticket);
        }
        is_over
    }

    /// Saves a piece that is about to change: what the socket has not taken of it.
    pub(crate) fn save_piece(&self, copy: &Deferral, send: &HeldSend, number: usize) {
        let done = self.queue().progress(send.ticket).done() & send.all;
        if done == send.all || self.is_orphan() {
            return;
        }
        let len_bytes = send.len() as u32;
        let run = Run { first: 0, count: done.trailing_ones() };
        let gone = segment::bytes_of(run, len_bytes, segment::granule_shift_for(len_bytes)).end;
        let gone = send.bytes.sent().max(gone.into()) as usize;
        let at = copy.dst - send.spare();
        let skipped = gone.saturating_sub(at).min(copy.len);
        let to = std::ptr::with_exposed_provenance_mut(copy.dst + skipped);
        let from = std::ptr::with_exposed_provenance(copy.src + skipped);
        let left = copy.len - skipped;
        // SAFETY: the source is as for a deferred copy. The destination is spare memory of the
        // send, which stays while the send is in the table. No thread uses it before `move_to`.
        let saved = unsafe { self.copy_now(to, from, left, hint_for(left)) };
        // The service reports a bad address as the error of the send.
        send.bytes.move_to(number, saved.map_or(NOWHERE, |()| copy.dst as u64));
        self.stats().count_saved(left);
    }

    /// Sends bytes that the program will not look at again, neither there nor, if a deferred copy
    /// would write exactly them, in the source of this copy: the copy is dropped. Bytes that the
    /// service has still to receive there ([`Copier::receive_lazily`]) go from socket to socket, as
    /// by [`Copier::send_on`]; all others are sent as by [`Copier::send`]. Afterwards the content
    /// of both places is undefined.
    ///
    /// # Errors
    /// As for [`Copier::send`].
    ///
    /// # Safety
    /// As for [`Copier::send`]; and the bytes, and those of the deferred copy's source, are not
    /// read until something has been written there.
    ///
    /// # Panics
    /// Panics if `len` is above [`TASK_BYTES_MAX`].
    pub unsafe fn pass_on(
        &self,
        fd: BorrowedFd<'_>,
        src: *const u8,
        len: usize,
    ) -> io::Result<Token> {
        assert!(len <= TASK_BYTES_MAX, "{len} bytes in one task");
        let bytes = src.addr()..src.addr() + len;
        let passed = self.deferred().with(|table| {
            let past = table.exactly(&bytes).cloned();
            let from = past.as_ref().map_or(bytes.start, |copy| copy.src);
            if !self.is_coming(from, len) {
                return None;
            }
            // All others that need these bytes.
            let is_due = |copy: &Deferral| {
                let is_past = past.as_ref().is_some_and(|past| past.id == copy.id);
                !is_past && (copy.meets_source(from, len) || copy.meets_destination(from, len))
            };
            table.make(is_due, |copy| self.make_deferred(copy));
            let ticket = self.acquire_here(len)?;
            if let Some(copy) = &past {
                table.drop_copy(copy.id);
            }
            Some((ticket, from))
        });
        let Some((ticket, from)) = passed else {
            // SAFETY: the caller's promise.
            let token = unsafe { self.send(fd, src, len, &CopyOptions::default()) };
            self.discard(bytes.start, len);
            return token;
        };
        Ok(self.send_last_use(ticket, fd, from, len))
    }

    /// Queues a send that gives its bytes up.
    pub(crate) fn send_last_use(
        &self,
        ticket: Ticket,
        fd: BorrowedFd<'_>,
        src: usize,
        len: usize,
    ) -> Token {
        let mut task = Task::copy(0, src as u64, len as u32);
        (task.kind, task.flags, task.fd) =
            (unlade_shm::Kind::Send, Flags::LAST_USE, fd.as_raw_fd());
        let token = self.publish(ticket, Kind::Send, task, &CopyOptions::default());
        // The caller may never wait for this send, so wake the service here.
        if !self.is_awake() {
            self.ring();
        }
        token
    }

    /// Returns true if a receive has still to write some of these bytes.
    fn is_coming(&self, address: usize, len: usize) -> bool {
        self.is_any_under_way(|queued| match queued.kind {
            Kind::Receive => queued.writing(address, len),
            _ => 0,
        })
    }

    /// Returns true if segments that `bits` names are not done, of any queued task.
    pub(crate) fn is_any_under_way(&self, bits: impl Fn(&Queued) -> u32) -> bool {
        let (mut at, head) = (self.pending().completed(), self.queue().head());
        while at < head {
            let bits = self.pending().get(at).map_or(0, |queued| bits(&queued));
            if bits != 0 && !self.queue().progress(at).is_done(bits) {
                return true;
            }
            at = at.next();
        }
        false
    }
}

/// Number of the first `len` bytes that are sent past a deferred copy.
fn forwarded(pieces: &[Piece], len: usize) -> usize {
    let mut left = len;
    let taken = pieces.iter().map(|piece| {
        let taken = piece.len.min(left);
        left -= taken;
        if piece.is_past_copy { taken } else { 0 }
    });
    taken.sum()
}
