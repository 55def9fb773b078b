//! Pending answers of a connection: copied bytes, or values themselves.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::copies::{Arrival, Copies};
use crate::pool::Pool;
use crate::value::{CRLF, Value};

/// Size of a buffer for answers.
const BUFFER_BYTES: usize = 16 << 10;
/// Minimum length of a value that is prefetched before it is sent in place: for 256 KiB the send
/// then takes 0.83 of the time. Shorter values are often in the core's own cache already.
const PREFETCH_BYTES_MIN: usize = 32 << 10;
/// Maximum number of prefetched bytes, which that cache can hold.
const PREFETCH_BYTES_MAX: usize = 512 << 10;
/// Maximum number of parts in one message.
const PARTS_MAX: usize = 64;

/// Result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// All answers are sent.
    All,
    /// The socket does not accept more at present.
    Blocked,
    /// There are more bytes than the limit of this flush.
    More,
}

#[derive(Debug)]
enum Part<I> {
    Bytes(Vec<u8>),
    Value(Rc<Value<I>>),
}

/// Bytes still to be sent, in order.
#[derive(Debug)]
pub(crate) struct Output<I> {
    parts: VecDeque<Part<I>>,
    /// Number of bytes of the first part that are sent.
    sent: usize,
    /// Number of bytes that are still to be sent.
    bytes: usize,
    /// An empty buffer for later answers.
    spare: Vec<u8>,
    pool: Rc<Pool>,
    /// The client speaks RESP3.
    pub is_resp3: bool,
    /// Answers are dropped.
    pub is_muted: bool,
}

impl<I: Arrival> Output<I> {
    /// Creates an empty output.
    pub fn new(pool: &Rc<Pool>) -> Output<I> {
        let (parts, spare) = (VecDeque::new(), Vec::new());
        let pool = Rc::clone(pool);
        Output { parts, sent: 0, bytes: 0, spare, pool, is_resp3: false, is_muted: false }
    }

    /// Returns the number of bytes still to be sent.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Removes and returns all bytes.
    #[cfg(test)]
    pub fn take(&mut self) -> Vec<u8> {
        self.bytes = 0;
        let parts = std::mem::take(&mut self.parts);
        parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
    }

    /// Returns a buffer with room for `len` more bytes.
    fn room(&mut self, len: usize) -> &mut Vec<u8> {
        self.bytes += len;
        let has_room = match self.parts.back() {
            Some(Part::Bytes(buffer)) => buffer.capacity() - buffer.len() >= len,
            _ => false,
        };
        if !has_room {
            let spare = std::mem::take(&mut self.spare);
            let buffer = match spare.capacity() >= len.max(1) {
                true => spare,
                false => self.pool.take(len.max(BUFFER_BYTES)),
            };
            self.parts.push_back(Part::Bytes(buffer));
        }
        match self.parts.back_mut() {
            Some(Part::Bytes(buffer)) => buffer,
            _ => unreachable!("a buffer was pushed"),
        }
    }

    /// Appends bytes of an answer.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.is_muted {
            return;
        }
        self.room(bytes.len()).extend_from_slice(bytes);
    }

    /// Appends a simple string: `+…`
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Appends an error: `-…`, without characters that would end the line.
    pub fn error(&mut self, text: &str) {
        let text = text.trim_end_matches(['\r', '\n']).replace(['\r', '\n'], " ");
        self.line(b'-', text.as_bytes());
    }

    /// Appends an integer: `:…`
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Appends the head of an array of `len` answers.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// Appends the head of a map of `len` pairs.
    pub fn map(&mut self, len: usize) {
        self.aggregate(b'%', len, 2 * len);
    }

    /// Appends the head of a set of `len` answers.
    pub fn set(&mut self, len: usize) {
        self.aggregate(b'~', len, len);
    }

    fn aggregate(&mut self, kind: u8, len: usize, elements: usize) {
        match self.is_resp3 {
            true => self.number(kind, i64::try_from(len).unwrap_or(i64::MAX)),
            false => self.array(elements),
        }
    }

    /// Appends a null: no value.
    pub fn null(&mut self) {
        self.push(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Appends a null instead of an array.
    pub fn null_array(&mut self) {
        self.push(if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Appends a truth value; a number in RESP2.
    pub fn boolean(&mut self, is_true: bool) {
        match (self.is_resp3, is_true) {
            (true, true) => self.push(b"#t\r\n"),
            (true, false) => self.push(b"#f\r\n"),
            (false, _) => self.integer(i64::from(is_true)),
        }
    }

    /// Appends a line of one of RESP3's own types; a string in RESP2.
    pub fn typed(&mut self, kind: u8, text: &str) {
        match self.is_resp3 {
            true => self.line(kind, text.as_bytes()),
            false => self.bulk(text.as_bytes()),
        }
    }

    /// Appends a text for people.
    pub fn verbatim(&mut self, text: &str) {
        if self.is_resp3 {
            self.number(b'=', i64::try_from(text.len() + 4).unwrap_or(i64::MAX));
            self.push(b"txt:");
            self.push(text.as_bytes());
            self.push(CRLF);
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Appends the head of attributes, of `len` pairs, which precede an answer. Only in RESP3.
    pub fn attributes(&mut self, len: usize) {
        self.number(b'|', i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// Appends the head of a message that is no answer, of `len` elements. Only in RESP3.
    pub fn message(&mut self, len: usize) {
        self.number(b'>', i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// Appends a string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_head(bytes.len());
        self.push(bytes);
        self.push(CRLF);
    }

    /// Appends a value, as a copy or by reference. Returns false if the value was lost.
    pub fn value<C: Copies<Incoming = I>>(&mut self, copies: &C, value: &Rc<Value<I>>) -> bool {
        let Some(bytes) = value.with_crlf() else { return false };
        if self.is_muted {
            return true;
        }
        self.bulk_head(value.len());
        if copies.sends_in_place(value.len()) {
            self.bytes += bytes.len();
            self.parts.push_back(Part::Value(Rc::clone(value)));
        } else {
            self.push(bytes);
        }
        true
    }

    fn bulk_head(&mut self, len: usize) {
        self.number(b'$', i64::try_from(len).unwrap_or(i64::MAX));
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        if self.is_muted {
            return;
        }
        let buffer = self.room(text.len() + 3);
        buffer.push(kind);
        buffer.extend_from_slice(text);
        buffer.extend_from_slice(CRLF);
    }

    fn number(&mut self, kind: u8, number: i64) {
        let mut text = [0u8; 24];
        let mut rest = &mut text[..];
        // A number has at most 20 digits.
        let _ = write!(rest, "{number}");
        let len = 24 - rest.len();
        self.line(kind, &text[..len]);
    }

    /// Sends as much as the socket accepts, and at most `most` bytes.
    ///
    /// # Errors
    /// The socket's error; the peer receives no more.
    pub fn flush(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<Flushed> {
        let mut left = most;
        while !self.parts.is_empty() {
            if left == 0 {
                return Ok(Flushed::More);
            }
            match self.send(socket, left) {
                Ok(count) => {
                    self.forget(count);
                    left -= count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Flushed::Blocked),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Flushed::All)
    }

    /// Makes one send of at most `most` bytes.
    fn send(&self, socket: BorrowedFd<'_>, most: usize) -> rustix::io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        let (mut count, mut left, mut skip) = (0, most, self.sent);
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            let bytes = &part.bytes()[skip..];
            let bytes = &bytes[..bytes.len().min(left)];
            if let Part::Value(_) = part
                && bytes.len() >= PREFETCH_BYTES_MIN
            {
                unlade_copy::prefetch(&bytes[..bytes.len().min(PREFETCH_BYTES_MAX)]);
            }
            *slice = IoSlice::new(bytes);
            (count, left, skip) = (count + 1, left - bytes.len(), 0);
            if left == 0 {
                break;
            }
        }
        if count == 1 {
            return rustix::net::send(socket, &slices[0], flags);
        }
        let control = &mut SendAncillaryBuffer::default();
        rustix::net::sendmsg(socket, &slices[..count], control, flags)
    }

    /// Removes bytes that were sent.
    fn forget(&mut self, count: usize) {
        self.bytes -= count;
        self.sent += count;
        while let Some(len) = self.parts.front().map(|part| part.bytes().len())
            && len <= self.sent
        {
            self.sent -= len;
            if let Some(Part::Bytes(mut buffer)) = self.parts.pop_front() {
                buffer.clear();
                // Large buffers circulate between the clients, and stay in the caches.
                if self.spare.capacity() == 0 && buffer.capacity() <= BUFFER_BYTES {
                    self.spare = buffer;
                } else {
                    self.pool.give(buffer);
                }
            }
        }
    }
}

impl<I: Arrival> Part<I> {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            // The value was complete when it was pushed.
            Part::Value(value) => value.with_crlf().unwrap_or_default(),
        }
    }
}
