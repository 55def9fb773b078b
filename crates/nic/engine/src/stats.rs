//! What the machines count. Names are the kernel's where it has them
//! (Documentation/networking/tls-offload.rst).

/// Counters of one flow, queue or device; they only grow.
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
    /// Packets that were dropped because nobody knew their message.
    pub tx_tls_drop_no_sync_data: u64,
    /// Packets that were dropped because they do not hold the messages that they should.
    pub tx_tls_err: u64,
    /// Bytes that were worked on again to get the state in front of a packet.
    pub tx_replayed_bytes: u64,

    /// Packets that were decrypted.
    pub rx_tls_decrypted_packets: u64,
    /// Bytes of payload in them.
    pub rx_tls_decrypted_bytes: u64,
    /// Packets in which a request to resynchronise went up.
    pub rx_tls_resync_req_pkt: u64,
    /// Candidates that were followed: (b) of the paper's figure 7.
    pub rx_tls_resync_req_start: u64,
    /// Candidates that were answered while they were followed.
    pub rx_tls_resync_req_end: u64,
    /// Candidates that were lost before that: no header where one should be, a gap, no answer.
    pub rx_tls_resync_req_skip: u64,
    /// Answers that were used.
    pub rx_tls_resync_res_ok: u64,
    /// Answers that came too late, to another candidate's question.
    pub rx_tls_resync_res_skip: u64,
    /// Packets that were next and whose messages failed.
    pub rx_tls_err: u64,
    /// Candidates that software denied: (d1).
    pub rx_resync_denied: u64,
    /// Candidates that were given up because no answer came.
    pub rx_resync_expired: u64,
    /// Times that the place in the stream was lost: (a).
    pub rx_searches: u64,
    /// Candidates whose number was presumed, and that were decrypted at once.
    pub rx_presumed: u64,
    /// Those of them that a tag has proved, or software.
    pub rx_presumed_right: u64,
    /// Those that were given up: a tag was wrong, or software knew better.
    pub rx_presumed_wrong: u64,
    /// Bytes that arrived while it was.
    pub rx_unsynchronised_bytes: u64,
    /// Packets of the past, which bypass the machine.
    pub rx_past_packets: u64,
    /// Packets that were partly old.
    pub rx_overlap_packets: u64,
    /// Packets ahead, before the next header.
    pub rx_ahead_packets: u64,
    /// Packets ahead, with the next header in them.
    pub rx_ahead_header_packets: u64,

    /// Records that the device had decrypted and authenticated whole.
    pub records_offloaded: u64,
    /// Records that it had decrypted in part.
    pub records_partial: u64,
    /// Records that software decrypted.
    pub records_software: u64,

    /// Records with bytes that the device had decrypted as others' than they are.
    pub records_restored: u64,

    /// Bytes of data that were placed.
    pub rx_placed_bytes: u64,
    /// PDUs whose digests the device had all checked.
    pub pdus_offloaded: u64,
    /// PDUs of which it had looked at a part.
    pub pdus_partial: u64,
    /// PDUs of which it has said nothing.
    pub pdus_software: u64,
    /// Bytes that software found in their place, and did not copy.
    pub copy_skipped_bytes: u64,
}

impl Stats {
    /// Adds what `other` has counted.
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
