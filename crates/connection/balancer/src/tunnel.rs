//! A connection that has changed its protocol: passes bytes both ways until both sides have ended.
//!
//! ```text
//!  client ──bytes──► open (TLS) ──► up ────────────► server     each direction ends by itself:
//!  client ◄──────── down ◄── seal (TLS) ◄──bytes──── server     an end follows its bytes
//! ```
//! Each direction reads again only after it has written the previous read. Therefore it holds one
//! read at most, and nothing while it is idle. A tunnel that is idle for `timeouts.tunnel_idle` is
//! closed in order. In a drain a tunnel is closed in order at its first pause, or when half of
//! `drain_timeout` is over.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::time::Instant;
use unlade_metrics::{Direction, Event, Gauge};
use unlade_runtime::Stream;
use unlade_runtime::stream::Parts;
use unlade_tls::RecordLayer;

use crate::closing;
use crate::config::Timeouts;
use crate::server::InFlight;
use crate::timer::{Elapsed, Timer};
use crate::upstream::Upstream;
use crate::worker::{DRAIN_QUIET, Worker};

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Bytes that a tunnel moves before it yields to the worker's other connections.
const TURN_BYTES: usize = 1 << 20;
/// Most bytes read and dropped from a side while the tunnel closes.
const LINGER_BYTES_MAX: usize = 4 << 20;

/// A server that has agreed to another protocol.
#[derive(Debug)]
pub(crate) struct Upgraded {
    /// The connection to it; it goes back to no pool.
    pub upstream: Upstream,
    /// Bytes that it has sent behind the head of its response.
    pub behind: Vec<u8>,
    /// The tunnel counts as a request in flight.
    pub in_flight: Option<InFlight>,
}

/// The reason for the end of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Both sides have ended.
    Both,
    /// One side broke: the other must not take its bytes for complete.
    Broken,
    /// Neither side sent anything for too long.
    Idle,
    /// The process drains.
    Drained,
}

/// Passes bytes on both ways until the end.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    stream: Stream,
    upgraded: Upgraded,
    timer: &mut Timer,
    timeouts: &Timeouts,
) {
    worker.meter.add(Event::TunnelOpened);
    worker.meter.gauge_add(Gauge::OpenTunnels, 1);
    let Upgraded { upstream, behind, in_flight } = upgraded;
    let mut tunnel = Tunnel::new(worker, stream.into_parts(), upstream.tcp, &behind);
    closing::may_linger(&tunnel.client);
    closing::may_linger(&tunnel.server);
    let ended = tunnel.watch(timer, timeouts.tunnel_idle).await;
    match ended {
        Ended::Both => {}
        // A reset, so that neither side takes its bytes for complete.
        Ended::Broken => {
            let _ = tunnel.client.set_zero_linger();
            let _ = tunnel.server.set_zero_linger();
        }
        Ended::Idle => worker.meter.add(Event::TunnelIdle),
        Ended::Drained => tracing::debug!("a tunnel is closed by the drain"),
    }
    if ended != Ended::Broken {
        tunnel.close(timer, timeouts.close).await;
    }
    drop(in_flight);
    worker.meter.gauge_add(Gauge::OpenTunnels, -1);
}

/// Both connections, and the bytes between them.
struct Tunnel<'w> {
    worker: &'w Worker,
    client: TcpStream,
    record: Option<Box<RecordLayer>>,
    server: TcpStream,
    /// Bytes for the server.
    up: Waiting,
    /// Bytes for the client, encrypted if it has TLS.
    down: Waiting,
    /// The client sends no more; the server sends no more.
    client_ended: bool,
    server_ended: bool,
    /// The end was passed on, or its receiver is gone.
    up_over: bool,
    down_over: bool,
    last: Instant,
}

/// Bytes that wait to be written.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    start: usize,
}

impl Waiting {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.start >= self.bytes.len()
    }

    /// Writes all bytes; ready when nothing is left. An idle direction keeps no memory.
    fn poll_flush(
        &mut self,
        to: &TcpStream,
        context: &mut Context<'_>,
        mut moved: impl FnMut(usize),
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            match to.try_write(self.rest()) {
                Ok(count) => {
                    self.start += count;
                    moved(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(to.poll_write_ready(context))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        *self = Waiting::default();
        Poll::Ready(Ok(()))
    }
}

/// Reads the available bytes once; waits until there are some.
fn poll_read(
    from: &TcpStream,
    into: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(from.poll_read_ready(context))?;
        into.reserve(READ_BYTES);
        match from.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return Poll::Ready(other),
        }
    }
}

/// One side of a tunnel broke.
struct Broken;

impl<'w> Tunnel<'w> {
    fn new(worker: &'w Worker, client: Parts, server: TcpStream, behind: &[u8]) -> Tunnel<'w> {
        let mut tunnel = Tunnel {
            worker,
            client: client.tcp,
            record: client.record,
            server,
            up: Waiting { bytes: client.input, start: 0 },
            down: Waiting::default(),
            client_ended: client.ended,
            server_ended: false,
            up_over: false,
            down_over: false,
            last: Instant::now(),
        };
        // These bytes are counted as received already.
        let early = tunnel.up.bytes.len() as u64;
        worker.meter.add_n(Event::TunnelBytes(Direction::ToServer), early);
        tunnel.came(behind.len(), Direction::ToClient);
        tunnel.seal(behind);
        tunnel
    }

    /// Moves bytes until both directions are over.
    async fn watch(&mut self, timer: &mut Timer, idle: Duration) -> Ended {
        let worker = self.worker;
        let mut drain_until: Option<Instant> = None;
        loop {
            let deadline = match drain_until {
                None => self.last + idle,
                Some(until) => (self.last + DRAIN_QUIET).min(until),
            };
            let before = self.last;
            let moving = async {
                tokio::select! {
                    biased;
                    ended = poll_fn(|context| self.poll(context)) => Some(ended),
                    () = worker.drained(), if drain_until.is_none() => None,
                }
            };
            match timer.until(deadline, moving).await {
                Ok(Some(Ok(()))) => return Ended::Both,
                Ok(Some(Err(Broken))) => return Ended::Broken,
                Ok(None) => {
                    let half = worker.plan().config.drain_timeout / 2;
                    drain_until = Some(Instant::now() + half);
                }
                Err(Elapsed) => match drain_until {
                    Some(until) if self.last == before || until <= Instant::now() => {
                        return Ended::Drained;
                    }
                    None if self.last == before => return Ended::Idle,
                    _ => {}
                },
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let (mut moved, mut waits) = (0, [false; 2]);
        while waits != [true; 2] {
            if moved >= TURN_BYTES {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            waits = [self.up_over, self.down_over];
            if !self.up_over {
                match self.poll_up(context) {
                    Poll::Ready(bytes) => moved += bytes?,
                    Poll::Pending => waits[0] = true,
                }
            }
            if !self.down_over {
                match self.poll_down(context) {
                    Poll::Ready(bytes) => moved += bytes?,
                    Poll::Pending => waits[1] = true,
                }
            }
        }
        match self.up_over && self.down_over {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Reads once from the client, or detects its end, after all earlier bytes were written.
    /// Returns the number of bytes.
    fn poll_up(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Broken>> {
        let last = &mut self.last;
        let flushed = self.up.poll_flush(&self.server, context, |_| *last = Instant::now());
        if ready!(flushed).is_err() {
            // The server reads no more; its own bytes are still to be passed on.
            self.up_over = true;
            return Poll::Ready(Ok(0));
        }
        if self.client_ended {
            self.up_over = true;
            let _ = rustix::net::shutdown(self.server.as_fd(), Shutdown::Write);
            return Poll::Ready(Ok(0));
        }
        let Some(record) = self.record.as_deref_mut() else {
            let read = ready!(poll_read(&self.client, &mut self.up.bytes, context));
            let count = read.map_err(|_| Broken)?;
            self.client_ended = count == 0;
            self.came(count, Direction::ToServer);
            return Poll::Ready(Ok(count));
        };
        // Buffered bytes come first.
        let received = record.process(&mut self.up.bytes);
        let received = received.map_err(|_| self.worker.meter.add(Event::TlsBroken));
        let received = received.map_err(|()| Broken)?;
        if received.output_pending {
            record.take_output(&mut self.down.bytes);
        }
        self.client_ended = received.close_notify;
        let count = self.up.bytes.len();
        if count == 0 && !self.client_ended {
            let read = ready!(poll_read(&self.client, record.receive_spare(), context));
            // An end without close_notify may be an attacker's (RFC 8446 §6.1).
            return match read {
                Ok(count) if count > 0 => Poll::Ready(Ok(count)),
                _ => Poll::Ready(Err(Broken)),
            };
        }
        self.came(count, Direction::ToServer);
        Poll::Ready(Ok(count))
    }

    /// As [`Tunnel::poll_up`], from the server.
    fn poll_down(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Broken>> {
        let last = &mut self.last;
        let flushed = self.down.poll_flush(&self.client, context, |_| *last = Instant::now());
        ready!(flushed).map_err(|_| Broken)?;
        if self.server_ended {
            self.down_over = true;
            let _ = rustix::net::shutdown(self.client.as_fd(), Shutdown::Write);
            return Poll::Ready(Ok(0));
        }
        if self.record.is_none() {
            let read = ready!(poll_read(&self.server, &mut self.down.bytes, context));
            let count = read.map_err(|_| Broken)?;
            self.server_ended = count == 0;
            self.came(count, Direction::ToClient);
            return Poll::Ready(Ok(count));
        }
        let mut bytes = Vec::new();
        let count = ready!(poll_read(&self.server, &mut bytes, context)).map_err(|_| Broken)?;
        self.server_ended = count == 0;
        self.came(count, Direction::ToClient);
        match self.server_ended {
            true => self.seal_end(),
            false => self.seal(&bytes),
        }
        Poll::Ready(Ok(count))
    }

    fn came(&mut self, bytes: usize, to: Direction) {
        self.last = Instant::now();
        let total = match to {
            Direction::ToServer => Event::BytesIn,
            Direction::ToClient => Event::BytesOut,
        };
        self.worker.meter.add_n(total, bytes as u64);
        self.worker.meter.add_n(Event::TunnelBytes(to), bytes as u64);
    }

    /// Appends bytes of the server to those that wait for the client.
    fn seal(&mut self, bytes: &[u8]) {
        let Some(record) = self.record.as_deref_mut() else {
            return self.down.bytes.extend_from_slice(bytes);
        };
        record.take_output(&mut self.down.bytes);
        if !bytes.is_empty() && record.seal(bytes, &mut self.down.bytes).is_err() {
            // The sequence numbers of the record layer are used up: the direction ends here.
            self.server_ended = true;
        }
    }

    fn seal_end(&mut self) {
        if let Some(record) = self.record.as_deref_mut() {
            record.close_notify(&mut self.down.bytes);
        }
    }

    /// Ends both directions that have not ended, and waits for a limited time for the other side's
    /// end: a close with unread bytes would reset the connection.
    async fn close(mut self, timer: &mut Timer, limit: Duration) {
        let deadline = Instant::now() + limit;
        if !self.down_over {
            self.seal_end();
            let flushing = poll_fn(|context| self.down.poll_flush(&self.client, context, |_| {}));
            let _ = timer.until(deadline, flushing).await;
            let _ = rustix::net::shutdown(self.client.as_fd(), Shutdown::Write);
        }
        if !self.up_over {
            let _ = rustix::net::shutdown(self.server.as_fd(), Shutdown::Write);
        }
        let mut sides = Vec::new();
        if !self.client_ended {
            sides.push(&self.client);
        }
        if !self.server_ended {
            sides.push(&self.server);
        }
        for side in sides {
            let mut dropped = Vec::new();
            let mut total = 0;
            let sinking = poll_fn(|context| {
                while let Ok(1..) = ready!(poll_read(side, &mut dropped, context)) {
                    total += dropped.len();
                    dropped.clear();
                    if total > LINGER_BYTES_MAX {
                        break;
                    }
                }
                Poll::Ready(())
            });
            let _ = timer.until(deadline, sinking).await;
        }
    }
}
