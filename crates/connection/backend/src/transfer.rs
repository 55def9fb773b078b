//! Sends bytes to a client under the write deadline. Every acknowledged byte restarts the deadline,
//! so a slow client is served and a stalled one is dropped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::Interest;
use unlade_runtime::Stream;

use crate::session::{OnDrain, Session};

/// Maximum number of bytes of one sendfile(2).
const SENDFILE_BYTES_MAX: u64 = 1024 * 1024;
/// Number of bytes that one connection sends before its task yields to others.
pub(crate) const TURN_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Number of bytes of a TLS response that are encrypted and sent in one call.
const SEALED_SLICE_BYTES: u64 = 256 * 1024;
/// Maximum number of input bytes discarded after the last response, before the socket is closed.
const LINGER_BYTES_MAX: usize = 256 * 1024;
/// Time limit of that.
const LINGER: Duration = Duration::from_secs(2);

/// Error of sending a response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The client acknowledged nothing for the whole write timeout.
    #[error("the client took no bytes within the write timeout")]
    Stalled,
    /// Another process truncated the file.
    #[error("the object became shorter while it was sent")]
    Shortened,
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => SendError::Stalled,
            io::ErrorKind::UnexpectedEof => SendError::Shortened,
            _ => SendError::Broken(error),
        }
    }
}

/// Sends bytes; `more` means that further bytes follow immediately.
///
/// # Errors
/// The connection broke or stalled.
pub async fn send(
    stream: &mut Stream,
    session: &mut Session,
    bytes: &[u8],
    more: bool,
) -> Result<(), SendError> {
    stream.set_stall_limit(session.context().limits().write_timeout);
    Ok(stream.write_all(bytes, more).await?)
}

/// Sends `bytes` bytes of `file` from `offset`.
///
/// # Errors
/// The connection broke or stalled, or the file became shorter.
pub async fn send_file(
    stream: &mut Stream,
    session: &mut Session,
    file: &File,
    offset: u64,
    bytes: u64,
) -> Result<(), SendError> {
    stream.set_stall_limit(session.context().limits().write_timeout);
    match stream.is_tls() {
        false => send_file_plain(stream, file, offset, bytes).await,
        true => send_file_sealed(stream, file, offset, bytes).await,
    }
}

async fn send_file_plain(
    stream: &mut Stream,
    file: &File,
    offset: u64,
    bytes: u64,
) -> Result<(), SendError> {
    let (mut at, end) = (offset, offset.saturating_add(bytes));
    let mut turn_ends = offset.saturating_add(TURN_BYTES_MAX);
    while at < end {
        let chunk = (end - at).min(SENDFILE_BYTES_MAX) as usize;
        let tcp = stream.tcp();
        let sent = tcp.try_io(Interest::WRITABLE, || {
            rustix::fs::sendfile(tcp.as_fd(), file, Some(&mut at), chunk).map_err(io::Error::from)
        });
        match sent {
            Ok(0) => return Err(SendError::Shortened),
            Ok(_) if at >= turn_ends => {
                turn_ends = at.saturating_add(TURN_BYTES_MAX);
                tokio::task::yield_now().await;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.writable().await?;
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    stream.add_sent_bytes(bytes);
    Ok(())
}

async fn send_file_sealed(
    stream: &mut Stream,
    file: &File,
    offset: u64,
    bytes: u64,
) -> Result<(), SendError> {
    let (mut at, end) = (offset, offset.saturating_add(bytes));
    while at < end {
        let slice = (end - at).min(SEALED_SLICE_BYTES);
        stream.send_file(file, at, slice).await?;
        at += slice;
        if at < end && (at - offset).is_multiple_of(TURN_BYTES_MAX) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Ends a connection after its last response: sends FIN, then discards input for a limited time.
/// Closing a socket with unread bytes sends a RST, which can overtake the response.
pub async fn finish(stream: &mut Stream, session: &mut Session) {
    let write_timeout = session.context().limits().write_timeout;
    // The close_notify is queued behind the response, which a slow client may still be reading.
    stream.set_stall_limit(write_timeout);
    if stream.shutdown().await.is_err() {
        return;
    }
    let drop_input = async {
        let mut dropped = 0;
        while dropped < LINGER_BYTES_MAX {
            let unread = stream.input().len();
            stream.consume(unread);
            dropped += unread;
            match stream.fill().await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    let _ = session.within(write_timeout.min(LINGER), OnDrain::Finish, drop_input).await;
}
