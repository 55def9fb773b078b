//! State of one stream socket: the messages that a program reads from it; no I/O.
//!
//! A program that reads a header and the begin of a body in one call moves the body down over the
//! header: a *shift*. If the first read of a message returns only [`FIRST_READ_BYTES`], the program
//! finds the header in them, shifts little, and reads the rest to its place. A stream socket may
//! always return fewer bytes than were asked for.

/// Maximum number of bytes that a shortened read returns.
pub const FIRST_READ_BYTES: usize = 16 << 10;
const BYTES_BITS: u32 = 40;
const BYTES_MAX: u64 = (1 << BYTES_BITS) - 1;

/// State of one descriptor. It fits in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// An epoll instance watches the descriptor, level-triggered.
    pub is_level: bool,
    /// A read was shortened, and the rest of its message has not come yet.
    pub has_rest: bool,
    /// Binary logarithm of the length of the last message; 0 if none is known.
    pub class: u8,
    /// Bytes of this message until now.
    pub bytes: u64,
}

impl Stream {
    /// The state in one word.
    pub fn pack(self) -> u64 {
        u64::from(self.is_level)
            | u64::from(self.has_rest) << 1
            | u64::from(self.class & 63) << 2
            | self.bytes.min(BYTES_MAX) << 8
    }

    /// The state that [`Stream::pack`] has packed.
    pub fn unpack(word: u64) -> Stream {
        Stream {
            is_level: word & 1 != 0,
            has_rest: word & 2 != 0,
            class: (word >> 2 & 63) as u8,
            bytes: word >> 8 & BYTES_MAX,
        }
    }

    /// True if the next read begins a message that is probably as long as `1 << class_min` bytes.
    pub fn begins_long(&self, class_min: u8) -> bool {
        self.is_level && !self.has_rest && self.class >= class_min
    }

    /// Takes the result of a read that was not shortened: `asked` and `got` in bytes. Returns the
    /// length of a message, in bytes, of which the first read was shortened and that ends here.
    pub fn read(&mut self, asked: usize, got: usize) -> Option<u64> {
        self.bytes = self.bytes.saturating_add(got as u64).min(BYTES_MAX);
        if !self.has_rest || got != asked {
            return None;
        }
        let length = self.bytes;
        self.has_rest = false;
        self.end(length);
        self.bytes = 0;
        Some(length)
    }

    /// Takes the result of a shortened read.
    pub fn read_shortened(&mut self, got: usize) {
        self.bytes = got as u64;
        self.has_rest = got == FIRST_READ_BYTES;
    }

    /// Takes a shift of bytes of the last read, which has returned `last` bytes.
    pub fn shifted(&mut self, last: usize) {
        let length = self.bytes.saturating_sub(last as u64);
        self.end(length);
        self.bytes = last as u64;
        self.has_rest = false;
    }

    fn end(&mut self, length: u64) {
        if length > 0 {
            self.class = length.ilog2() as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTH: usize = 262_200;
    const LEVEL: Stream = Stream { is_level: true, has_rest: false, class: 0, bytes: 0 };

    #[test]
    fn a_length_is_known_after_two_shifts() {
        let mut stream = LEVEL;
        for _ in 0..2 {
            assert!(!stream.begins_long(17));
            stream.read(LENGTH + 100, 100_000);
            stream.shifted(100_000);
            stream.read(LENGTH - 100_000, LENGTH - 100_000);
        }
        stream.read(LENGTH + 100, 50_000);
        stream.shifted(50_000);
        assert!(stream.begins_long(17) && stream.begins_long(18) && !stream.begins_long(19));
    }

    #[test]
    fn a_message_is_shortened_once_and_ends_with_a_filled_buffer() {
        let mut stream = Stream { class: 18, ..LEVEL };
        stream.read_shortened(FIRST_READ_BYTES);
        assert!(!stream.begins_long(17));
        assert_eq!(stream.read(LENGTH - FIRST_READ_BYTES, 70_000), None);
        let rest = LENGTH - FIRST_READ_BYTES - 70_000;
        assert_eq!(stream.read(rest, rest), Some(LENGTH as u64));
        assert!(stream.begins_long(17));
        stream.read_shortened(100);
        assert!(stream.begins_long(17), "a short message had no rest");
    }

    proptest! {
        #[test]
        fn a_word_holds_the_state(is_level: bool, has_rest: bool, class in 0u8..64, bytes in 0..=BYTES_MAX) {
            let stream = Stream { is_level, has_rest, class, bytes };
            prop_assert_eq!(Stream::unpack(stream.pack()), stream);
        }

        #[test]
        fn any_history_leaves_a_valid_state(steps in prop::collection::vec((0u8..3, 0usize..1 << 40), 0..64)) {
            let mut stream = LEVEL;
            for (step, bytes) in steps {
                match step {
                    0 => { stream.read(1 << 20, bytes); }
                    1 => stream.read_shortened(bytes.min(FIRST_READ_BYTES)),
                    _ => stream.shifted(bytes),
                }
                prop_assert_eq!(Stream::unpack(stream.pack()), stream);
                prop_assert!(stream.is_level);
            }
        }
    }
}
