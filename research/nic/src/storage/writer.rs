//! Outgoing data: the controller's requests, in order (NVMe/TCP Transport Specification 1.0
//! §3.3.2.2, §3.6.2.3).

use std::collections::VecDeque;

use bytes::Bytes;
use unlade_nvme_wire::pdu::{Data, ReadyToTransfer};

use super::error::StreamError;

/// Outstanding R2Ts of one command: MAXR2T in ICReq.
pub const TRANSFERS_MAX: u32 = 1;

/// A command's data.
struct CommandData {
    data: Bytes,
    /// Number of requested bytes.
    asked_bytes: u32,
    /// Number of transfers that are not sent completely.
    transfers: u32,
}

/// A request of the controller that is not yet answered.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    cid: u16,
    /// The controller's tag of it.
    tag: u16,
    /// Offset in the command's data.
    at: u32,
    end: u32,
}

/// The outgoing data of one connection.
pub struct Writer {
    /// Indexed by identifier.
    commands: Vec<Option<CommandData>>,
    /// In order of age; at most [`TRANSFERS_MAX`] per command.
    transfers: VecDeque<Transfer>,
    /// Largest number of data bytes in a PDU.
    data_bytes_max: u32,
}

impl Writer {
    /// Creates a writer; identifiers are below `depth`.
    pub fn new(depth: u16, data_bytes_max: u32) -> Writer {
        let commands = (0..depth).map(|_| None).collect();
        Writer { commands, transfers: VecDeque::new(), data_bytes_max: data_bytes_max.max(4) }
    }

    /// Sets the largest number of data bytes in a PDU, from now on.
    pub fn agree(&mut self, data_bytes_max: u32) {
        self.data_bytes_max = data_bytes_max.max(4);
    }

    /// Adds the data of a new command `cid`; `given`: it was sent with the command.
    pub fn begin(&mut self, cid: u16, data: Bytes, given: bool) {
        let Ok(bytes) = u32::try_from(data.len()) else { return };
        if let Some(slot) = self.commands.get_mut(usize::from(cid)) {
            let asked_bytes = if given { bytes } else { 0 };
            *slot = Some(CommandData { data, asked_bytes, transfers: 0 });
        }
    }

    /// Processes a request of the controller for data.
    ///
    /// # Errors
    /// The request is not allowed.
    pub fn ready(&mut self, ready: &ReadyToTransfer) -> Result<(), StreamError> {
        let cid = ready.command_id;
        let out = self.commands.get_mut(usize::from(cid)).and_then(Option::as_mut);
        let out = out.ok_or(StreamError::Command(cid))?;
        let left = out.data.len() as u32 - out.asked_bytes;
        if ready.offset != out.asked_bytes || ready.bytes == 0 || ready.bytes > left {
            return Err(StreamError::Offset(cid));
        }
        if out.transfers >= TRANSFERS_MAX {
            return Err(StreamError::Transfers(cid));
        }
        out.transfers += 1;
        out.asked_bytes += ready.bytes;
        let (at, end) = (ready.offset, ready.offset + ready.bytes);
        self.transfers.push_back(Transfer { cid, tag: ready.transfer_tag, at, end });
        Ok(())
    }

    /// Number of data bytes in the next PDU, if there is one.
    pub fn next_bytes(&self) -> Option<usize> {
        let transfer = self.transfers.front()?;
        Some((transfer.end - transfer.at).min(self.data_bytes_max) as usize)
    }

    /// Takes the next PDU: its header, and its data.
    pub fn take_next(&mut self) -> Option<(Data, Bytes)> {
        let bytes = self.next_bytes()? as u32;
        let transfer = self.transfers.front_mut()?;
        let Transfer { cid, tag, at, end } = *transfer;
        transfer.at += bytes;
        let out = self.commands.get_mut(usize::from(cid)).and_then(Option::as_mut)?;
        let is_last = at + bytes == end;
        if is_last {
            out.transfers -= 1;
            self.transfers.pop_front();
        }
        let data = out.data.slice(at as usize..(at + bytes) as usize);
        let (command_id, transfer_tag, offset) = (cid, tag, at);
        let said = Data { command_id, transfer_tag, offset, bytes, is_last, is_success: false };
        Some((said, data))
    }

    /// Ends the command; true if all of its data was requested and sent.
    pub fn complete(&mut self, cid: u16) -> bool {
        let slot = self.commands.get_mut(usize::from(cid)).and_then(Option::take);
        let Some(out) = slot else { return true };
        if out.transfers > 0 {
            self.transfers.retain(|transfer| transfer.cid != cid);
        }
        out.transfers == 0 && out.asked_bytes as usize == out.data.len()
    }

    /// Number of requested bytes that are not yet sent.
    pub fn waiting_bytes(&self) -> u64 {
        self.transfers.iter().map(|transfer| u64::from(transfer.end - transfer.at)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(command_id: u16, offset: u32, bytes: u32) -> ReadyToTransfer {
        ReadyToTransfer { command_id, transfer_tag: 7, offset, bytes }
    }

    #[test]
    fn data_goes_out_as_it_was_asked_for_in_pdus_that_are_not_too_long() {
        let mut writer = Writer::new(4, 8);
        let data: Vec<u8> = (0..40).collect();
        writer.begin(1, data.clone().into(), false);
        writer.begin(2, data.clone().into(), false);
        writer.ready(&ready(2, 0, 12)).unwrap();
        writer.ready(&ready(1, 0, 40)).unwrap();
        let mut given = Vec::new();
        while let Some(bytes) = writer.next_bytes() {
            let (said, raw) = writer.take_next().unwrap();
            assert_eq!((said.bytes as usize, said.transfer_tag), (bytes, 7));
            assert_eq!(raw, data[said.offset as usize..][..bytes]);
            given.push((said.command_id, said.offset, said.bytes, said.is_last));
        }
        let second = (0..5).map(|number| (1, number * 8, 8, number == 4));
        assert_eq!(
            given,
            [(2, 0, 8, false), (2, 8, 4, true)].into_iter().chain(second).collect::<Vec<_>>()
        );
        assert!(writer.complete(1));
        assert!(!writer.complete(2));
    }

    #[test]
    fn what_may_not_be_asked_for_ends_the_stream() {
        let mut writer = Writer::new(4, 8);
        writer.begin(1, vec![0; 40].into(), false);
        writer.begin(3, vec![0; 40].into(), true);
        for (asked, error) in [
            (ready(2, 0, 4), StreamError::Command(2)),
            (ready(9, 0, 4), StreamError::Command(9)),
            (ready(1, 4, 4), StreamError::Offset(1)),
            (ready(1, 0, 0), StreamError::Offset(1)),
            (ready(1, 0, 41), StreamError::Offset(1)),
            (ready(1, 0, u32::MAX), StreamError::Offset(1)),
            (ready(3, 0, 4), StreamError::Offset(3)),
            (ready(3, 40, 4), StreamError::Offset(3)),
        ] {
            assert_eq!(writer.ready(&asked), Err(error), "{asked:?}");
        }
        writer.ready(&ready(1, 0, 20)).unwrap();
        assert_eq!(writer.ready(&ready(1, 20, 20)), Err(StreamError::Transfers(1)));
        assert_eq!(writer.waiting_bytes(), 20);
        // The error comes before all was sent: the rest is not sent.
        assert!(!writer.complete(1));
        assert_eq!(writer.next_bytes(), None);
        assert_eq!(writer.ready(&ready(1, 20, 20)), Err(StreamError::Command(1)));
    }
}
