//! What can be wrong with a stream of records, and whose fault it is.

use std::io;
use std::sync::Arc;

use thiserror::Error;

/// Why there is no more plaintext.
#[derive(Clone, Debug, Error)]
pub enum TlsError {
    /// The peer is at fault, or gave up: as rustls says.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The stream ended, and the peer did not say that it would.
    #[error("the stream ended without close_notify: what was received may not be all")]
    Truncated,
    /// A record, or a handshake message, does not fit.
    #[error("{bytes} bytes must be there together, the buffer takes {capacity}: make it larger")]
    TooLarge {
        /// Length of all records that make up the message.
        bytes: usize,
        /// Of the buffer.
        capacity: usize,
    },
    /// The configuration allows 0-RTT data, which are not taken here.
    #[error("early data are not taken: set max_early_data_size to 0")]
    EarlyData,
    /// Nothing can be sent any more: close_notify was.
    #[error("the connection is closed for sending")]
    Closed,
    /// The socket's, or of a receive that failed.
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
    /// The same call may do better later.
    pub(super) fn may_pass(&self) -> bool {
        use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        match self {
            TlsError::Io(error) => matches!(error.kind(), WouldBlock | Interrupted | TimedOut),
            TlsError::Closed => true,
            _ => false,
        }
    }
}
