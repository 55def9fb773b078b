//! An adopted connection as an ordinary stream.
//!
//! Reads and writes work as on any connection. Only the step between requests differs:
//! [`HandoffStream::next_request`] waits for a request that this server may answer, and gives the
//! connection back if the next request belongs to another server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use unlade_handoff_protocol::frame::{CloseReason, ReturnReason};
use unlade_http::{HeadLimits, RequestHead};
use unlade_runtime::stream::Stream;
use unlade_tls::RecordLayer;

use crate::agent::Agent;
use crate::release::{GivenBack, Lease};

/// Time limit from the first byte of a head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes that one write accepts.
const WRITE_BYTES_MAX: usize = 256 * 1024;

type Writing = Pin<Box<dyn Future<Output = (Box<Lease>, io::Result<()>)>>>;

/// StreamState of a [`HandoffStream`].
enum StreamState {
    Idle(Box<Lease>),
    /// An accepted write is in progress.
    Writing(Writing),
    /// The connection was given back or has ended.
    Gone,
}

/// A connection that a balancer handed over.
///
/// Bytes are read and written in order, as on any stream. An accepted write has been passed to the
/// kernel when `flush` returns. Do not read past the request: the bytes that follow belong to the
/// server that answers the next request.
pub struct HandoffStream {
    state: StreamState,
    agent: Rc<Agent>,
    peer: SocketAddr,
    /// `next_request` has returned a request; the next call counts it as answered.
    answering: bool,
    limits: HeadLimits,
}

impl std::fmt::Debug for HandoffStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HandoffStream {{ peer: {} }}", self.peer)
    }
}

/// Next event on an idle connection.
enum Next {
    Request(RequestHead),
    GiveBack(ReturnReason),
    /// The client has ended the connection.
    Ended,
    /// The lease has expired, or the balancer took the connection back.
    Aborted,
    Failed(io::Error),
}

impl HandoffStream {
    pub(crate) fn new(lease: Lease, agent: Rc<Agent>) -> HandoffStream {
        let peer = lease.peer_address();
        let state = StreamState::Idle(Box::new(lease));
        HandoffStream { state, agent, peer, answering: false, limits: HeadLimits::default() }
    }

    /// Returns the client's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the TLS record layer, if the connection has one. Returns None during a write.
    pub fn record(&self) -> Option<&RecordLayer> {
        match &self.state {
            StreamState::Idle(lease) => lease.stream_ref().record(),
            _ => None,
        }
    }

    /// Waits for the next request that this server may answer. Returns its head, which is still at
    /// the front of [`HandoffStream::input`], or None if the client ended the connection or it was
    /// given back.
    ///
    /// Call this after the last response is written and its request is consumed completely. Do not
    /// cancel it: a connection that is being given back would be lost.
    ///
    /// # Errors
    /// `InvalidData` for an invalid request, after which a response can still be written;
    /// `TimedOut` for an incomplete head; `ConnectionAborted` if the balancer sent nothing during
    /// the lease; an error of the socket.
    pub async fn next_request(&mut self) -> io::Result<Option<RequestHead>> {
        std::future::poll_fn(|context| self.poll_written(context)).await?;
        if let StreamState::Idle(lease) = &mut self.state
            && std::mem::take(&mut self.answering)
        {
            lease.count_request();
        }
        loop {
            let StreamState::Idle(lease) = &mut self.state else { return Ok(None) };
            match next(lease, &self.limits).await {
                Next::Request(head) => {
                    self.answering = true;
                    return Ok(Some(head));
                }
                Next::GiveBack(reason) => {
                    let StreamState::Idle(lease) =
                        std::mem::replace(&mut self.state, StreamState::Gone)
                    else {
                        return Ok(None);
                    };
                    match lease.give_back(&self.agent, reason).await {
                        GivenBack::Gone => return Ok(None),
                        GivenBack::Stay(same) => self.state = StreamState::Idle(same),
                    }
                }
                Next::Ended => {
                    self.close(CloseReason::ByClient);
                    return Ok(None);
                }
                Next::Aborted => {
                    self.abort();
                    return Err(aborted());
                }
                Next::Failed(error) => {
                    if error.kind() != io::ErrorKind::InvalidData {
                        self.close(CloseReason::Broken);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the unconsumed input. It begins with the request whose head was returned last.
    pub fn input(&self) -> &[u8] {
        match &self.state {
            StreamState::Idle(lease) => lease.stream_ref().input(),
            _ => &[],
        }
    }

    /// Discards the first `bytes` bytes of [`HandoffStream::input`].
    pub fn consume(&mut self, bytes: usize) {
        if let StreamState::Idle(lease) = &mut self.state {
            lease.stream().consume(bytes);
        }
    }

    /// Returns the underlying stream, for operations that this type lacks, such as sending a file.
    /// Waits for writes in progress.
    ///
    /// # Errors
    /// A failed write, or `NotConnected` if the connection is gone.
    pub async fn stream(&mut self) -> io::Result<&mut Stream> {
        std::future::poll_fn(|context| self.poll_written(context)).await?;
        match &mut self.state {
            StreamState::Idle(lease) => Ok(lease.stream()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn close(&mut self, reason: CloseReason) {
        if let StreamState::Idle(lease) = std::mem::replace(&mut self.state, StreamState::Gone) {
            lease.close(&self.agent, reason);
        }
    }

    fn abort(&mut self) {
        if let StreamState::Idle(lease) = std::mem::replace(&mut self.state, StreamState::Gone) {
            match lease.is_aborted() {
                true => lease.abort(),
                // The process was stopped for longer than the lease, and no timer has fired yet.
                false => lease.expire(&self.agent),
            }
        }
    }

    /// Polls the write in progress until it has ended.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let StreamState::Writing(writing) = &mut self.state else { return Poll::Ready(Ok(())) };
        let (lease, written) = ready!(writing.as_mut().poll(context));
        self.state = StreamState::Idle(lease);
        if let Err(error) = &written {
            match error.kind() {
                io::ErrorKind::ConnectionAborted => self.abort(),
                _ => self.close(CloseReason::Broken),
            }
        }
        Poll::Ready(written)
    }
}

impl Drop for HandoffStream {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, StreamState::Gone);
        let agent = Rc::clone(&self.agent);
        match state {
            StreamState::Idle(lease) => lease.close(&agent, CloseReason::ByServer),
            // Accepted bytes are still sent, as the kernel does for a closed socket.
            StreamState::Writing(writing) => {
                tokio::task::spawn_local(async move {
                    let (lease, _) = writing.await;
                    lease.close(&agent, CloseReason::ByServer);
                });
            }
            StreamState::Gone => {}
        }
    }
}

fn aborted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the balancer was not heard of for too long")
}

/// Waits for the next event; consumes no input.
async fn next(lease: &mut Lease, limits: &HeadLimits) -> Next {
    let mut begun: Option<Instant> = None;
    loop {
        if lease.is_over() {
            return Next::Aborted;
        }
        let input = lease.stream().input();
        match RequestHead::parse(input, limits) {
            Ok(Some(head)) => {
                return match lease.admits(&head, lease.stream_ref().input()) {
                    Ok(()) => Next::Request(head),
                    Err(reason) => Next::GiveBack(reason),
                };
            }
            Ok(None) => {}
            Err(error) => {
                return Next::Failed(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        let limit = match input.is_empty() {
            true => lease.idle_return().max(Duration::from_millis(1)),
            false => HEAD_TIMEOUT.saturating_sub(begun.get_or_insert_with(Instant::now).elapsed()),
        };
        let (aborted, recalled) = (lease.aborted(), lease.recalled());
        tokio::select! {
            biased;
            () = aborted => return Next::Aborted,
            reason = recalled => return Next::GiveBack(reason),
            filled = timeout(limit, lease.stream().fill()) => match filled {
                Ok(Ok(0)) => return Next::Ended,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Next::Failed(error),
                Err(_) if begun.is_some() => return Next::Failed(io::ErrorKind::TimedOut.into()),
                Err(_) => return Next::GiveBack(ReturnReason::Idle),
            }
        }
    }
}

impl AsyncRead for HandoffStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context))?;
        loop {
            let StreamState::Idle(lease) = &mut self.state else { return Poll::Ready(Ok(())) };
            let input = lease.stream().input();
            if !input.is_empty() || buffer.remaining() == 0 {
                let count = input.len().min(buffer.remaining());
                buffer.put_slice(input.get(..count).unwrap_or_default());
                lease.stream().consume(count);
                return Poll::Ready(Ok(()));
            }
            if pin!(lease.aborted()).poll(context).is_ready() {
                self.abort();
                return Poll::Ready(Err(aborted()));
            }
            // `fill` is cancel-safe, so each poll may create a new future.
            if ready!(pin!(lease.stream().fill()).poll(context))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for HandoffStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(context))?;
        let StreamState::Idle(mut lease) = std::mem::replace(&mut self.state, StreamState::Gone)
        else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let bytes = bytes.get(..WRITE_BYTES_MAX).unwrap_or(bytes).to_vec();
        let count = bytes.len();
        self.state = StreamState::Writing(Box::pin(async move {
            let over = lease.aborted();
            let written = tokio::select! {
                biased;
                () = over => Err(aborted()),
                written = lease.stream().write_all(&bytes, false) => written,
            };
            (lease, written)
        }));
        // Most writes complete here. The next call reports a later error.
        match self.poll_written(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(context))?;
        let StreamState::Idle(mut lease) = std::mem::replace(&mut self.state, StreamState::Gone)
        else {
            return Poll::Ready(Ok(()));
        };
        self.state = StreamState::Writing(Box::pin(async move {
            let ended = lease.stream().shutdown().await;
            (lease, ended)
        }));
        self.poll_written(context)
    }
}
