//! The line of one task: eight words, the first of which is written last.
//!
//! | word | holds |
//! |---|---|
//! | 0 | generation (32 high bits), spare, granule shift, flags, kind (8 bits each) |
//! | 1, 2 | destination, source |
//! | 3 | delay in µs (32 high bits), length in bytes |
//! | 4, 5 | handler, its argument |
//! | 6 | file descriptor (32 high bits), region of the source, of the destination (16 each) |
//! | 7 | extra |

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::segment::{self, GRANULE_SHIFT_MAX, GRANULE_SHIFT_MIN, SEGMENTS_MAX};

/// Words of a line.
const WORDS: usize = 8;
/// XOR mask of the generation while a line is written. It changes the generation by half of the
/// range, so no valid ticket has the result.
const BEING_WRITTEN: u32 = 1 << 31;

/// Kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Memory to memory.
    Copy = 1,
    /// From a file descriptor to memory.
    Receive = 2,
    /// From memory to a file descriptor.
    Send = 3,
    /// From a file descriptor to another one, which is in `extra`.
    Forward = 4,
    /// No copy, but an order: older tasks precede younger ones, also between queues; `extra` is
    /// the position in the other queue (Copier, SOSP 2025, §4.2.1).
    Barrier = 5,
}

impl Kind {
    /// Returns the kind with this number, if there is one.
    #[inline]
    pub fn decode(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Copy,
            2 => Kind::Receive,
            3 => Kind::Send,
            4 => Kind::Forward,
            5 => Kind::Barrier,
            _ => return None,
        })
    }
}

/// Options of a task: any set of the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// Lazy: copied when another task needs it, or when its delay is over (Copier, SOSP 2025,
    /// §4.4).
    pub const LAZY: Flags = Flags(1);
    /// The task has a handler, which runs when the task is complete.
    pub const HANDLER: Flags = Flags(1 << 1);
    /// The task is from the privileged one of two queues (Copier, SOSP 2025, §4.2.1).
    pub const PRIVILEGED: Flags = Flags(1 << 2);
    /// The client does not need the source's bytes afterwards; their value is then undefined. So
    /// the bytes may reach the destination without ever being at the source.
    pub const LAST_USE: Flags = Flags(1 << 3);
    /// The task is part of a copy that is too long for the caches. Only for a service in the same
    /// process: a daemon of an earlier version rejects this flag.
    pub const STREAMS: Flags = Flags(1 << 4);
    /// All flags.
    pub const ALL: Flags = Flags(0b1_1111);

    /// Returns the set with these bits, if all of them are flags.
    #[inline]
    pub fn decode(bits: u8) -> Option<Flags> {
        (bits & !Flags::ALL.0 == 0).then_some(Flags(bits))
    }

    /// Returns the set as bits.
    #[inline]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if all of `other` are in the set.
    #[inline]
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Error in a line: the client's fault. The service ends the task with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The kind does not exist.
    #[error("the client's task has the unknown kind {0}; it may be built for a later version")]
    Kind(u8),
    /// Some flags do not exist.
    #[error("the client's task has flags {0:#04x}, not all of which exist")]
    Flags(u8),
    /// The spare byte is not zero.
    #[error("the client's task has {0:#04x} in a spare byte; it must be 0")]
    Spare(u8),
    /// Segments are too small, too large, or too many.
    #[error(
        "the client's task cuts {len_bytes} bytes into segments of 1 << {granule_shift}; use \
             {GRANULE_SHIFT_MIN} to {GRANULE_SHIFT_MAX}, and at most {SEGMENTS_MAX} segments"
    )]
    Granule {
        /// The task's length.
        len_bytes: u32,
        /// The granule shift.
        granule_shift: u8,
    },
    /// The task has no bytes.
    #[error("the client's task has no bytes; it must not be queued")]
    Empty,
    /// The range wraps.
    #[error("the client's task goes beyond the last address")]
    Wraps,
}

/// A task, copied out of or into its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Kind of the task.
    pub kind: Kind,
    /// Options of the task.
    pub flags: Flags,
    /// Base-2 logarithm of the segment size.
    pub granule_shift: u8,
    /// First byte of the destination: an address, or an offset into its region.
    pub dst: u64,
    /// First byte of the source: an address, or an offset into its region.
    pub src: u64,
    /// Length in bytes.
    pub len_bytes: u32,
    /// With [`Flags::LAZY`]: the maximum delay.
    pub delay_us: u32,
    /// With [`Flags::HANDLER`]: the handler to run in the client. If the service is another
    /// process, the client must not jump to this value, but look it up in a table of its own.
    pub handler: u64,
    /// Argument of the handler.
    pub argument: u64,
    /// Region of the destination; the client and the service agree on the numbers.
    pub dst_region: u16,
    /// Region of the source.
    pub src_region: u16,
    /// A file descriptor, or -1.
    pub fd: i32,
    /// A value that depends on the kind.
    pub extra: u64,
}

impl Task {
    /// Returns a copy from `src` to `dst`, divided as by [`segment::granule_shift_for`].
    #[must_use]
    pub fn copy(dst: u64, src: u64, len_bytes: u32) -> Task {
        Task {
            kind: Kind::Copy,
            flags: Flags::default(),
            granule_shift: segment::granule_shift_for(len_bytes),
            dst,
            src,
            len_bytes,
            delay_us: 0,
            handler: 0,
            argument: 0,
            dst_region: 0,
            src_region: 0,
            fd: -1,
            extra: 0,
        }
    }

    /// Returns all segments of the task. A task without bytes, such as a barrier, has one segment,
    /// so that it can be claimed and finished like others.
    #[inline]
    #[must_use]
    pub fn bits(&self) -> u32 {
        segment::bits_for(self.len_bytes.max(1), self.granule_shift)
    }

    #[inline]
    fn encode(&self, generation: u32) -> [u64; WORDS] {
        let [kind, flags, shift] =
            [self.kind as u8, self.flags.bits(), self.granule_shift].map(u64::from);
        let [dst_region, src_region] = [self.dst_region, self.src_region].map(u64::from);
        [
            u64::from(generation) << 32 | shift << 16 | flags << 8 | kind,
            self.dst,
            self.src,
            u64::from(self.delay_us) << 32 | u64::from(self.len_bytes),
            self.handler,
            self.argument,
            u64::from(self.fd as u32) << 32 | src_region << 16 | dst_region,
            self.extra,
        ]
    }

    #[inline]
    fn decode(words: [u64; WORDS]) -> Result<Task, TaskError> {
        let [first, dst, src, third, handler, argument, places, extra] = words;
        let [kind, flags, granule_shift, spare, ..] = first.to_le_bytes();
        if spare != 0 {
            return Err(TaskError::Spare(spare));
        }
        let task = Task {
            kind: Kind::decode(kind).ok_or(TaskError::Kind(kind))?,
            flags: Flags::decode(flags).ok_or(TaskError::Flags(flags))?,
            granule_shift,
            dst,
            src,
            len_bytes: third as u32,
            delay_us: (third >> 32) as u32,
            handler,
            argument,
            dst_region: places as u16,
            src_region: (places >> 16) as u16,
            fd: (places >> 32) as i32,
            extra,
        };
        task.check().map(|()| task)
    }

    #[inline]
    fn check(&self) -> Result<(), TaskError> {
        let (len_bytes, granule_shift) = (self.len_bytes, self.granule_shift);
        if len_bytes == 0 && self.kind != Kind::Barrier {
            return Err(TaskError::Empty);
        }
        let fits = (GRANULE_SHIFT_MIN..=GRANULE_SHIFT_MAX).contains(&granule_shift)
            && segment::count_for(len_bytes, granule_shift) <= SEGMENTS_MAX;
        if !fits {
            return Err(TaskError::Granule { len_bytes, granule_shift });
        }
        let ends = |start: u64| start.checked_add(len_bytes.into()).is_some();
        if ends(self.dst) && ends(self.src) { Ok(()) } else { Err(TaskError::Wraps) }
    }
}

/// Task line of a slot.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct TaskLine {
    words: [AtomicU64; WORDS],
}

impl TaskLine {
    /// Writes a task; only the owner of its ticket may call this.
    #[inline]
    pub(crate) fn write(&self, generation: u32, task: &Task) {
        let [first, rest @ ..] = task.encode(generation);
        let [first_word, rest_words @ ..] = &self.words;
        // A reader of the previous lap that sees one of the new words also sees this one, and so
        // detects that its copy is torn.
        let being_written = u64::from(generation ^ BEING_WRITTEN) << 32;
        first_word.store(being_written, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in rest_words.iter().zip(rest) {
            word.store(value, Ordering::Relaxed);
        }
        first_word.store(first, Ordering::Release);
    }

    /// Copies the task of this generation; `None` if the line contains another task or changes
    /// during the copy.
    #[inline]
    pub(crate) fn read(&self, generation: u32) -> Option<Result<Task, TaskError>> {
        let [first_word, ..] = &self.words;
        let first = first_word.load(Ordering::Acquire);
        if (first >> 32) as u32 != generation {
            return None;
        }
        let mut words = [first; WORDS];
        for (value, word) in words.iter_mut().zip(&self.words).skip(1) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        (first_word.load(Ordering::Relaxed) == first).then(|| Task::decode(words))
    }

    pub(crate) fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn strange() -> Task {
        Task {
            kind: Kind::Receive,
            flags: Flags::LAZY | Flags::HANDLER,
            granule_shift: 12,
            dst: 0x0123_4567_89AB_CDEF,
            src: u64::MAX - 100_000,
            len_bytes: 99_999,
            delay_us: u32::MAX,
            handler: 1 << 63,
            argument: 7,
            dst_region: 0xFFFE,
            src_region: 3,
            fd: -1,
            extra: u64::MAX,
        }
    }

    #[test]
    fn a_line_gives_back_what_was_written() {
        let line = TaskLine::default();
        for task in [strange(), Task::copy(1, 2, 3), Task { fd: i32::MIN, ..strange() }] {
            line.write(9, &task);
            assert_eq!(line.read(9), Some(Ok(task)));
            assert_eq!(line.read(8), None);
            assert_eq!(line.read(10), None);
        }
        line.reset();
        assert_eq!(line.read(9), None);
    }

    #[test]
    fn invalid_lines_are_refused() {
        let good = strange().encode(1);
        assert_eq!(Task::decode(good), Ok(strange()));
        let with = |at: usize, value: u64| {
            let mut words = good;
            words[at] = value;
            Task::decode(words)
        };
        let first = good[0];
        assert_eq!(with(0, first & !0xFF), Err(TaskError::Kind(0)));
        assert_eq!(with(0, first | 0xFF), Err(TaskError::Kind(0xFF)));
        assert_eq!(with(0, first | 0x8000), Err(TaskError::Flags(0x83)));
        assert_eq!(with(0, first | 1 << 24), Err(TaskError::Spare(1)));
        let granule =
            |len_bytes, granule_shift| Err(TaskError::Granule { len_bytes, granule_shift });
        assert_eq!(with(0, first & !0xFF_0000), granule(99_999, 0));
        assert_eq!(with(0, first | 0xFF_0000), granule(99_999, 0xFF));
        assert_eq!(with(3, 131_073), granule(131_073, 12));
        assert_eq!(with(3, 0), Err(TaskError::Empty));
        assert_eq!(with(1, u64::MAX - 99_998), Err(TaskError::Wraps));
        assert_eq!(with(2, u64::MAX), Err(TaskError::Wraps));
    }

    #[test]
    fn every_kind_and_flag_has_its_number() {
        for number in 0..=u8::MAX {
            assert!(Kind::decode(number).is_none_or(|kind| kind as u8 == number));
            assert!(Flags::decode(number).is_none_or(|flags| flags.bits() == number));
        }
        assert_eq!((0..=u8::MAX).filter_map(Kind::decode).count(), 5);
        assert_eq!((0..=u8::MAX).filter_map(Flags::decode).count(), 32);
        assert!(Flags::ALL.contains(Flags::PRIVILEGED) && !Flags::LAZY.contains(Flags::HANDLER));
    }

    #[test]
    fn a_barrier_has_no_bytes_and_one_segment() {
        let barrier = Task { kind: Kind::Barrier, len_bytes: 0, ..Task::copy(0, 0, 1) };
        assert_eq!(Task::decode(barrier.encode(3)), Ok(barrier));
        assert_eq!(barrier.bits(), 1);
    }
}
