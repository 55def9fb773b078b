//! Closes client connections.

use std::io;

use tokio::net::TcpStream;
use tokio::time::Instant;
use unlade_metrics::{Event, Meter, StatusClass};
use unlade_runtime::Stream;

use crate::config::Timeouts;
use crate::respond::{self, Refusal};
use crate::timer::Timer;

/// Most bytes read and dropped from a client while the connection closes.
const LINGER_BYTES_MAX: usize = 4 << 20;
/// Bytes dropped per read.
const LINGER_READ_BYTES: usize = 16 * 1024;

/// The way to close a connection.
#[derive(Debug)]
pub(crate) enum Close {
    /// At once: the client closed, or the connection broke.
    Now,
    /// In order; the client expects it. close_notify tells a TLS client that the data is complete
    /// (RFC 8446 §6.1).
    InOrder,
    /// In order, but the client may still be sending: see [`close_gently`].
    Gently,
    /// As `Gently`, after a response of the balancer itself.
    Refused {
        /// The response.
        refusal: Refusal,
        /// The request was HEAD.
        head_only: bool,
    },
    /// By a reset: the last response is incomplete, and the client must notice that.
    Reset,
}

impl Close {
    /// Returns the way to close a connection whose request is refused before its method is known.
    pub(crate) fn refused(refusal: Refusal) -> Close {
        Close::Refused { refusal, head_only: false }
    }
}

/// Does what precedes the close of `stream`; its drop closes it.
pub(crate) async fn close(
    stream: &mut Stream,
    how: Close,
    timer: &mut Timer,
    timeouts: &Timeouts,
    meter: &Meter,
) {
    match how {
        Close::Now => {}
        Close::InOrder => {
            let _ = end_sending(stream, timeouts).await;
        }
        Close::Gently => close_gently(stream, timer, timeouts).await,
        Close::Refused { refusal, head_only } => {
            let mut out = Vec::new();
            respond::write(refusal, false, head_only, &mut out);
            meter.add(Event::Response(StatusClass::of(refusal.status)));
            let sent = timer.limit(timeouts.close, stream.write_all(&out, false)).await;
            if matches!(sent, Ok(Ok(()))) {
                close_gently(stream, timer, timeouts).await;
            }
        }
        Close::Reset => {
            let _ = stream.tcp().set_zero_linger();
        }
    }
}

/// Returns true if both directions of a connection have ended, or it was reset.
pub(crate) fn is_gone(tcp: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut seen = [PollFd::new(tcp, PollFlags::empty())];
    // Also if nothing else is asked for, poll(2) tells these two.
    poll(&mut seen, Some(&Timespec::default())).is_ok()
        && seen[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Lets the kernel send what a socket has been given after its close. That of a connection with direct
/// return resets it, unless the end is in order: the peer of a process that was killed is told so.
pub(crate) fn may_linger(tcp: &TcpStream) {
    // It fails for no socket.
    let _ = rustix::net::sockopt::set_socket_linger(tcp, None);
}

/// Ends the sending direction. The close_notify for a client that reads slowly waits behind the
/// response.
async fn end_sending(stream: &mut Stream, timeouts: &Timeouts) -> io::Result<()> {
    stream.set_stall_limit(timeouts.body_stall);
    stream.shutdown().await
}

/// Ends the sending direction and waits for a limited time until the client has ended its own: a
/// close with unread bytes would reset the connection, and the client might lose the response (RFC
/// 9112 §9.6).
pub(crate) async fn close_gently(stream: &mut Stream, timer: &mut Timer, timeouts: &Timeouts) {
    if end_sending(stream, timeouts).await.is_err() {
        return;
    }
    let deadline = Instant::now() + timeouts.close;
    let mut sink = vec![0; LINGER_READ_BYTES];
    let mut dropped = 0;
    while dropped < LINGER_BYTES_MAX {
        let tcp = stream.tcp();
        match tcp.try_read(&mut sink) {
            Ok(0) => return,
            Ok(bytes) => dropped += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !matches!(timer.until(deadline, tcp.readable()).await, Ok(Ok(()))) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
