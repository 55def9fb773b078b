//! Lookup of sent records for the driver: the record layer has their starts, and TCP has their
//! bytes.

use unlade_net::SeqNumber;
use unlade_nic_engine::tx::{Found, Messages};
use unlade_research_tcp::Id;

use crate::driver::Source;
use crate::rx_bytes::RxBytes;
use crate::span::Span;
use crate::tls::send::Sender;

/// The sent records of a connection: the record layer, and TCP's buffer.
pub(super) struct SentRecords<'s> {
    pub(super) sender: &'s Sender,
    pub(super) tcp: &'s mut unlade_research_tcp::Stack<RxBytes, Span>,
    pub(super) id: Id,
}

impl Messages for SentRecords<'_> {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        self.sender.find(seq)
    }
}

impl Source for SentRecords<'_> {
    fn under_one_key(&self, seq: SeqNumber, raw: usize) -> Option<(u16, usize)> {
        self.sender.under_one_key(seq, raw)
    }

    fn gather(&mut self, start: SeqNumber, until: SeqNumber, out: &mut Vec<Span>) {
        // A record is one span of TCP's stream, so TCP keeps it as long as the record layer.
        self.tcp.unacknowledged(self.id, start, until, out);
    }
}
