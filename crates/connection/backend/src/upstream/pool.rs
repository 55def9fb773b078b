//! Connections to the local server, kept alive by the worker that opened them.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use unlade_metrics::{Event, Gauge, GaugeGuard, Meter, Stage};

use super::address::UpstreamAddress;
use super::buffer::Buffers;
use super::failure::Failed;
use super::socket::Socket;

/// Least time between two log lines about failures of the local server.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// Settings of the connections to the local server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The local server.
    pub address: UpstreamAddress,
    /// Each connection begins with a header of the PROXY protocol, and serves one client.
    pub proxy_protocol: bool,
    /// Maximum number of idle connections of one worker.
    pub idle_max: usize,
    /// Time after which an idle connection is closed.
    pub idle_timeout: Duration,
    /// Time limit of connecting.
    pub connect_timeout: Duration,
    /// Time limit from the end of a request to the head of its response.
    pub response_timeout: Duration,
}

/// A connection to the local server.
#[derive(Debug)]
pub struct Upstream {
    pub(crate) socket: Socket,
    /// It has answered a request before.
    pub(crate) reused: bool,
    /// Counts the connection as busy until it is idle or closed.
    _busy: GaugeGuard,
}

#[derive(Debug)]
struct Idle {
    socket: Socket,
    until: Instant,
    _idle: GaugeGuard,
}

/// The idle connections of a worker, the one used last at the end.
#[derive(Debug)]
pub struct Upstreams {
    settings: UpstreamSettings,
    idle: RefCell<Vec<Idle>>,
    buffers: Buffers,
    meter: Arc<Meter>,
    warned: Cell<Option<Instant>>,
}

impl Upstreams {
    /// Creates an empty set.
    pub fn new(settings: UpstreamSettings, meter: Arc<Meter>) -> Upstreams {
        let (idle, buffers) = (RefCell::default(), Buffers::default());
        Upstreams { settings, idle, buffers, meter, warned: Cell::new(None) }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Returns an idle connection that shows no sign of a close.
    pub(crate) fn take(&self) -> Option<Upstream> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { socket, .. }) = idle.pop() {
            if is_quiet(&socket) {
                self.meter.add(Event::SidecarReused);
                return Some(Upstream { socket, reused: true, _busy: self.busy() });
            }
        }
        None
    }

    /// Returns the connection for a further request of the same client, unless its server has closed
    /// it or has sent bytes that nobody asked for.
    pub(crate) fn again(&self, kept: Upstream) -> Option<Upstream> {
        if !is_quiet(&kept.socket) {
            return None;
        }
        self.meter.add(Event::SidecarReused);
        Some(Upstream { reused: true, ..kept })
    }

    /// Opens a connection; `header` is sent first.
    ///
    /// # Errors
    /// The server's or the system's.
    pub(crate) async fn connect(&self, header: &[u8]) -> io::Result<Upstream> {
        let begin = Instant::now();
        let socket = Socket::connect(&self.settings.address).await?;
        let mut left = header;
        while !left.is_empty() {
            let sent = socket.write(left).await?;
            left = left.get(sent..).unwrap_or_default();
        }
        self.meter.add(Event::SidecarConnected);
        self.meter.record(Stage::UpstreamConnect, begin.elapsed());
        Ok(Upstream { socket, reused: false, _busy: self.busy() })
    }

    /// Keeps a connection whose last response was read to its end.
    pub(crate) fn put(&self, upstream: Upstream) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.settings.idle_max {
            let until = Instant::now() + self.settings.idle_timeout;
            let _idle = GaugeGuard::new(Arc::clone(&self.meter), Gauge::SidecarIdle);
            idle.push(Idle { socket: upstream.socket, until, _idle });
        }
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle.borrow_mut().retain(|idle| idle.until > now);
    }

    /// Counts a failure, and logs it if none was logged just before.
    pub(crate) fn note(&self, failed: &Failed) {
        let Some(label) = failed.label() else { return };
        self.meter.add(Event::SidecarFailed(label));
        let now = Instant::now();
        if self.warned.get().is_none_or(|last| now - last >= WARN_EVERY) {
            self.warned.set(Some(now));
            tracing::warn!(upstream = %self.settings.address, error = %failed, "request failed");
        }
    }

    fn busy(&self) -> GaugeGuard {
        GaugeGuard::new(Arc::clone(&self.meter), Gauge::SidecarBusy)
    }
}

/// Returns true if nothing has arrived: neither the end, nor bytes without a request.
fn is_quiet(socket: &Socket) -> bool {
    let mut byte = [0];
    matches!(socket.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn upstreams(listener: &TcpListener, idle_max: usize) -> Upstreams {
        let settings = UpstreamSettings {
            address: UpstreamAddress::Tcp(listener.local_addr().unwrap()),
            proxy_protocol: false,
            idle_max,
            idle_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(3),
        };
        Upstreams::new(settings, Arc::new(Meter::new()))
    }

    async fn pair(upstreams: &Upstreams, listener: &TcpListener) -> (Upstream, TcpStream) {
        let upstream = upstreams.connect(b"").await.unwrap();
        (upstream, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_or_has_spoken_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = upstreams(&listener, 9);
        let (good, _far) = pair(&upstreams, &listener).await;
        let (closed, closed_far) = pair(&upstreams, &listener).await;
        let (chatty, mut chatty_far) = pair(&upstreams, &listener).await;
        drop(closed_far);
        chatty_far.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        closed.socket.readable().await.unwrap();
        chatty.socket.readable().await.unwrap();
        for upstream in [good, closed, chatty] {
            upstreams.put(upstream);
        }
        assert!(upstreams.take().is_some_and(|upstream| upstream.reused));
        assert!(upstreams.take().is_none());
        assert_eq!(upstreams.meter.value(Event::SidecarReused), 1);
    }

    #[tokio::test]
    async fn idle_connections_are_bounded_and_expire_and_gauges_follow() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstreams = upstreams(&listener, 1);
        let gauges = || {
            let meter = &upstreams.meter;
            (meter.gauge(Gauge::SidecarBusy), meter.gauge(Gauge::SidecarIdle))
        };
        let (first, _a) = pair(&upstreams, &listener).await;
        let (second, _b) = pair(&upstreams, &listener).await;
        assert_eq!(gauges(), (2, 0));
        upstreams.put(first);
        upstreams.put(second);
        assert_eq!(gauges(), (0, 1));
        upstreams.sweep(Instant::now());
        assert_eq!(gauges(), (0, 1));
        upstreams.sweep(Instant::now() + Duration::from_secs(31));
        assert_eq!(gauges(), (0, 0));
    }
}
