//! The rest of a request's body, from the client to the server, in steps that may be dropped at
//! any point without losing or repeating an byte.

use tokio::net::TcpStream;
use unlade_http::HeadError;
use unlade_metrics::Event;
use unlade_runtime::Stream;

use crate::body::Body;
use crate::buffer::PipeLease;
use crate::splice::{self, Turn};
use crate::upstream;
use crate::worker::Worker;

/// Why an upload ended early.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The client is gone, or its body ends too early.
    Client,
    /// The server takes no more.
    Server,
    /// Chunks are malformed.
    Malformed(HeadError),
    /// There is more than the limit allows.
    TooLarge,
}

/// What is still to be sent.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Body,
    /// Bytes at the front of the client's input that are of the body and not sent yet.
    checked: usize,
    pipe: Option<PipeLease>,
    allowed_bytes: u64,
    abandoned: bool,
    turn: Turn,
}

impl Upload {
    /// `body` of at most `bytes_max` bytes is still in the client's stream.
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

    /// Nothing more is to be sent.
    pub(crate) fn is_done(&self) -> bool {
        self.abandoned || (self.body.is_done() && self.waiting_bytes() == 0)
    }

    /// Nothing more will be sent although there is more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// Nothing more is to be sent, whatever there is.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
        self.pipe = None;
    }

    /// The next step waits for the server.
    pub(crate) fn is_stuck_at_server(&self) -> bool {
        self.waiting_bytes() > 0
    }

    fn waiting_bytes(&self) -> usize {
        self.checked + self.pipe.as_ref().map_or(0, |pipe| pipe.held_bytes)
    }

    /// Takes some bytes from the client, or gives some to the server.
    ///
    /// # Errors
    /// Either side's fault; see [`UploadError`].
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
                // Without a descriptor to be had it goes through the buffer.
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

    /// Finds how much of the input is of the body.
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
