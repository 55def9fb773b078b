//! Connections to servers, kept alive by the worker that opened them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::Instant;
use unlade_channel::channel::ChannelError;
use unlade_channel::sealing::SealingSender;
use unlade_channel::trust::{Membership, server_name};
use unlade_metrics::{Event, Gauge, GaugeGuard, Meter, Stage};
use unlade_net::FlowKey;
use unlade_steering::splice::SpliceError;

use crate::config::UpstreamConfig;
use crate::direct_pool::DirectPool;
use crate::splices::{ServerEnd, Splices};

/// Most idle connections that a worker keeps to all servers.
const IDLE_MAX: usize = 8192;

/// Longest time for the end of an idle connection; then it is reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The socket.
    pub tcp: TcpStream,
    /// The server.
    pub address: SocketAddr,
    /// It has answered a request before.
    pub reused: bool,
    /// Its slot, from the first request on whose response could bypass this balancer's sockets.
    pub end: Option<ServerEnd>,
    /// Encrypts what is written, if an agent seals responses on the connection.
    pub sealing: Option<Box<SealingSender>>,
    /// It must not be used again.
    pub is_broken: bool,
    /// Counts the connection as busy until it is idle or closed.
    _busy: GaugeGuard,
}

impl Upstream {
    /// Writes as many of `bytes` as the socket accepts; waits until it accepts some. Nothing is
    /// lost if the future is dropped before it is ready.
    ///
    /// # Errors
    /// The socket's error.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.tcp, bytes).await
    }

    /// Limits what the server may send after the next request, which is for a path.
    ///
    /// # Errors
    /// There is no slot for the connection.
    pub(crate) fn limit(
        &mut self,
        splices: &Splices,
        pool: &DirectPool,
        path: u64,
    ) -> Result<(), SpliceError> {
        if let Some(end) = &mut self.end {
            return splices.limit(end, pool, path);
        }
        let local = self.tcp.local_addr().map_err(|_| SpliceError::Closed)?;
        let flow = FlowKey::new(local, self.address);
        self.end = Some(splices.open_server(&flow, pool, path)?);
        // Also if this process is killed within a response: its host sends to the client.
        let _ = self.tcp.set_zero_linger();
        Ok(())
    }
}

/// See [`Upstream::write`].
///
/// # Errors
/// The socket's error.
pub(crate) async fn write(tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    use rustix::net::{SendFlags, send};
    loop {
        let sent = tcp.try_io(Interest::WRITABLE, || {
            send(tcp.as_fd(), bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[derive(Debug)]
struct Idle {
    tcp: TcpStream,
    end: Option<ServerEnd>,
    sealing: Option<Box<SealingSender>>,
    until: Instant,
}

impl Idle {
    /// Closes the connection in order, where that of one with direct return would reset it. It keeps its
    /// slot meanwhile, because its sequence numbers are translated.
    fn close(self) {
        if self.end.is_some() {
            tokio::task::spawn_local(self.end_both_ways());
        }
    }

    async fn end_both_ways(mut self) {
        let ending = async {
            self.tcp.shutdown().await?;
            // A server that sends on is interrupted by the time-out: each read yields in its turn.
            while self.tcp.read(&mut [0; 1024]).await? > 0 {}
            io::Result::Ok(())
        };
        let ended = tokio::time::timeout(CLOSE_TIMEOUT, ending).await;
        tracing::trace!(?ended, "an idle connection to a server is closed");
    }
}

/// The idle connections of a worker, by server, the one used last at the end. Those whose server
/// has a limit are apart: a server that was granted more cannot get it back.
#[derive(Debug)]
pub(crate) struct Upstreams {
    idle: RefCell<HashMap<(SocketAddr, bool), Vec<Idle>>>,
    count: Cell<usize>,
    /// Value of the gauge.
    reported: Cell<usize>,
    meter: Arc<Meter>,
}

impl Upstreams {
    /// Creates an empty set.
    pub(crate) fn new(meter: Arc<Meter>) -> Upstreams {
        Upstreams { idle: RefCell::default(), count: Cell::new(0), reported: Cell::new(0), meter }
    }

    /// Returns an idle connection to `address` that shows no sign of a close; `is_limited`: one for
    /// direct return.
    pub(crate) fn take(&self, address: SocketAddr, is_limited: bool) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(&(address, is_limited))?;
        while let Some(next) = list.pop() {
            self.count.set(self.count.get().saturating_sub(1));
            // No system call if the runtime has seen nothing arrive. Anything that arrived is the
            // end, or bytes without a request.
            let mut byte = [0];
            match next.tcp.try_read(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let Idle { tcp, end, sealing, .. } = next;
                    self.meter.add(Event::UpstreamReused);
                    let _busy = self.busy();
                    return Some(Upstream {
                        tcp,
                        address,
                        reused: true,
                        end,
                        sealing,
                        is_broken: false,
                        _busy,
                    });
                }
                _ => next.close(),
            }
        }
        None
    }

    fn busy(&self) -> GaugeGuard {
        GaugeGuard::new(Arc::clone(&self.meter), Gauge::UpstreamBusy)
    }

    /// Keeps a connection whose last response was read to its end.
    pub(crate) fn put(&self, upstream: Upstream, config: &UpstreamConfig, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        let is_limited = upstream.end.as_ref().is_some_and(ServerEnd::is_limited);
        let list = idle.entry((upstream.address, is_limited)).or_default();
        let has_room = self.count.get() < IDLE_MAX && list.len() < config.idle_max;
        let until = now + config.idle_timeout;
        let Upstream { tcp, end, sealing, .. } = upstream;
        let next = Idle { tcp, end, sealing, until };
        match has_room {
            true => {
                list.push(next);
                self.count.set(self.count.get() + 1);
            }
            false => next.close(),
        }
    }

    /// Closes connections that have been idle for too long. To be called from time to time.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        let mut count = 0;
        idle.retain(|_, list| {
            list.extract_if(.., |idle| idle.until <= now).for_each(Idle::close);
            count += list.len();
            !list.is_empty()
        });
        self.count.set(count);
        let delta = count as i64 - self.reported.replace(count) as i64;
        self.meter.gauge_add(Gauge::UpstreamIdle, delta);
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The error of the network or of the server.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<Upstream> {
        let start = Instant::now();
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        self.meter.add(Event::UpstreamConnected);
        self.meter.record(Stage::UpstreamConnect, start.elapsed());
        Ok(self.fresh(tcp, address, None))
    }

    fn fresh(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        sealing: Option<Box<SealingSender>>,
    ) -> Upstream {
        let (_busy, end) = (self.busy(), None);
        Upstream { tcp, address, reused: false, end, sealing, is_broken: false, _busy }
    }

    /// Opens a connection to an agent that seals responses on it.
    ///
    /// # Errors
    /// The agent does not answer, is not trusted, or does not trust this balancer.
    pub(crate) async fn connect_sealing(
        &self,
        agent: SocketAddr,
        trust: &Membership,
    ) -> Result<Upstream, ChannelError> {
        let start = Instant::now();
        let (name, config) = (server_name(agent.ip()), Arc::clone(&trust.client));
        let (tcp, sealing) = SealingSender::connect(agent, name, config).await?;
        self.meter.add(Event::UpstreamConnected);
        self.meter.record(Stage::UpstreamConnect, start.elapsed());
        Ok(self.fresh(tcp, agent, Some(Box::new(sealing))))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair(upstreams: &Upstreams, listener: &TcpListener) -> (Upstream, TcpStream) {
        let upstream = upstreams.connect(listener.local_addr().unwrap()).await.unwrap();
        (upstream, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn what_was_closed_or_has_spoken_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let upstreams = Upstreams::new(Arc::new(Meter::new()));
        let config = UpstreamConfig::default();
        let (good, _far) = pair(&upstreams, &listener).await;
        let (closed, closed_far) = pair(&upstreams, &listener).await;
        let (chatty, mut chatty_far) = pair(&upstreams, &listener).await;
        drop(closed_far);
        chatty_far.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        closed.tcp.readable().await.unwrap();
        chatty.tcp.readable().await.unwrap();
        let local = good.tcp.local_addr().unwrap();
        for upstream in [good, closed, chatty] {
            upstreams.put(upstream, &config, Instant::now());
        }
        let taken = upstreams.take(address, false).unwrap();
        assert_eq!((taken.tcp.local_addr().unwrap(), taken.reused), (local, true));
        assert!(upstreams.take(address, false).is_none());
    }

    #[tokio::test]
    async fn the_gauge_of_busy_connections_follows_take_put_and_close() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = Upstreams::new(Arc::new(Meter::new()));
        let config = UpstreamConfig::default();
        let busy = || upstreams.meter.gauge(Gauge::UpstreamBusy);
        let (first, _a) = pair(&upstreams, &listener).await;
        let (second, _b) = pair(&upstreams, &listener).await;
        assert_eq!(busy(), 2);
        let address = first.address;
        upstreams.put(first, &config, Instant::now());
        assert_eq!(busy(), 1, "an idle connection carries no request");
        let again = upstreams.take(address, false).unwrap();
        assert_eq!(busy(), 2);
        drop((second, again));
        assert_eq!(busy(), 0);
    }

    #[tokio::test]
    async fn idle_connections_are_bounded_and_expire() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = Upstreams::new(Arc::new(Meter::new()));
        let config = UpstreamConfig { idle_max: 1, ..UpstreamConfig::default() };
        let (first, _a) = pair(&upstreams, &listener).await;
        let (second, _b) = pair(&upstreams, &listener).await;
        let now = Instant::now();
        upstreams.put(first, &config, now);
        upstreams.put(second, &config, now);
        assert_eq!(upstreams.count.get(), 1);
        upstreams.sweep(now);
        assert_eq!(upstreams.meter.gauge(Gauge::UpstreamIdle), 1);
        upstreams.sweep(now + config.idle_timeout + Duration::from_secs(1));
        assert_eq!((upstreams.count.get(), upstreams.meter.gauge(Gauge::UpstreamIdle)), (0, 0));
    }
}
