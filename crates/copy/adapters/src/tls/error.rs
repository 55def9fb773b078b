//! Errors of a stream of TLS records, and their causes.

use std::io;
use std::sync::Arc;

use thiserror::Error;

/// Reason why there is no more plaintext.
#[derive(Clone, Debug, Error)]
pub enum TlsError {
    /// Error of the peer, or alert from the peer, as reported by rustls.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The stream ended without close_notify.
    #[error("the stream ended without close_notify: what was received may not be all")]
    Truncated,
    /// A record, or a handshake message, exceeds the buffer.
    #[error("{bytes} bytes must be there together, the buffer takes {capacity}: make it larger")]
    TooLarge {
        /// Length of all records of the message.
        bytes: usize,
        /// Capacity of the buffer.
        capacity: usize,
    },
    /// The configuration allows 0-RTT data, which are not supported.
    #[error("early data are not taken: set max_early_data_size to 0")]
    EarlyData,
    /// close_notify was sent: no more data can be sent.
    #[error("the connection is closed for sending")]
    Closed,
    /// Error of the socket or of a failed receive.
    #[error(transparent)]
    Io(Arc<io::Error>),
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> TlsError {
        TlsError::Io(Arc::new(error))
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        let kind = match &error {
            TlsError::Io(error) => error.kind(),
            TlsError::Truncated => io::ErrorKind::UnexpectedEof,
            TlsError::TooLarge { .. } => io::ErrorKind::StorageFull,
            TlsError::Closed => io::ErrorKind::BrokenPipe,
            TlsError::EarlyData => io::ErrorKind::Unsupported,
            TlsError::Tls(_) => io::ErrorKind::InvalidData,
        };
        match error {
            TlsError::Io(error) => Arc::try_unwrap(error)
                .unwrap_or_else(|shared| io::Error::new(kind, TlsError::Io(shared))),
            error => io::Error::new(kind, error),
        }
    }
}

impl TlsError {
    /// Returns true for temporary errors: a later call may succeed.
    pub(super) fn may_pass(&self) -> bool {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        match self {
            TlsError::Io(error) => matches!(error.kind(), WouldBlock | Interrupted | TimedOut),
            TlsError::Closed => true,
            _ => false,
        }
    }
}
