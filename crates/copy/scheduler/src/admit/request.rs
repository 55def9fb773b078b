//! A question about a copy, its answer, and the measurements that follow.

/// Shorter copies are made inline, unless the program asks for a queued one. With cached bytes they
/// take less time than queueing does; otherwise the gain is smaller than the cost of measuring
/// them.
pub const QUEUED_BYTES_MIN: u64 = 4096;
/// Number of bytes from which a submission wakes a sleeping service: a wake-up costs the client
/// several microseconds.
pub const WAKE_PENDING_BYTES_MIN: u64 = 128 * 1024;
/// Bytes in a cache line.
const LINE_BYTES: u64 = 64;

/// Costs that depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Shorter copies are made inline, unless the program asks for a queued one.
    pub queued_bytes_min: u64,
    /// Number of pending bytes, including this copy, from which a submission wakes the service.
    pub wake_pending_bytes_min: u64,
    /// Additional time to read a cache line that another core wrote, in nanoseconds, for a
    /// sequence of lines.
    pub remote_line_ns: f32,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            queued_bytes_min: QUEUED_BYTES_MIN,
            wake_pending_bytes_min: WAKE_PENDING_BYTES_MIN,
            remote_line_ns: 0.7,
        }
    }
}

/// Decision about a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Copy at once, after a sync of the pending copies that touch the same bytes.
    #[default]
    Inline,
    /// Submit the copy to the service.
    Queue,
}

/// A copy to be decided about.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Class of the whole copy, see [`class_of`](super::class_of).
    pub class: usize,
    /// Bytes of the task: a long copy is submitted in several.
    pub bytes: u64,
    /// Bytes that the service must copy before it.
    pub pending_bytes: u64,
    /// The service is awake.
    pub is_awake: bool,
    /// Number of copies that a decision usually holds for, with this one. It may be eight times as
    /// many: see [`SETTLED_RUNS`](super::SETTLED_RUNS).
    pub run: u16,
}

/// Answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The decision for this copy, which the caller times.
    pub verdict: Verdict,
    /// The decision for the next copies of the class, which are not timed.
    pub usual: Verdict,
    /// Number of these copies.
    pub copies: u16,
    /// Wake the service: queueing is likely to pay.
    pub wake: bool,
}

/// Client-side measurements of a queued copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuedTiming {
    /// Time of the submission.
    pub submit_ns: u32,
    /// Time between the submission and the first sync.
    pub window_ns: u32,
    /// Time that the sync waited.
    pub wait_ns: u32,
    /// Time to read a cache line of the result, if measured. It is several times longer if the
    /// service's core shares no cache with the client's core.
    pub line_ns: Option<f32>,
}

impl Choice {
    /// Inline, with this number of copies after it.
    pub(super) fn inline(copies: u16) -> Choice {
        Choice { verdict: Verdict::Inline, usual: Verdict::Inline, copies, wake: false }
    }

    /// Queued, with this number of copies after it.
    pub(super) fn queue(copies: u16) -> Choice {
        Choice { verdict: Verdict::Queue, usual: Verdict::Queue, copies, wake: false }
    }
}

/// Number of cache lines.
pub(super) fn lines(len: u64) -> f32 {
    len.div_ceil(LINE_BYTES) as f32
}
