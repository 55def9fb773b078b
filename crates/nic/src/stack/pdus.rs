//! PDUs above TCP, or above records: what their software tells the device, and asks of it.

use std::collections::VecDeque;

use offload::Nvme;
use offload::placement::Registration;
use offload::resync::{Request, Response};
use tcp::Id;
use wire::SeqNumber;

use super::{SecureError, Stack};
use crate::buffers::Withdrawn;
use crate::driver::DriverError;
use crate::flow::Protocol;
use crate::tls::receive::{Chunk, ReceiveError};

/// The device asks where a PDU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The machine next to TCP: there is no TLS.
    Next(Request),
    /// The machine above TLS.
    Above(Request),
}

impl Question {
    /// What it asks.
    pub fn request(&self) -> Request {
        match self {
            Question::Next(request) | Question::Above(request) => *request,
        }
    }
}

/// What is kept of a connection for software above.
#[derive(Default)]
pub(super) struct PduState {
    /// The newest one; those before are void.
    question: Option<Question>,
    /// The device has given them back; as many at most as were registered.
    withdrawn: VecDeque<Withdrawn>,
    /// There is TLS below.
    above_tls: bool,
}

impl Stack {
    /// From the next octet on that comes there are PDUs, in the clear, on which the device works.
    /// Returns that octet's number.
    ///
    /// # Errors
    /// [`SecureError`]; without the device everything goes on.
    pub fn offload_pdus(&mut self, id: Id, nvme: Nvme) -> Result<SeqNumber, SecureError> {
        let start = self.tcp.get(id).ok_or(SecureError::Unknown)?.read_at();
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        if connection.receiver.is_some() {
            return Err(SecureError::Twice);
        }
        let flow = connection.flow.ok_or(DriverError::Flows)?;
        self.driver.create_rx(flow, Protocol::Nvme(nvme), start, 0)?;
        Ok(start)
    }

    /// Data that comes for the registration's tag goes to `buffer`; see
    /// [`Driver::register`](crate::driver::Driver::register). [`Stack::withdrawn`] gives it back.
    ///
    /// # Errors
    /// Why not, and the buffer.
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

    /// The device is to give the registration's buffer back.
    ///
    /// # Errors
    /// [`DriverError`]; to be tried again.
    pub fn withdraw(&mut self, id: Id, registration: Registration) -> Result<(), DriverError> {
        let flow = self.connection(id).and_then(|connection| connection.flow);
        self.driver.withdraw(flow.ok_or(DriverError::Flows)?, registration)
    }

    /// A buffer of the connection that the device has given back.
    pub fn withdrawn(&mut self, id: Id) -> Option<Withdrawn> {
        self.connection(id)?.pdus.withdrawn.pop_front()
    }

    /// The next octets that came, as [`Stack::read`] gives them, and where in TCP's stream the first
    /// one is.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn read_at(&mut self, id: Id) -> Result<Option<(SeqNumber, Chunk)>, ReceiveError> {
        let next = self.tcp.get(id).map(|tcp| tcp.read_at());
        let Some(chunk) = self.read(id)? else { return Ok(None) };
        let octets = chunk.as_ref().len();
        let receiver = self.connection(id).and_then(|connection| connection.receiver.as_mut());
        let at = match receiver {
            Some(receiver) => Some(receiver.content_at(octets)),
            None => next,
        };
        Ok(at.map(|at| (at, chunk)))
    }

    /// What the device asks, once.
    pub fn question(&mut self, id: Id) -> Option<Question> {
        self.connection(id)?.pdus.question.take()
    }

    /// Answers the question of the machine that looks for PDUs.
    pub fn answer(&mut self, id: Id, response: Response) {
        let Some(connection) = self.connection(id) else { return };
        let above_tls = connection.pdus.above_tls;
        let Some(flow) = connection.flow else { return };
        // Without room the device is not answered, and asks again.
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

    /// Buffers that have come back go to their connections; those of connections that are gone are
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
