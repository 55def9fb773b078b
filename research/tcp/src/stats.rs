//! What a connection has counted.

/// Counters of one connection; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Segments that came, as many as the device gave: several coalesced are one.
    pub segments_in: u64,
    /// Of them, those that were as expected: in order, nothing lost, nothing to decide.
    pub predicted_in: u64,
    /// Bytes that came in order, or have become so.
    pub bytes_in: u64,
    /// Segments, perhaps large ones, that were sent.
    pub segments_out: u64,
    /// New bytes that were sent.
    pub bytes_out: u64,
    /// Bytes that were sent again.
    pub retransmitted_bytes: u64,
    /// Times that bytes were taken for lost, and the window was made smaller.
    pub recoveries: u64,
    /// Times that the retransmission timer has expired.
    pub timeouts: u64,
    /// Probes for a lost tail (RFC 8985 §7).
    pub tail_probes: u64,
    /// Probes of a window that is closed, or of a peer that is silent.
    pub probes: u64,
    /// Segments that came out of order, or again, or filled a hole.
    pub out_of_order_in: u64,
    /// Segments that were outside of the window.
    pub unacceptable_in: u64,
    /// Segments whose timestamp was too old (RFC 7323 §5).
    pub old_timestamps_in: u64,
    /// Challenge acknowledgements that were sent (RFC 5961).
    pub challenges_out: u64,
    /// Pieces that were let go because of a limit; the peer sends them again.
    pub refused_pieces: u64,
    /// Selective acknowledgements that were ignored because of a limit.
    pub ignored_sacks: u64,
    /// Reports of bytes that came twice (RFC 2883).
    pub duplicates_reported: u64,
}
