//! Which way the bodies of plain connections go: by splice(2), or through a buffer.

use std::cell::Cell;

use crate::config::BodyPath;

/// A stretch of a body at least so long is spliced.
const SPLICE_BYTES_MIN: u64 = 64 * 1024;
/// Bytes of the first read of an answer: a head and what can do without splice(2); of a large
/// body no more is copied than that, and less where large ones are usual.
const FIRST_READ_BYTES: usize = 66 * 1024;
/// The same where everything is spliced that can be, or bodies of late were long.
const HEAD_READ_BYTES: usize = 4 * 1024;
/// A body so long is cheaper with two reads and no copy than with one read that copies the first
/// quarter or more of it.
const LONG_BYTES_MIN: u64 = 128 * 1024;
/// So many of the last eight answers are long where long ones are usual.
const LONG_OF_EIGHT: u32 = 6;

/// How long the bodies of the last answers were.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// A bit for each of the last eight: it was long.
    long: Cell<u8>,
}

impl Recent {
    /// An answer had a body of so many bytes.
    pub(crate) fn note(&self, bytes: u64) {
        self.long.set(self.long.get() << 1 | u8::from(bytes >= LONG_BYTES_MIN));
    }

    fn are_long(&self) -> bool {
        self.long.get().count_ones() >= LONG_OF_EIGHT
    }
}

impl BodyPath {
    /// Bytes of an answer that are read before anything is known of it, but for how long others
    /// were, where it may be spliced.
    pub(crate) fn first_read_bytes(self, recent: Option<&Recent>) -> usize {
        match self {
            BodyPath::Auto if recent.is_some_and(Recent::are_long) => HEAD_READ_BYTES,
            BodyPath::Auto => FIRST_READ_BYTES,
            BodyPath::Splice => HEAD_READ_BYTES,
            BodyPath::Copy => usize::MAX,
        }
    }

    /// Whether a stretch of `bytes` is spliced.
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
        let recent = Recent::default();
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
