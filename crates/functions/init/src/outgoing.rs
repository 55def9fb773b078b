//! A body on its way to the host, and what is kept of it: the host may ask for a body again, and an
//! SDK sends it once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{Error, Result};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

/// Bytes of a body that are collected before they are copied into slots.
pub const PIECE_BYTES: usize = 256 * 1024;
/// Most calls whose bodies were lost that are remembered.
const LOST_MAX: usize = 64;

/// A body on its way to the host.
pub trait Source {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The body breaks off.
    async fn next(&mut self) -> Result<Option<Bytes>>;
}

/// A body that is in memory.
pub struct Whole(pub Option<Bytes>);

impl Source for Whole {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        Ok(self.0.take())
    }
}

/// Memory for bodies that are kept, of all calls together.
#[derive(Debug)]
pub struct Budget {
    left_bytes: Cell<usize>,
}

impl Budget {
    /// A budget of which nothing is used.
    pub fn new(bytes: usize) -> Rc<Budget> {
        Rc::new(Budget { left_bytes: Cell::new(bytes) })
    }
}

/// The bytes that the host has got, kept to be sent again.
struct Kept {
    budget: Rc<Budget>,
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Kept {
    /// Keeps a piece; false if there is no room for it.
    fn push(&mut self, piece: Bytes) -> bool {
        let Some(left) = self.budget.left_bytes.get().checked_sub(piece.len()) else {
            return false;
        };
        self.budget.left_bytes.set(left);
        self.bytes += piece.len();
        self.pieces.push(piece);
        true
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget.left_bytes.set(self.budget.left_bytes.get() + self.bytes);
    }
}

/// A body that can be sent again as long as it is kept.
pub struct Outgoing<S> {
    source: S,
    /// Bytes that are sent again, before those of the source.
    again: VecDeque<Bytes>,
    /// The next bytes for the host.
    ready: BytesMut,
    /// Bytes of the body that the host has not got, `ready` included.
    left_bytes: u64,
    length_bytes: u64,
    kept: Option<Kept>,
    /// Bytes of the source that have not come yet.
    source_left_bytes: u64,
    has_ended: bool,
}

impl<S: Source> Outgoing<S> {
    /// A body of `length_bytes`, kept while the budget has room for it.
    pub fn new(source: S, length_bytes: u64, budget: &Rc<Budget>) -> Outgoing<S> {
        Outgoing {
            source,
            again: VecDeque::new(),
            ready: BytesMut::new(),
            left_bytes: length_bytes,
            length_bytes,
            kept: Some(Kept { budget: budget.clone(), pieces: Vec::new(), bytes: 0 }),
            source_left_bytes: length_bytes,
            has_ended: false,
        }
    }

    /// Length of the whole body.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Bytes that the host has not got.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// The bytes that are collected for the host.
    pub fn ready(&self) -> &[u8] {
        &self.ready
    }

    /// Collects a piece, or all that is left: then the source has to end.
    ///
    /// # Errors
    /// The body breaks off, or has another length than announced.
    pub async fn collect(&mut self) -> Result<()> {
        let due = self.left_bytes.min(PIECE_BYTES as u64) as usize;
        while self.ready.len() < due {
            if let Some(bytes) = self.again.pop_front() {
                self.ready.extend_from_slice(&bytes);
                continue;
            }
            let Some(bytes) = self.source.next().await? else {
                return Err(Error::other("the body is shorter than announced"));
            };
            let left = self.source_left_bytes.checked_sub(bytes.len() as u64);
            self.source_left_bytes =
                left.ok_or_else(|| Error::other("the body is longer than announced"))?;
            self.ready.extend_from_slice(&bytes);
        }
        // The end may be behind more bytes of its coding.
        while self.source_left_bytes == 0 && !self.has_ended {
            match self.source.next().await? {
                None => self.has_ended = true,
                Some(bytes) if bytes.is_empty() => {}
                Some(_) => return Err(Error::other("the body is longer than announced")),
            }
        }
        Ok(())
    }

    /// The host has got the first `bytes` of those that are ready.
    pub fn sent(&mut self, bytes: usize) {
        let piece = self.ready.split_to(bytes).freeze();
        self.left_bytes -= piece.len() as u64;
        if let Some(kept) = &mut self.kept
            && !kept.push(piece)
        {
            self.kept = None;
        }
    }

    /// Goes back to the start; false if the body is no longer kept.
    pub fn rewind(&mut self) -> bool {
        if self.left_bytes == self.length_bytes {
            return true;
        }
        let Some(kept) = &mut self.kept else { return false };
        let unsent = std::mem::take(&mut self.ready).freeze();
        let before = std::mem::take(&mut self.again);
        self.again = std::mem::take(&mut kept.pieces).into();
        self.again.push_back(unsent);
        self.again.extend(before);
        // Its bytes are counted once more as they are sent.
        let freed = std::mem::take(&mut kept.bytes);
        kept.budget.left_bytes.set(kept.budget.left_bytes.get() + freed);
        self.left_bytes = self.length_bytes;
        true
    }

    /// Takes the rest of the source, and drops it.
    pub async fn drain(mut self) {
        drop((self.kept.take(), std::mem::take(&mut self.again)));
        while let Ok(Some(_)) = self.source.next().await {}
    }
}

/// Calls whose bodies the host has lost and this side has not kept. The SDK sends them again by
/// itself: its next request is then another attempt of the same call.
#[derive(Debug, Default)]
pub struct Lost(VecDeque<(String, u64)>);

impl Lost {
    /// Remembers a call by its text; beyond the limit the oldest one is forgotten.
    pub fn put(&mut self, text: String, call: u64) {
        if self.0.len() >= LOST_MAX {
            self.0.pop_front();
        }
        self.0.push_back((text, call));
    }

    /// Takes the number of a call with this text.
    pub fn take(&mut self, text: &str) -> Option<u64> {
        let at = self.0.iter().position(|(known, _)| known == text)?;
        self.0.remove(at).map(|(_, call)| call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    /// A source in pieces of any length.
    struct Pieces(VecDeque<Bytes>);

    impl Source for Pieces {
        async fn next(&mut self) -> Result<Option<Bytes>> {
            Ok(self.0.pop_front())
        }
    }

    fn now<T>(work: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(work).poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("nothing here waits"),
        }
    }

    /// Sends a body with rewinds at random places; compares with the body itself, and the budget
    /// with the sum of what is kept.
    #[test]
    fn a_body_that_is_kept_is_sent_again_as_it_was() {
        cases(200, |random| {
            let length = random.below(900_000_usize);
            let body = random.bytes(length);
            let mut pieces = VecDeque::new();
            let mut rest = body.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.below(rest.len().min(300_000)) + 1);
                pieces.push_back(Bytes::copy_from_slice(piece));
                rest = after;
            }
            let room = random.pick(&[0, 300_000, 1 << 20]);
            let budget = Budget::new(room);
            let mut outgoing = Outgoing::new(Pieces(pieces), body.len() as u64, &budget);
            let (mut got, mut rewinds) = (Vec::new(), 0);
            while outgoing.left_bytes() > 0 {
                now(outgoing.collect()).unwrap();
                let most = outgoing.ready().len();
                assert!(most > 0);
                let bytes = most.min(random.below(most) + 1);
                got.extend_from_slice(&outgoing.ready()[..bytes]);
                outgoing.sent(bytes);
                assert_eq!(outgoing.left_bytes(), (body.len() - got.len()) as u64);
                let is_kept = got.len() <= room;
                assert_eq!(budget.left_bytes.get(), if is_kept { room - got.len() } else { room });
                if rewinds < 3 && random.once_in(4) {
                    rewinds += 1;
                    assert_eq!(outgoing.rewind(), is_kept);
                    if is_kept {
                        got.clear();
                    }
                }
            }
            now(outgoing.collect()).unwrap();
            assert!(got == body);
            drop(outgoing);
            assert_eq!(budget.left_bytes.get(), room);
        });
    }

    #[test]
    fn another_length_than_announced_is_an_error() {
        let budget = Budget::new(0);
        for (announced, is_right) in [(4, false), (5, true), (6, false)] {
            let pieces = [&b"he"[..], b"llo", b""].map(Bytes::from_static);
            let mut outgoing = Outgoing::new(Pieces(pieces.into()), announced, &budget);
            assert_eq!(now(outgoing.collect()).is_ok(), is_right, "{announced}");
        }
    }

    #[test]
    fn lost_calls_are_found_once_and_bounded() {
        let mut lost = Lost::default();
        for call in 0..=LOST_MAX as u64 {
            lost.put(format!("put {call}"), call);
        }
        assert_eq!(lost.take("put 0"), None);
        assert_eq!((lost.take("put 1"), lost.take("put 1")), (Some(1), None));
    }
}
