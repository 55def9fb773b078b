//! PDUs above TCP, or above records: the exchange between their software and the device.

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_nic_engine::Nvme;
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::resync::Response;
use unlade_nvme_wire::Pdu;
use unlade_research_tcp::Id;

use super::pdu_state::Question;
use super::{Connection, SecureError, Stack, WriteError};
use crate::buffers::Withdrawn;
use crate::driver::DriverError;
use crate::flow::Protocol;
use crate::span::Span;
use crate::storage::sealed::Sealed;
use crate::storage::send::PduSender;
use crate::tls::keys::Secrets;
use crate::tls::receive::{Chunk, ReceiveError, Receiver};
use crate::tls::send::{Change, SendError};

/// A key change, with the protocol for the device if it seals.
pub(super) type KeyChange = (Change, Option<Protocol>);

impl Connection {
    /// Changes the sending keys of the connection's record layer. The protocol is `None` if the
    /// device does not seal.
    pub(super) fn change(
        &mut self,
        request: bool,
    ) -> Result<(Span, Option<KeyChange>), WriteError> {
        if let Some(sender) = &mut self.sender {
            let (record, change) = sender.update_keys(request)?;
            let Some(change) = change else { return Ok((record, None)) };
            let protocol = change.secrets.protocol().map_err(SendError::from)?;
            return Ok((record, Some((change, protocol))));
        }
        let pdus = self.pdus.sender.as_mut().ok_or(WriteError::Closed)?;
        let (record, change, protocol) = pdus.update_keys(request)?;
        Ok((record, Some((change, Some(protocol)))))
    }

    /// Creates a close_notify, if there are keys.
    pub(super) fn close_notify(&mut self) -> Result<Option<Span>, SendError> {
        let records = self.pdus.sender.as_mut().and_then(|pdus| pdus.records());
        match (&mut self.sender, records) {
            (Some(sender), _) => sender.close().map(Some),
            (None, Some(records)) => records.close().map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Drops messages that have arrived completely; returns the oldest key that is still needed.
    pub(super) fn acknowledge(&mut self, acknowledged: SeqNumber) -> Option<u16> {
        if let Some(sender) = &mut self.sender {
            sender.acknowledge(acknowledged);
            return sender.oldest_key();
        }
        let pdus = self.pdus.sender.as_mut()?;
        pdus.acknowledge(acknowledged);
        pdus.oldest_key()
    }
}

impl Stack {
    /// Starts the offload of PDUs in the clear, from the next bytes in both directions on.
    /// Returns the number of the next received byte.
    ///
    /// # Errors
    /// [`SecureError`]; the connection goes on without the device.
    pub fn offload_pdus(&mut self, id: Id, nvme: Nvme) -> Result<SeqNumber, SecureError> {
        let tcp = self.tcp.get(id).ok_or(SecureError::Unknown)?;
        let (tx_start, rx_start) = (tcp.send_end(), tcp.read_at());
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        if connection.receiver.is_some() || connection.pdus.frames() {
            return Err(SecureError::Twice);
        }
        let flow = connection.flow.ok_or(DriverError::Flows)?;
        self.driver.create_tx(flow, Protocol::Nvme(nvme), (tx_start, 0), 0)?;
        if let Some(connection) = self.connection(id) {
            // From here on only framed bytes are sent, even if the rest fails.
            connection.pdus.sender = Some(Box::new(PduSender::device(nvme, tx_start)));
            connection.tx.add(0, tx_start)?;
        }
        self.driver.create_rx(flow, Protocol::Nvme(nvme), rx_start, 0)?;
        Ok(rx_start)
    }

    /// Secures a connection with PDUs in records: the device processes both.
    pub(super) fn secure_both(
        &mut self,
        id: Id,
        nvme: Nvme,
        (tx, tx_start, tx_number): (Secrets, SeqNumber, u64),
        (receiver, rx_start, rx_number): (Receiver, SeqNumber, u64),
    ) -> Result<(), SecureError> {
        let flow = self.connection(id).and_then(|connection| connection.flow);
        let flow = flow.ok_or(DriverError::Flows)?;
        let protocol = Protocol::NvmeTls(Box::new(tx.tls()?), nvme);
        let sealed = Sealed::new(tx, tx_start, tx_number)?;
        self.driver.create_tx(flow, protocol, (tx_start, tx_number), 0)?;
        if let Some(connection) = self.connection(id) {
            connection.pdus.sender = Some(Box::new(PduSender::sealed(nvme, sealed)));
            connection.tx.add(0, tx_start)?;
        }
        if let Some(protocol) = receiver.protocol()? {
            let protocol = match protocol {
                Protocol::Tls(tls) => Protocol::NvmeTls(tls, nvme),
                protocol => protocol,
            };
            self.driver.create_rx(flow, protocol, rx_start, rx_number)?;
        }
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        connection.receiver = Some(receiver);
        Ok(())
    }

    /// Starts framing of sent PDUs; digests are computed in software, unless the device does it.
    ///
    /// # Errors
    /// [`SecureError::Unknown`].
    pub fn frame_pdus(&mut self, id: Id, nvme: Nvme) -> Result<(), SecureError> {
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        let records = connection.sender.is_some();
        let sender = || Box::new(PduSender::software(nvme, records));
        connection.pdus.sender.get_or_insert_with(sender);
        Ok(())
    }

    /// Applies digests and limits from the next PDUs on, in both directions, and the alignment of
    /// sent data to `alignment_bytes`. Allowed between PDUs only.
    ///
    /// # Errors
    /// [`SecureError`]; the connection cannot go on.
    pub fn agree_pdus(
        &mut self,
        id: Id,
        nvme: Nvme,
        alignment_bytes: usize,
    ) -> Result<(), SecureError> {
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        let flow = connection.flow;
        let sender = connection.pdus.sender.as_mut().ok_or(SecureError::Unknown)?;
        sender.agree(nvme, alignment_bytes);
        match flow {
            Some(flow) => Ok(self.driver.agree_pdus(flow, nvme)?),
            None => Ok(()),
        }
    }

    /// Largest number of data bytes in one PDU that [`Stack::write_pdu`] accepts, a multiple of
    /// four.
    pub fn pdu_data_bytes_max(&self) -> u32 {
        PduSender::data_bytes_max(self.config.tcp.connection.send_buffer_bytes as usize)
    }

    /// Returns true if [`Stack::write_pdu`] accepts a PDU with `data_bytes` of data now.
    pub fn has_room_for_pdu(&self, id: Id, data_bytes: usize) -> bool {
        let connection = self.connections.get(id.index()).and_then(Option::as_deref);
        let sender = connection.filter(|found| found.id == id);
        let sender = sender.and_then(|connection| connection.pdus.sender.as_deref());
        let (Some(tcp), Some(sender)) = (self.tcp.get(id), sender) else { return false };
        let (bytes, pieces) = sender.needs(data_bytes);
        tcp.send_room_bytes() as usize >= bytes && tcp.send_room_pieces() >= pieces
    }

    /// Sends a PDU with this header and data. The data is not copied unless software has to
    /// change it.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was written.
    pub fn write_pdu(&mut self, id: Id, pdu: &Pdu, data: Bytes) -> Result<(), WriteError> {
        if !self.has_room_for_pdu(id, data.len()) {
            return match self
                .tcp
                .get(id)
                .is_some_and(unlade_research_tcp::Connection::is_established)
            {
                true => Err(WriteError::Full),
                false => Err(WriteError::Closed),
            };
        }
        let mut written = std::mem::take(&mut self.written);
        let connection = self.connection(id).ok_or(WriteError::Closed)?;
        let records = connection.sender.as_mut();
        let made = match &mut connection.pdus.sender {
            Some(sender) => sender.write((pdu, data), records, &mut written),
            None => return Err(WriteError::Closed),
        };
        let sent = made.map_err(WriteError::from).and_then(|()| self.send_all(id, &mut written));
        written.clear();
        self.written = written;
        sent
    }

    /// Registers `buffer` for data of the registration's tag; see
    /// [`Driver::register`](crate::driver::Driver::register). [`Stack::withdrawn`] returns it.
    ///
    /// # Errors
    /// The reason, with the buffer.
    pub fn register(
        &mut self,
        id: Id,
        registration: Registration,
        buffer: Box<[u8]>,
    ) -> Result<(), (DriverError, Box<[u8]>)> {
        match self.connection(id).and_then(|connection| connection.flow) {
            Some(flow) => self.driver.register(flow, registration, buffer),
            None => Err((DriverError::Flows, buffer)),
        }
    }

    /// Requests the return of the registration's buffer.
    ///
    /// # Errors
    /// [`DriverError`]; the caller retries.
    pub fn withdraw(&mut self, id: Id, registration: Registration) -> Result<(), DriverError> {
        let flow = self.connection(id).and_then(|connection| connection.flow);
        self.driver.withdraw(flow.ok_or(DriverError::Flows)?, registration)
    }

    /// Takes a buffer of the connection that the device has returned.
    pub fn withdrawn(&mut self, id: Id) -> Option<Withdrawn> {
        self.connection(id)?.pdus.withdrawn.pop_front()
    }

    /// Reads the next received bytes as [`Stack::read`] does, with the sequence number of the
    /// first one.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn read_at(&mut self, id: Id) -> Result<Option<(SeqNumber, Chunk)>, ReceiveError> {
        let next = self.tcp.get(id).map(|tcp| tcp.read_at());
        let Some(chunk) = self.read(id)? else { return Ok(None) };
        let raw = chunk.as_ref().len();
        let receiver = self.connection(id).and_then(|connection| connection.receiver.as_mut());
        let at = match receiver {
            Some(receiver) => Some(receiver.content_at(raw)),
            None => next,
        };
        Ok(at.map(|at| (at, chunk)))
    }

    /// Takes the pending question of the device.
    pub fn question(&mut self, id: Id) -> Option<Question> {
        self.connection(id)?.pdus.question.take()
    }

    /// Answers the question of the machine that searches for PDUs.
    pub fn answer(&mut self, id: Id, response: Response) {
        let Some(connection) = self.connection(id) else { return };
        let above_tls = connection.pdus.above_tls;
        let Some(flow) = connection.flow else { return };
        // Without room the answer is lost, and the device asks again.
        let _ = match above_tls {
            true => self.driver.resync_pdu_resp(flow, response),
            false => self.driver.resync_rx_resp(flow, response),
        };
    }

    pub(super) fn ask(&mut self, id: Id, question: Question) {
        if let Some(connection) = self.connection(id) {
            connection.pdus.above_tls = matches!(question, Question::Above(_));
            connection.pdus.question = Some(question);
        }
    }

    /// Passes returned buffers to their connections; those of connections that have ended are
    /// dropped.
    pub(super) fn withdrawals(&mut self) -> usize {
        let mut done = 0;
        while let Some(withdrawn) = self.driver.withdrawn() {
            done += 1;
            let owner = self.flow_owner(withdrawn.flow);
            if let Some(connection) = owner.and_then(|id| self.connection(id)) {
                connection.pdus.withdrawn.push_back(withdrawn);
            }
        }
        done
    }
}
