//! Errors on an established connection, and the party at fault.

use thiserror::Error;

/// The party at fault for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer sent a forbidden message, or the bytes were changed in transit.
    Peer,
    /// The configuration of the service.
    Config,
    /// The previous owner of the connection, whose snapshot is inconsistent.
    Snapshot,
    /// The code that calls this crate.
    Caller,
    /// This process (no randomness, no clock) or a library inside it.
    Internal,
}

/// An error of the record layer. All but [`RecordError::OutputPending`],
/// [`RecordError::BufferLength`] and [`RecordError::Delegated`] end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// A snapshot that cannot be restored.
    #[error("TLS snapshot refused: {0}; the connection cannot be restored here")]
    Snapshot(&'static str),
    /// A record that fails authentication.
    #[error("record {sequence} from the peer fails authentication; close the connection")]
    BadRecordMac {
        /// Sequence number that the record should have had.
        sequence: u64,
    },
    /// A record longer than the protocol allows (RFC 8446 §5.1, §5.2).
    #[error("the peer sent a record of {bytes} bytes, above the limit; close the connection")]
    RecordOverflow {
        /// Length found, bytes.
        bytes: usize,
    },
    /// A record or message that is not allowed here.
    #[error("the peer sent {0}; close the connection")]
    UnexpectedMessage(&'static str),
    /// A message that cannot be parsed.
    #[error("the peer sent {0}; close the connection")]
    Decode(&'static str),
    /// A field with a value outside its range.
    #[error("the peer sent {0}; close the connection")]
    IllegalParameter(&'static str),
    /// A record header with another version than 3.3.
    #[error("the peer sent a record of version {0:#06x}, not 0x0303; close the connection")]
    Version(u16),
    /// More harmless messages than any honest peer sends.
    #[error("the peer sent too many {0}; close the connection")]
    Flood(&'static str),
    /// The peer sent a fatal alert.
    #[error("the peer sent the fatal alert {0}; close the connection")]
    AlertReceived(u8),
    /// The key must not protect further records, and TLS 1.2 cannot change it.
    #[error("the write key has protected {records} records; close the connection")]
    Exhausted {
        /// Records protected.
        records: u64,
    },
    /// close_notify or a fatal alert was sent; nothing may follow.
    #[error("the sending side is closed; send nothing more")]
    Closed,
    /// Another machine seals the next records; this one may not.
    #[error("the next records are sealed by another machine; wait until it has")]
    Delegated,
    /// Control records must be sent first: `take_output`, send, and call again.
    #[error("control records are due first; take the output, send it and call again")]
    OutputPending,
    /// The buffer does not have the length that the layout requires.
    #[error("the buffer holds {given} bytes where the layout needs {needed}")]
    BufferLength {
        /// Length given, bytes.
        given: usize,
        /// Length needed, bytes.
        needed: usize,
    },
    /// No header of the next piece of a response, or a changed one.
    #[error("no header of a piece of a response, or somebody has changed it; reset the connection")]
    Piece,
    /// The system has no random bytes.
    #[error("the system has no random bytes")]
    Random,
    /// The AEAD failed to seal, which happens only beyond its length limits.
    #[error("the AEAD refused to seal a record; close the connection")]
    Seal,
}

impl RecordError {
    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Snapshot(_) => Fault::Snapshot,
            Self::Closed | Self::Delegated | Self::OutputPending | Self::BufferLength { .. } => {
                Fault::Caller
            }
            Self::Exhausted { .. } | Self::Seal | Self::Random => Fault::Internal,
            _ => Fault::Peer,
        }
    }

    /// A short name for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Snapshot(_) => "snapshot",
            Self::BadRecordMac { .. } => "bad_record_mac",
            Self::RecordOverflow { .. } => "record_overflow",
            Self::UnexpectedMessage(_) => "unexpected_message",
            Self::Decode(_) => "decode_error",
            Self::IllegalParameter(_) => "illegal_parameter",
            Self::Version(_) => "record_version",
            Self::Flood(_) => "flood",
            Self::AlertReceived(_) => "alert_received",
            Self::Exhausted { .. } => "key_exhausted",
            Self::Closed => "closed",
            Self::Delegated => "delegated",
            Self::OutputPending => "output_pending",
            Self::BufferLength { .. } => "buffer_length",
            Self::Piece => "piece",
            Self::Random => "random",
            Self::Seal => "seal",
        }
    }

    /// The alert to send to the peer (RFC 8446 §6.2), if any.
    pub(crate) fn alert(&self) -> Option<u8> {
        match self {
            Self::BadRecordMac { .. } => Some(20),
            Self::RecordOverflow { .. } => Some(22),
            Self::UnexpectedMessage(_) | Self::Flood(_) => Some(10),
            Self::Decode(_) => Some(50),
            Self::IllegalParameter(_) => Some(47),
            Self::Version(_) => Some(70),
            Self::Exhausted { .. } => Some(80),
            _ => None,
        }
    }
}

impl From<RecordError> for std::io::Error {
    fn from(error: RecordError) -> Self {
        let kind = match error.fault() {
            Fault::Peer | Fault::Snapshot => std::io::ErrorKind::InvalidData,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}
