//! The request as the local server gets it, and the rest of its body.

use unlade_http::forward::{self, Body, ClientOrigin};
use unlade_http::{HeadError, Method, RequestHead};
use unlade_runtime::Stream;

use super::socket::Socket;

/// Most bytes of a body that are sent with the head, in one write, and can be sent again.
const FIRST_BYTES_MAX: usize = 64 * 1024;

/// A request that is being forwarded.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its head, written anew, and the part of its body that came with it.
    pub(crate) sent: Vec<u8>,
    /// The rest of its body, still in the client's stream.
    pub(crate) rest: Body,
    pub(crate) method: Method,
    /// The client uses HTTP/1.0.
    pub(crate) http10: bool,
    pub(crate) keep_alive: bool,
    /// The client waits for an interim response before it sends the body.
    pub(crate) awaits_continue: bool,
}

impl Request {
    /// Writes the request at the front of the client's input anew into `out`, and consumes it.
    /// `authority` replaces the host in a request of HTTP/1.0 that has none.
    ///
    /// # Errors
    /// The body is malformed at its start.
    pub(crate) fn prepare(
        client: &mut Stream,
        head: &RequestHead,
        authority: &str,
        mut out: Vec<u8>,
    ) -> Result<Request, HeadError> {
        out.clear();
        let input = client.input();
        let address = client.peer().ip().to_canonical().to_string();
        // A protocol is changed through the balancer only, so none is offered.
        let origin =
            ClientOrigin { client: &address, tls: client.is_tls(), authority, upgrade: None };
        forward::request(head, input, &origin, &mut out);
        let mut rest = Body::new(head.framing());
        let behind = input.get(head.head_bytes()..).unwrap_or_default();
        let behind = behind.get(..FIRST_BYTES_MAX).unwrap_or(behind);
        let taken = rest.advance(behind)?;
        out.extend_from_slice(behind.get(..taken).unwrap_or_default());
        client.consume(head.head_bytes() + taken);
        Ok(Request {
            sent: out,
            rest,
            method: head.method(),
            http10: head.is_http10(),
            keep_alive: head.keep_alive(),
            awaits_continue: head.expects_continue() && taken == 0,
        })
    }
}

/// Reason why an upload ended early.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The client is gone, or its body ends too early.
    Client,
    /// The local server reads no more.
    Server,
    /// Chunks are malformed.
    Malformed(HeadError),
}

/// The unsent rest of a request's body.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Body,
    /// Bytes at the front of the client's input that belong to the body and are unsent.
    checked: usize,
    abandoned: bool,
}

impl Upload {
    /// Creates the upload of `body`, which is still in the client's stream.
    pub(crate) fn new(body: Body) -> Upload {
        Upload { body, checked: 0, abandoned: false }
    }

    /// Returns true if nothing more is to be sent.
    pub(crate) fn is_done(&self) -> bool {
        self.abandoned || (self.body.is_done() && self.checked == 0)
    }

    /// Returns true if the rest will not be sent.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Gives up the unsent rest.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Returns true if the next step waits for the local server.
    pub(crate) fn is_stuck_at_server(&self) -> bool {
        self.checked > 0
    }

    /// Reads some bytes from the client, or writes some to the local server. Nothing is lost or
    /// repeated if the step is dropped.
    ///
    /// # Errors
    /// [`UploadError`].
    pub(crate) async fn step(
        &mut self,
        client: &mut Stream,
        server: &Socket,
    ) -> Result<(), UploadError> {
        if self.checked > 0 {
            let bytes = client.input().get(..self.checked).unwrap_or_default();
            let sent = server.write(bytes).await.map_err(|_| UploadError::Server)?;
            client.consume(sent);
            self.checked = self.checked.saturating_sub(sent);
            return Ok(());
        }
        if !client.input().is_empty() {
            let taken = self.body.advance(client.input()).map_err(UploadError::Malformed)?;
            self.checked = taken;
            return Ok(());
        }
        match client.fill().await {
            Ok(1..) => Ok(()),
            _ => Err(UploadError::Client),
        }
    }
}
