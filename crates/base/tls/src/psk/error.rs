//! Errors of a handshake with a pre-shared key, and the party at fault.

use thiserror::Error;

use crate::error::{Fault, RecordError};

/// The reason why a handshake failed. The alert, if any, is already in `out`: send it, and close.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PskError {
    /// The key cannot be used.
    #[error("the pre-shared key cannot be used: {0}")]
    Key(&'static str),
    /// The peer does not use TLS.
    #[error("the peer does not speak TLS (first byte {0:#04x}); is it a port without TLS?")]
    NotTls(u8),
    /// The peer keeps sending without finishing the handshake.
    #[error("the peer sent {bytes} bytes without finishing the handshake")]
    TooMuchInput {
        /// Bytes of handshake records.
        bytes: usize,
    },
    /// The peer violated the protocol.
    #[error("the peer broke the TLS handshake: {what}")]
    Peer {
        /// The violation.
        what: &'static str,
        /// The corresponding alert (RFC 8446 §6.2).
        alert: u8,
    },
    /// The peer shares no parameters with this end.
    #[error("nothing in common with the peer: {0}")]
    Incompatible(&'static str),
    /// The client offered no key that this server has.
    #[error(
        "the client offers no key that is known here (it offers {offered}); configure the same key, \
         host NQN and subsystem NQN at both ends"
    )]
    UnknownIdentity {
        /// The first identity that it offered, as text.
        offered: String,
    },
    /// The peer proved that it has another key under the same identity.
    #[error("the peer has another key under the same identity; give both ends the same key")]
    WrongKey,
    /// The peer refused the handshake.
    #[error("{}", refused(*.0))]
    Refused(u8),
    /// A record could not be opened or sealed.
    #[error("TLS record: {0}")]
    Record(#[from] RecordError),
    /// This process failed.
    #[error("the handshake failed internally: {0}")]
    Internal(&'static str),
    /// The handshake is already over, successfully or not.
    #[error("the handshake is over; make a new one for a new connection")]
    Over,
}

impl PskError {
    pub(super) fn decode(what: &'static str) -> PskError {
        PskError::Peer { what, alert: 50 }
    }

    pub(super) fn illegal(what: &'static str) -> PskError {
        PskError::Peer { what, alert: 47 }
    }

    pub(super) fn unexpected(what: &'static str) -> PskError {
        PskError::Peer { what, alert: 10 }
    }

    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Key(_) => Fault::Config,
            Self::Internal(_) => Fault::Internal,
            Self::Over => Fault::Caller,
            Self::Record(error) => error.fault(),
            _ => Fault::Peer,
        }
    }

    /// The alert to send to the peer, if any.
    pub(super) fn alert(&self) -> Option<u8> {
        match self {
            Self::Peer { alert, .. } => Some(*alert),
            Self::TooMuchInput { .. } => Some(10),
            Self::Incompatible(_) => Some(40),
            Self::UnknownIdentity { .. } => Some(115),
            Self::WrongKey => Some(51),
            Self::Record(error) => error.alert(),
            Self::Key(_) | Self::Internal(_) => Some(80),
            Self::NotTls(_) | Self::Refused(_) | Self::Over => None,
        }
    }
}

impl From<PskError> for std::io::Error {
    fn from(error: PskError) -> Self {
        let kind = match error.fault() {
            Fault::Peer => std::io::ErrorKind::InvalidData,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

fn refused(alert: u8) -> String {
    let (name, hint) = (alert_name(alert), hint(alert));
    format!("the peer refused the handshake: {name} (alert {alert}){hint}")
}

/// Names from RFC 8446 §6.
fn alert_name(alert: u8) -> &'static str {
    match alert {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        47 => "illegal_parameter",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        90 => "user_canceled",
        109 => "missing_extension",
        110 => "unsupported_extension",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        _ => "an alert without a name here",
    }
}

/// The meaning of the alerts that servers send when keys differ.
fn hint(alert: u8) -> &'static str {
    match alert {
        20 | 40 | 47 | 51 | 115 => {
            "; most often the keys differ, or the NQNs, which are part of the key's identity"
        }
        _ => "",
    }
}
