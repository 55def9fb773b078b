//! The data of writes that the target requests (R2T, NVMe/TCP §3.2.2): outstanding requests, and
//! validation of received data. Sans-IO.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use unlade_nvme_wire::pdu::{Data, FatalStatus, ReadyToTransfer};

/// The limits of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferLimits {
    /// Largest number of bytes of one R2T.
    pub request_bytes_max: usize,
    /// Outstanding R2Ts of one command.
    pub requests_max: usize,
    /// Largest number of bytes in one PDU of the host.
    pub host_data_bytes_max: usize,
}

/// A violation by received data: status, offset in the header (FEI), reason. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct TransferViolation {
    /// FES.
    pub status: FatalStatus,
    /// FEI.
    pub offset: u32,
    /// For the log.
    pub why: &'static str,
}

fn violation(status: FatalStatus, offset: u32, why: &'static str) -> TransferViolation {
    TransferViolation { status, offset, why }
}

/// One outstanding R2T.
#[derive(Debug)]
struct Request {
    tag: u16,
    next: usize,
    end: usize,
}

/// The data of one command.
#[derive(Debug)]
struct Incoming {
    data: Vec<u8>,
    asked: usize,
    received: usize,
    is_damaged: bool,
    requests: VecDeque<Request>,
}

/// The complete data of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedData {
    /// The data.
    pub data: Vec<u8>,
    /// True if a digest was wrong.
    pub is_damaged: bool,
}

/// The result of received data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More data is expected; these requests are to be sent now.
    More(Vec<ReadyToTransfer>),
    /// The data is complete.
    Complete(ReceivedData),
}

/// All transfers of a connection.
#[derive(Debug)]
pub(crate) struct Transfers {
    limits: TransferLimits,
    incoming: HashMap<u16, Incoming>,
    /// Map from tag to command.
    tags: HashMap<u16, u16>,
    next_tag: u16,
}

impl Transfers {
    /// Creates an empty set.
    pub fn new(limits: TransferLimits) -> Transfers {
        Transfers { limits, incoming: HashMap::new(), tags: HashMap::new(), next_tag: 1 }
    }

    /// Starts the requests for the data of a command that has none yet.
    pub fn begin(&mut self, command_id: u16, bytes: usize) -> Vec<ReadyToTransfer> {
        let incoming = Incoming {
            data: vec![0; bytes],
            asked: 0,
            received: 0,
            is_damaged: false,
            requests: VecDeque::new(),
        };
        self.incoming.insert(command_id, incoming);
        self.ask(command_id)
    }

    fn ask(&mut self, command_id: u16) -> Vec<ReadyToTransfer> {
        let mut out = Vec::new();
        let Some(incoming) = self.incoming.get_mut(&command_id) else { return out };
        while incoming.asked < incoming.data.len()
            && incoming.requests.len() < self.limits.requests_max
        {
            let bytes = (incoming.data.len() - incoming.asked).min(self.limits.request_bytes_max);
            // There are more tags than outstanding requests: a queue's depth times the requests
            // per command.
            while self.tags.contains_key(&self.next_tag) {
                self.next_tag = self.next_tag.wrapping_add(1);
            }
            let tag = self.next_tag;
            self.next_tag = tag.wrapping_add(1);
            self.tags.insert(tag, command_id);
            let (next, end) = (incoming.asked, incoming.asked + bytes);
            incoming.requests.push_back(Request { tag, next, end });
            incoming.asked = end;
            out.push(ReadyToTransfer {
                command_id,
                transfer_tag: tag,
                offset: next as u32,
                bytes: bytes as u32,
            });
        }
        out
    }

    /// Checks that data was requested, and returns its range in the data of its command.
    pub fn place(&self, data: &Data) -> Result<Range<usize>, TransferViolation> {
        let bytes = data.bytes as usize;
        let Some(command_id) = self.tags.get(&data.transfer_tag) else {
            return Err(violation(FatalStatus::InvalidHeader, 10, "data with an unknown tag"));
        };
        if *command_id != data.command_id {
            return Err(violation(FatalStatus::InvalidHeader, 8, "data of another command"));
        }
        if bytes > self.limits.host_data_bytes_max {
            return Err(violation(FatalStatus::LimitExceeded, 16, "more data than MAXH2CDATA"));
        }
        let request = self
            .incoming
            .get(command_id)
            .and_then(|incoming| incoming.requests.iter().find(|r| r.tag == data.transfer_tag));
        let Some(request) = request else {
            return Err(violation(FatalStatus::InvalidHeader, 10, "data with an unknown tag"));
        };
        if data.offset as usize != request.next {
            return Err(violation(FatalStatus::DataOutOfRange, 12, "data out of order"));
        }
        if bytes == 0 || bytes > request.end - request.next {
            return Err(violation(FatalStatus::DataOutOfRange, 16, "more data than was asked for"));
        }
        if data.is_last != (request.next + bytes == request.end) {
            return Err(violation(FatalStatus::InvalidHeader, 1, "the last data is not the last"));
        }
        Ok(request.next..request.next + bytes)
    }

    /// Takes the buffer for a command's data; [`Transfers::put_back`] returns it.
    pub fn take(&mut self, command_id: u16) -> Vec<u8> {
        let incoming = self.incoming.get_mut(&command_id);
        incoming.map(|incoming| std::mem::take(&mut incoming.data)).unwrap_or_default()
    }

    /// Returns the buffer.
    pub fn put_back(&mut self, command_id: u16, data: Vec<u8>) {
        if let Some(incoming) = self.incoming.get_mut(&command_id) {
            incoming.data = data;
        }
    }

    /// Processes data that [`Transfers::place`] has accepted; `is_good` is false if its digest
    /// was wrong.
    pub fn received(&mut self, data: &Data, is_good: bool) -> Progress {
        let Some(incoming) = self.incoming.get_mut(&data.command_id) else {
            return Progress::More(Vec::new());
        };
        incoming.received += data.bytes as usize;
        incoming.is_damaged |= !is_good;
        if let Some(at) = incoming.requests.iter().position(|r| r.tag == data.transfer_tag)
            && let Some(request) = incoming.requests.get_mut(at)
        {
            request.next += data.bytes as usize;
            if request.next == request.end {
                incoming.requests.remove(at);
                self.tags.remove(&data.transfer_tag);
            }
        }
        if incoming.received < incoming.data.len() {
            return Progress::More(self.ask(data.command_id));
        }
        let whole = self.incoming.remove(&data.command_id);
        let arrived = whole.map(|all| ReceivedData { data: all.data, is_damaged: all.is_damaged });
        arrived.map_or(Progress::More(Vec::new()), Progress::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfers() -> Transfers {
        let (request_bytes_max, requests_max) = (1024, 2);
        Transfers::new(TransferLimits { request_bytes_max, requests_max, host_data_bytes_max: 512 })
    }

    fn data(request: &ReadyToTransfer, offset: u32, bytes: u32, is_last: bool) -> Data {
        let (command_id, transfer_tag) = (request.command_id, request.transfer_tag);
        let offset = request.offset + offset;
        Data { command_id, transfer_tag, offset, bytes, is_last, is_success: false }
    }

    fn feed(transfers: &mut Transfers, data: Data, byte: u8) -> Progress {
        let place = transfers.place(&data).unwrap();
        let mut memory = transfers.take(data.command_id);
        memory[place].fill(byte);
        transfers.put_back(data.command_id, memory);
        transfers.received(&data, byte != 0xff)
    }

    #[test]
    fn data_is_asked_for_in_parts_and_put_together() {
        let mut transfers = transfers();
        let first = transfers.begin(7, 2560);
        let asked: Vec<_> = first.iter().map(|r| (r.offset, r.bytes)).collect();
        assert_eq!(asked, [(0, 1024), (1024, 1024)]);
        assert_eq!(feed(&mut transfers, data(&first[0], 0, 512, false), 1), Progress::More(vec![]));
        // Requests may be answered in any order.
        feed(&mut transfers, data(&first[1], 0, 512, false), 3);
        let more = feed(&mut transfers, data(&first[0], 512, 512, true), 2);
        let Progress::More(more) = more else { panic!("{more:?}") };
        assert_eq!((more[0].offset, more[0].bytes), (2048, 512));
        feed(&mut transfers, data(&more[0], 0, 512, true), 5);
        let end = feed(&mut transfers, data(&first[1], 512, 512, true), 4);
        let Progress::Complete(arrived) = end else { panic!("{end:?}") };
        let expected: Vec<u8> = [1, 2, 3, 4, 5].iter().flat_map(|o| [*o; 512]).collect();
        assert_eq!(arrived, ReceivedData { data: expected, is_damaged: false });
        assert!(transfers.tags.is_empty() && transfers.incoming.is_empty());
    }

    #[test]
    fn damage_anywhere_is_remembered() {
        let mut transfers = transfers();
        let asked = transfers.begin(7, 1024);
        feed(&mut transfers, data(&asked[0], 0, 512, false), 0xff);
        let end = feed(&mut transfers, data(&asked[0], 512, 512, true), 1);
        assert!(matches!(end, Progress::Complete(ReceivedData { is_damaged: true, .. })));
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let mut transfers = transfers();
        let asked = transfers.begin(7, 1024)[0];
        let place = |transfers: &Transfers, data: Data| {
            let violation = transfers.place(&data).unwrap_err();
            (violation.status, violation.offset)
        };
        let good = data(&asked, 0, 512, false);
        let tag = Data { transfer_tag: 999, ..good };
        assert_eq!(place(&transfers, tag), (FatalStatus::InvalidHeader, 10));
        let other = Data { command_id: 8, ..good };
        assert_eq!(place(&transfers, other), (FatalStatus::InvalidHeader, 8));
        let long = Data { bytes: 516, ..good };
        assert_eq!(place(&transfers, long), (FatalStatus::LimitExceeded, 16));
        let early = Data { offset: 512, ..good };
        assert_eq!(place(&transfers, early), (FatalStatus::DataOutOfRange, 12));
        let last = Data { is_last: true, ..good };
        assert_eq!(place(&transfers, last), (FatalStatus::InvalidHeader, 1));
        feed(&mut transfers, good, 1);
        feed(&mut transfers, data(&asked, 512, 256, false), 1);
        let beyond = data(&asked, 768, 512, true);
        assert_eq!(place(&transfers, beyond), (FatalStatus::DataOutOfRange, 16));
        let nothing = data(&asked, 768, 0, false);
        assert_eq!(place(&transfers, nothing), (FatalStatus::DataOutOfRange, 16));
        let end = feed(&mut transfers, data(&asked, 768, 256, true), 1);
        assert!(matches!(end, Progress::Complete(_)));
        assert_eq!(place(&transfers, good), (FatalStatus::InvalidHeader, 10), "it is over");
    }

    #[test]
    fn tags_in_use_are_not_given_again() {
        let mut transfers = transfers();
        transfers.next_tag = u16::MAX;
        let first = transfers.begin(1, 3000);
        assert_eq!([first[0].transfer_tag, first[1].transfer_tag], [u16::MAX, 0]);
        transfers.next_tag = u16::MAX;
        let second = transfers.begin(2, 100);
        assert_eq!(second[0].transfer_tag, 1);
    }
}
