//! Ordinary HTTP: connections accepted by the worker itself.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use unlade_metrics::{Event, Gauge};
use unlade_runtime::Stream;

use crate::context::Context;
use crate::reply;
use crate::serve::serve_connection;
use crate::session::{ConnectionOrigin, Session};
use crate::tls;

/// Pause after an accept that failed for lack of descriptors or memory; without it the loop would
/// spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Most connections accepted when the listener closes.
const LAST_ACCEPTS_MAX: usize = 4096;

/// A listening socket and its TLS configuration.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub tcp: TcpListener,
    /// TLS configuration of the server; None for plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// Counter of the open connections of all workers, with a limit.
#[derive(Debug, Default)]
pub struct ConnectionLimit {
    taken: AtomicUsize,
    most: AtomicUsize,
}

impl ConnectionLimit {
    /// Creates a counter with a limit of `most` connections.
    pub fn new(most: usize) -> ConnectionLimit {
        ConnectionLimit { taken: AtomicUsize::new(0), most: AtomicUsize::new(most) }
    }

    /// Changes the limit; connections above it stay.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Returns the number of open connections.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Reserves one connection, until the returned value is dropped. Returns None at the limit.
    pub fn take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ConnectionPermit(self.clone()))
    }
}

/// Reservation of one connection; dropping it frees the permit.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<ConnectionLimit>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts and serves until the future is dropped. Connections run as tasks of their own.
pub async fn accept(
    listener: &Listener,
    context: &Rc<Context>,
    connection_limit: &Arc<ConnectionLimit>,
) {
    loop {
        match listener.tcp.accept().await {
            Ok((tcp, _)) => admit(tcp, &listener.tls, context, connection_limit),
            Err(error) if exhausted(&error) => {
                tracing::warn!(%error, "cannot accept; raise the limit of open files");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // The client closed the connection before it was accepted.
            Err(error) => tracing::debug!(%error, "accept"),
        }
    }
}

/// Accepts connections that the kernel has already established, because closing the listener would
/// reset them.
pub async fn accept_last(
    listener: Listener,
    context: &Rc<Context>,
    connection_limit: &Arc<ConnectionLimit>,
) {
    tokio::task::yield_now().await;
    poll_fn(|task| {
        for _ in 0..LAST_ACCEPTS_MAX {
            match listener.tcp.poll_accept(task) {
                Poll::Ready(Ok((tcp, _))) => admit(tcp, &listener.tls, context, connection_limit),
                Poll::Ready(Err(error)) if exhausted(&error) => break,
                Poll::Ready(Err(_)) => {}
                Poll::Pending => break,
            }
        }
        Poll::Ready(())
    })
    .await;
}

/// Returns true for a lack of descriptors or memory, after which an immediate retry is useless.
fn exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

fn admit(
    tcp: TcpStream,
    tls: &Option<Arc<rustls::ServerConfig>>,
    context: &Rc<Context>,
    connection_limit: &Arc<ConnectionLimit>,
) {
    let Some(permit) = connection_limit.take() else {
        context.meter.add(Event::BackendRefused);
        // Best effort: a new socket has room for this answer. No answer is possible before a TLS
        // handshake.
        if tls.is_none() {
            let _ = tcp.try_write(reply::NO_PLACE);
        }
        return;
    };
    context.meter.add(Event::BackendAccepted);
    context.meter.gauge_add(Gauge::BackendConnections, 1);
    let (context, tls) = (context.clone(), tls.clone());
    tokio::task::spawn_local(async move {
        let _open = Open { context: context.clone(), _permit: permit };
        if tcp.set_nodelay(true).is_err() {
            return;
        }
        let stream = match tls {
            None => Stream::plain(tcp),
            Some(config) => {
                let mut session = Session::new(&context, ConnectionOrigin::Accepted);
                match tls::accept(tcp, config, &mut session).await {
                    Some(stream) => stream,
                    None => return,
                }
            }
        };
        serve_connection(stream, context).await;
    });
}

/// Guard that counts a connection as open until its task ends, for any reason.
struct Open {
    context: Rc<Context>,
    _permit: ConnectionPermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.context.meter.gauge_add(Gauge::BackendConnections, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let connection_limit = Arc::new(ConnectionLimit::new(2));
        let (first, _second) = (connection_limit.take().unwrap(), connection_limit.take().unwrap());
        assert!(connection_limit.take().is_none());
        drop(first);
        assert!(connection_limit.take().is_some());
        connection_limit.set_most(0);
        assert!(connection_limit.take().is_none());
        assert_eq!(connection_limit.taken(), 1);
    }
}
