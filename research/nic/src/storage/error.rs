//! Errors of a stream of PDUs.

use thiserror::Error;
use unlade_nic_engine::software::pdus::PduError;
use unlade_nvme_wire::pdu;

/// The reason of the stream's end: an error of the peer, or damage in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The PDUs are invalid.
    #[error(transparent)]
    Pdu(#[from] PduError),
    /// A header has an invalid field.
    #[error(transparent)]
    Header(#[from] pdu::PduError),
    /// The controller ends the connection.
    #[error("the controller ends the connection with status {0}")]
    Terminated(u16),
    /// The ICResp of the controller has features that were not offered.
    #[error("the controller answers ICReq with {0}; close the connection")]
    Agreement(&'static str),
    /// The controller has too many outstanding R2Ts of one command.
    #[error("too many outstanding transfers for command {0}; terminate the connection")]
    Transfers(u16),
    /// A PDU that is not valid in this state.
    #[error("an unexpected PDU; send a termination request and close the connection")]
    Unexpected,
    /// The command does not exist.
    #[error("a PDU for command {0}, which is not in flight; terminate the connection")]
    Command(u16),
    /// The data is not the next of its command.
    #[error("data out of order for command {0}; terminate the connection")]
    Offset(u16),
}
