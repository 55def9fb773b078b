//! Counters of a connection.

/// Counters of one connection; they only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Received segments; several coalesced segments count as one.
    pub segments_in: u64,
    /// Of these, segments on the fast path.
    pub predicted_in: u64,
    /// Bytes that arrived in order, or have become so.
    pub bytes_in: u64,
    /// Sent segments, including super-segments.
    pub segments_out: u64,
    /// New bytes that were sent.
    pub bytes_out: u64,
    /// Retransmitted bytes.
    pub retransmitted_bytes: u64,
    /// Loss recoveries, each with a reduction of the window.
    pub recoveries: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
    /// Tail loss probes (RFC 8985 §7).
    pub tail_probes: u64,
    /// Probes of a closed window, or of a silent peer.
    pub probes: u64,
    /// Segments that were out of order or duplicate, or filled a hole.
    pub out_of_order_in: u64,
    /// Segments outside of the window.
    pub unacceptable_in: u64,
    /// Segments whose timestamp was too old (RFC 7323 §5).
    pub old_timestamps_in: u64,
    /// Challenge acknowledgements that were sent (RFC 5961).
    pub challenges_out: u64,
    /// Chunks that were dropped because of a limit; the peer retransmits them.
    pub refused_pieces: u64,
    /// Selective acknowledgements that were ignored because of a limit.
    pub ignored_sacks: u64,
    /// Reports of duplicate bytes (RFC 2883).
    pub duplicates_reported: u64,
}
