//! Counters of the machines. They have the kernel's names where it defines them
//! (Documentation/networking/tls-offload.rst).

/// Counters of one flow, queue or device; they only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that were encrypted.
    pub tx_tls_encrypted_packets: u64,
    /// Bytes of payload in them.
    pub tx_tls_encrypted_bytes: u64,
    /// Packets that were not the next of their flow.
    pub tx_tls_ooo: u64,
    /// Packets from before the offload, sent again as they are.
    pub tx_tls_skip_no_sync_data: u64,
    /// Packets that were dropped because their message is unknown.
    pub tx_tls_drop_no_sync_data: u64,
    /// Packets that were dropped because their content is malformed or their key is not the
    /// current one.
    pub tx_tls_err: u64,
    /// Bytes that were replayed to restore the state before a packet.
    pub tx_replayed_bytes: u64,

    /// Packets that were decrypted.
    pub rx_tls_decrypted_packets: u64,
    /// Bytes of payload in them.
    pub rx_tls_decrypted_bytes: u64,
    /// Packets with a resynchronisation request.
    pub rx_tls_resync_req_pkt: u64,
    /// Candidates that were tracked: (b) of the paper's figure 7.
    pub rx_tls_resync_req_start: u64,
    /// Candidates that were answered while they were tracked.
    pub rx_tls_resync_req_end: u64,
    /// Candidates that were lost without a response: malformed header, gap, or timeout.
    pub rx_tls_resync_req_skip: u64,
    /// Responses that were used.
    pub rx_tls_resync_res_ok: u64,
    /// Responses that came too late, to an earlier request.
    pub rx_tls_resync_res_skip: u64,
    /// In-order packets whose messages failed.
    pub rx_tls_err: u64,
    /// Candidates that software rejected: (d1).
    pub rx_resync_denied: u64,
    /// Candidates that were abandoned because no response came.
    pub rx_resync_expired: u64,
    /// Losses of synchronisation: (a).
    pub rx_searches: u64,
    /// Candidates with a presumed number, which were decrypted immediately.
    pub rx_presumed: u64,
    /// Presumed numbers that a tag or software confirmed.
    pub rx_presumed_right: u64,
    /// Presumed numbers that were withdrawn: a tag was wrong, or software rejected the number.
    pub rx_presumed_wrong: u64,
    /// Bytes that arrived while the machine was not synchronised.
    pub rx_unsynchronised_bytes: u64,
    /// Old packets, which bypass the machine.
    pub rx_past_packets: u64,
    /// Packets that were partly old.
    pub rx_overlap_packets: u64,
    /// Packets ahead, before the next header.
    pub rx_ahead_packets: u64,
    /// Packets ahead, with the next header in them.
    pub rx_ahead_header_packets: u64,

    /// Records that the device had decrypted and authenticated completely.
    pub records_offloaded: u64,
    /// Records that the device had decrypted in part.
    pub records_partial: u64,
    /// Records that software decrypted.
    pub records_software: u64,

    /// Records with bytes that the device had decrypted as bytes of another record.
    pub records_restored: u64,

    /// Bytes of data that were placed.
    pub rx_placed_bytes: u64,
    /// PDUs whose digests the device had checked completely.
    pub pdus_offloaded: u64,
    /// PDUs that the device had processed in part.
    pub pdus_partial: u64,
    /// PDUs without metadata of the device.
    pub pdus_software: u64,
    /// Bytes that were already at their destination, and were not copied.
    pub copy_skipped_bytes: u64,
}

impl Stats {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Stats) {
        macro_rules! sum {
            ($($name:ident)*) => { $(self.$name += other.$name;)* };
        }
        sum!(tx_tls_encrypted_packets tx_tls_encrypted_bytes tx_tls_ooo tx_tls_skip_no_sync_data
            tx_tls_drop_no_sync_data tx_tls_err tx_replayed_bytes rx_tls_decrypted_packets
            rx_tls_decrypted_bytes rx_tls_resync_req_pkt rx_tls_resync_req_start
            rx_tls_resync_req_end rx_tls_resync_req_skip rx_tls_resync_res_ok
            rx_tls_resync_res_skip rx_tls_err rx_resync_denied rx_resync_expired rx_searches
            rx_presumed rx_presumed_right rx_presumed_wrong rx_unsynchronised_bytes rx_past_packets rx_overlap_packets rx_ahead_packets
            rx_ahead_header_packets records_offloaded records_partial records_software records_restored
            rx_placed_bytes
            pdus_offloaded pdus_partial pdus_software copy_skipped_bytes);
    }
}
