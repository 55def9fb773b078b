//! Sends the rest of a request's body from the client to the server, in steps that may be dropped
//! at any point without losing or repeating a byte.

use tokio::net::TcpStream;
use unlade_http::HeadError;
use unlade_http::forward::Body;
use unlade_metrics::Event;
use unlade_runtime::Stream;

use crate::buffer::PipeLease;
use crate::splice::{self, Turn};
use crate::upstream;
use crate::worker::Worker;

/// Reason why an upload ended early.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The client is gone, or its body ends too early.
    Client,
    /// The server reads no more.
    Server,
    /// Chunks are malformed.
    Malformed(HeadError),
    /// There is more than the limit allows.
    TooLarge,
}

/// The unsent rest of a request's body.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Body,
    /// Bytes at the front of the client's input that belong to the body and are unsent.
    checked: usize,
    pipe: Option<PipeLease>,
    allowed_bytes: u64,
    abandoned: bool,
    turn: Turn,
}

impl Upload {
    /// Creates the upload of `body`, at most `bytes_max` bytes, which is still in the client's
    /// stream.
    pub(crate) fn new(body: Body, bytes_max: u64) -> Upload {
        Upload {
            body,
            checked: 0,
            pipe: None,
            allowed_bytes: bytes_max,
            abandoned: false,
            turn: Turn::default(),
        }
    }

    /// Returns true if nothing more is to be sent.
    pub(crate) fn is_done(&self) -> bool {
        self.abandoned || (self.body.is_done() && self.waiting_bytes() == 0)
    }

    /// Returns true if the rest will not be sent.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Drops the unsent rest.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
        self.pipe = None;
    }

    /// Returns true if the next step waits for the server.
    pub(crate) fn is_stuck_at_server(&self) -> bool {
        self.waiting_bytes() > 0
    }

    fn waiting_bytes(&self) -> usize {
        self.checked + self.pipe.as_ref().map_or(0, |pipe| pipe.held_bytes)
    }

    /// Reads some bytes from the client, or writes some to the server.
    ///
    /// # Errors
    /// An error of either side; see [`UploadError`].
    pub(crate) async fn step(
        &mut self,
        client: &mut Stream,
        server: &TcpStream,
        worker: &Worker,
    ) -> Result<(), UploadError> {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.held_bytes > 0) {
            let sent = splice::push(pipe, server, false).await;
            let sent = sent.map_err(|_| UploadError::Server)?;
            self.turn.moved(sent as u64).await;
            return Ok(());
        }
        if self.checked > 0 {
            let bytes = client.input().get(..self.checked).unwrap_or_default();
            let sent = upstream::write(server, bytes).await.map_err(|_| UploadError::Server)?;
            client.consume(sent);
            self.checked -= sent.min(self.checked);
            return Ok(());
        }
        if !client.input().is_empty() {
            return self.check(client.input());
        }
        if !client.is_tls() && worker.plan().config.body.splices(self.body.blind_bytes()) {
            if self.pipe.is_none() {
                // Without a free descriptor the body goes through the buffer.
                self.pipe = worker.pipes.take().ok();
            }
            if self.pipe.is_some() {
                return self.pull(client, worker).await;
            }
        }
        match client.fill().await {
            Ok(1..) => Ok(()),
            _ => Err(UploadError::Client),
        }
    }

    /// Finds how many bytes of the input belong to the body.
    fn check(&mut self, input: &[u8]) -> Result<(), UploadError> {
        let taken = self.body.advance(input).map_err(UploadError::Malformed)?;
        self.allow(taken as u64)?;
        self.checked = taken;
        Ok(())
    }

    fn allow(&mut self, bytes: u64) -> Result<(), UploadError> {
        let left = self.allowed_bytes.checked_sub(bytes).ok_or(UploadError::TooLarge)?;
        self.allowed_bytes = left;
        Ok(())
    }

    async fn pull(&mut self, client: &Stream, worker: &Worker) -> Result<(), UploadError> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let due = self.body.blind_bytes();
        match splice::pull(client.tcp(), pipe, due).await {
            Ok(moved @ 1..) => {
                worker.meter.add_n(Event::BytesIn, moved as u64);
                self.body.skip(moved as u64);
                self.allow(moved as u64)
            }
            _ => Err(UploadError::Client),
        }
    }
}
