//! The PDU state of a connection, and the device's questions.

use std::collections::VecDeque;

use unlade_nic_engine::resync::Request;

use crate::buffers::Withdrawn;
use crate::storage::send::PduSender;

/// A question of the device about the start of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// From the machine next to TCP: there is no TLS.
    Next(Request),
    /// From the machine above TLS.
    Above(Request),
}

impl Question {
    /// The request in it.
    pub fn request(&self) -> Request {
        match self {
            Question::Next(request) | Question::Above(request) => *request,
        }
    }
}

/// The PDU state of a connection.
#[derive(Default)]
pub(super) struct PduState {
    /// The newest question; earlier ones are void.
    pub(super) question: Option<Question>,
    /// Buffers that the device has returned; at most as many as were registered.
    pub(super) withdrawn: VecDeque<Withdrawn>,
    /// True if there is TLS below.
    pub(super) above_tls: bool,
    /// `Some` once PDUs are sent.
    pub(super) sender: Option<Box<PduSender>>,
}

impl PduState {
    /// Returns true if the sent data is PDUs.
    pub(super) fn frames(&self) -> bool {
        self.sender.is_some()
    }

    /// The sender of PDUs that the device processes.
    pub(super) fn sender(&self) -> Option<&PduSender> {
        self.sender.as_deref().filter(|sender| sender.offloads())
    }

    /// The same, for the lookup of bytes before a packet.
    pub(super) fn sender_mut(&mut self) -> Option<&mut PduSender> {
        self.sender.as_deref_mut().filter(|sender| sender.offloads())
    }
}
