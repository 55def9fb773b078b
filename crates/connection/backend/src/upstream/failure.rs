//! Causes of a failed request, and the answers to them.

use std::io;

use unlade_http::HeadError;
use unlade_metrics::SidecarFailure;

/// The cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// No connection to the local server.
    #[error("the local server cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// No connection to the local server in time.
    #[error("the local server did not accept in time")]
    ConnectTimeout,
    /// No head of a response in time.
    #[error("the local server did not answer in time")]
    ResponseTimeout,
    /// The local server closed before its response was complete.
    #[error("the local server closed the connection")]
    Closed,
    /// The local server's response is malformed.
    #[error("the local server's answer is malformed: {0}")]
    BadResponse(#[source] HeadError),
    /// The local server neither read nor sent a byte of a body in time.
    #[error("the local server made no progress in time")]
    Stalled,
    /// The client is gone.
    #[error("the client left")]
    ClientGone,
    /// The client neither sent nor acknowledged a byte of a body in time.
    #[error("the client made no progress in time")]
    ClientStalled,
    /// The request's body is malformed.
    #[error("the request's body is malformed: {0}")]
    Body(#[source] HeadError),
}

/// A response without the local server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// One line for the client.
    pub why: &'static str,
}

impl Failed {
    /// Returns the label for the metric of failures; None if the client is the cause.
    pub(crate) fn label(&self) -> Option<SidecarFailure> {
        match self {
            Failed::Connect(_) => Some(SidecarFailure::Connect),
            Failed::ConnectTimeout => Some(SidecarFailure::ConnectTimeout),
            Failed::ResponseTimeout => Some(SidecarFailure::ResponseTimeout),
            Failed::Closed => Some(SidecarFailure::Closed),
            Failed::BadResponse(_) => Some(SidecarFailure::BadResponse),
            Failed::Stalled => Some(SidecarFailure::Stalled),
            Failed::ClientGone | Failed::ClientStalled | Failed::Body(_) => None,
        }
    }

    /// Returns the answer for the client, if nothing was sent to it; None if it is gone.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let (status, why) = match self {
            Failed::Connect(_) => (502, "the local server cannot be reached"),
            Failed::ConnectTimeout => (504, "the local server did not accept in time"),
            Failed::ResponseTimeout => (504, "the local server did not answer in time"),
            Failed::Closed => (502, "the local server closed the connection"),
            Failed::BadResponse(_) => (502, "the local server's answer is malformed"),
            Failed::Stalled => (504, "the local server made no progress in time"),
            Failed::ClientGone => return None,
            Failed::ClientStalled => (408, "the request's body did not come in time"),
            Failed::Body(error) => (error.status(), "the request's body is malformed"),
        };
        Some(Refusal { status, why })
    }
}
