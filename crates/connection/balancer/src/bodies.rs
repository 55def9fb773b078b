//! Choice between splice(2) and a buffer for the bodies of plain connections.

use std::cell::Cell;

use crate::config::BodyPath;

/// Shortest part of a body that is spliced.
const SPLICE_BYTES_MIN: u64 = 64 * 1024;
/// Bytes of the first read of a response: a head, and a body too short for splice(2). Of a long
/// body no more than this is copied, and less where long bodies are usual ([`HEAD_READ_BYTES`]).
const FIRST_READ_BYTES: usize = 66 * 1024;
/// Bytes of the first read where everything possible is spliced, or recent bodies were long.
const HEAD_READ_BYTES: usize = 4 * 1024;
/// Shortest body that is cheaper with two reads and no copy than with one read that copies the
/// first quarter or more of it.
const LONG_BYTES_MIN: u64 = 128 * 1024;
/// Long bodies are usual if at least this many of the last eight were long.
const LONG_OF_EIGHT: u32 = 6;

/// Lengths of the last response bodies.
#[derive(Debug, Default)]
pub(crate) struct RecentBodies {
    /// One bit for each of the last eight bodies, set if the body was long.
    long: Cell<u8>,
}

impl RecentBodies {
    /// Records the length of a response body.
    pub(crate) fn note(&self, bytes: u64) {
        self.long.set(self.long.get() << 1 | u8::from(bytes >= LONG_BYTES_MIN));
    }

    fn are_long(&self) -> bool {
        self.long.get().count_ones() >= LONG_OF_EIGHT
    }
}

impl BodyPath {
    /// Returns the bytes of the first read of a response that may be spliced. Only the lengths of
    /// recent responses are known then.
    pub(crate) fn first_read_bytes(self, recent: Option<&RecentBodies>) -> usize {
        match self {
            BodyPath::Auto if recent.is_some_and(RecentBodies::are_long) => HEAD_READ_BYTES,
            BodyPath::Auto => FIRST_READ_BYTES,
            BodyPath::Splice => HEAD_READ_BYTES,
            BodyPath::Copy => usize::MAX,
        }
    }

    /// Returns true if a part of `bytes` is spliced.
    pub(crate) fn splices(self, bytes: u64) -> bool {
        match self {
            BodyPath::Auto => bytes >= SPLICE_BYTES_MIN,
            BodyPath::Splice => bytes > 0,
            BodyPath::Copy => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_spliced_unless_the_operator_says_otherwise() {
        assert!(BodyPath::Auto.splices(1 << 20) && !BodyPath::Auto.splices(1000));
        assert!(BodyPath::Splice.splices(1) && !BodyPath::Splice.splices(0));
        assert!(!BodyPath::Copy.splices(u64::MAX));
        let first = [BodyPath::Splice, BodyPath::Auto, BodyPath::Copy];
        assert!(first.map(|path| path.first_read_bytes(None)).is_sorted());
    }

    #[test]
    fn where_long_bodies_are_usual_only_the_head_is_read_first() {
        let recent = RecentBodies::default();
        let first_read_bytes = |bodies: &[u64]| {
            bodies.iter().for_each(|bytes| recent.note(*bytes));
            BodyPath::Auto.first_read_bytes(Some(&recent))
        };
        assert_eq!(first_read_bytes(&[256 << 10; 5]), FIRST_READ_BYTES);
        assert_eq!(first_read_bytes(&[256 << 10]), HEAD_READ_BYTES);
        assert_eq!(first_read_bytes(&[100, 256 << 10, 100]), HEAD_READ_BYTES);
        assert_eq!(first_read_bytes(&[100]), FIRST_READ_BYTES);
    }
}
