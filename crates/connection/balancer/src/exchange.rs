//! The results of an exchange of one request and its response, and the causes of failure.

use std::time::Duration;

use unlade_http::HeadError;

use crate::respond::Refusal;
use crate::tunnel::Upgraded;
use crate::ways::Pick;

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Answered; the next request may follow.
    KeepAlive,
    /// Answered; the connection ends.
    Close,
    /// Nothing was sent to the client: send this response and close.
    Refused(Refusal),
    /// The response is incomplete, or the client broke the connection.
    Abort,
    /// The server has changed the protocol, and the client has received the 101.
    Upgraded(Box<Upgraded>),
}

/// The result of a request, and the values to count.
#[derive(Debug)]
pub(crate) struct Done {
    /// The result.
    pub ended: Ended,
    /// Status of the response; 0 if none was begun.
    pub status: u16,
    /// Bytes of the response's body.
    pub response_bytes: u64,
    /// Part of the request has not been read.
    pub unread: bool,
    /// The request was HEAD.
    pub head_only: bool,
    /// Time since the client has had the whole response, if the end is seen later.
    pub age: Duration,
    /// The way of the response, whose time ends with the client's next request.
    pub timed: Option<Pick>,
}

impl Done {
    /// Creates the result of a request for which nothing was sent to the client.
    pub(crate) fn refused(refusal: Refusal) -> Done {
        Done::without_response(Ended::Refused(refusal))
    }

    /// Creates the result of a request whose client is gone, or gets no complete response.
    pub(crate) fn aborted() -> Done {
        Done::without_response(Ended::Abort)
    }

    fn without_response(ended: Ended) -> Done {
        let (status, response_bytes, age) = (0, 0, Duration::ZERO);
        Done { ended, status, response_bytes, unread: true, head_only: false, age, timed: None }
    }
}

/// The cause of a failed exchange.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The server closed before its answer was complete.
    Server,
    /// The server made no progress in time.
    Slow,
    /// The server's answer is malformed.
    Malformed(HeadError),
    /// The client is gone.
    Client,
    /// The client made no progress in time.
    ClientSlow,
    /// The client's body is malformed.
    Body(HeadError),
    /// The client's body is too large.
    TooLarge,
}
