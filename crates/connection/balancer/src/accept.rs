//! Accepts connections from a listening socket as tasks of the same worker, within the limits, and
//! acts on the outcome of each: the only tasks that serve a client start here.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use unlade_metrics::{Event, Gauge, RefusedConnection, Stage};
use unlade_runtime::Stream;

use crate::clients::Admission;
use crate::closing;
use crate::connection::{Connection, Finished, Outcome};
use crate::offload::{ConnOrigin, ReturnInfo};
use crate::plan::ListenerPlan;
use crate::respond::{self, Refusal};
use crate::timer::Timer;
use crate::tls;
use crate::tunnel;
use crate::worker::{PlanRef, Worker};

/// Pause while the process is out of descriptors; connections wait in the kernel's backlog.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

const BUSY: Refusal = Refusal::new(503, "too many connections; try again");
const PLAIN: Refusal = Refusal::new(400, "this port speaks TLS; use https");

/// Most connections accepted after the drain began. The kernel had established them before it.
const LAST_MAX: usize = 4096;

/// Accepts connections of listener `index` until the process drains, then accepts those that the
/// kernel has established already: closing the listener would reset them.
pub(crate) async fn accept(worker: Rc<Worker>, index: usize, listener: TcpListener) {
    // Accepted sockets inherit TCP_NODELAY: heads and the last bytes of bodies are sent at once.
    if let Err(error) = socket2::SockRef::from(&listener).set_tcp_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY; small responses may be slow");
    }
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            () = worker.drained() => return accept_last(&worker, index, &listener).await,
        };
        match accepted {
            Ok((tcp, peer)) => admit(&worker, index, tcp, peer),
            Err(error) if is_shortage(&error) => {
                worker.meter.add(Event::ConnectionRefused(RefusedConnection::Resources));
                tracing::warn!(%error, "cannot accept; raise the limit of descriptors (ulimit -n)");
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
            // The client closed while it waited in the backlog.
            Err(error) => tracing::debug!(%error, "accept"),
        }
    }
}

async fn accept_last(worker: &Rc<Worker>, index: usize, listener: &TcpListener) {
    for _ in 0..LAST_MAX {
        match poll_fn(|context| Poll::Ready(listener.poll_accept(context))).await {
            Poll::Ready(Ok((tcp, peer))) => admit(worker, index, tcp, peer),
            _ => return,
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Serves a connection in a task of its own, if the limits admit it.
pub(crate) fn admit(worker: &Rc<Worker>, index: usize, tcp: TcpStream, peer: SocketAddr) {
    let plan = worker.plan();
    let Some(listener) = plan.listeners.get(index) else { return };
    let Ok(admission) = worker.clients.admit(peer.ip(), index, &listener.limits) else {
        worker.meter.add(Event::ConnectionRefused(RefusedConnection::Limit));
        tracing::debug!(%peer, "refused: a limit of connections is met");
        if listener.tls.is_none() {
            // The socket is new: its send buffer takes the response without blocking.
            let mut out = Vec::new();
            respond::write(BUSY, false, false, &mut out);
            let _ = rustix::net::send(&tcp, &out, rustix::net::SendFlags::NOSIGNAL);
        }
        return;
    };
    worker.meter.add(Event::ConnectionAccepted);
    let worker = worker.clone();
    tokio::task::spawn_local(async move {
        let _entered = worker.enter();
        worker.meter.gauge_add(Gauge::OpenConnections, 1);
        begin(&worker, plan, index, tcp, admission).await;
        worker.meter.gauge_add(Gauge::OpenConnections, -1);
    });
}

async fn begin(
    worker: &Rc<Worker>,
    plan: Rc<PlanRef>,
    index: usize,
    tcp: TcpStream,
    admission: Admission,
) {
    let Some(listener) = plan.listeners.get(index) else { return };
    let stream = match &listener.tls {
        None => Stream::plain(tcp),
        Some(config) => match handshake(worker, listener, config.clone(), tcp).await {
            Some(stream) => stream,
            None => {
                worker.meter.add(Event::ConnectionClosed);
                return;
            }
        },
    };
    drop(plan);
    let origin = ConnOrigin { listener: index, requests: 0 };
    let connection = Connection::new(worker.clone(), stream, origin, admission);
    act(worker, connection.serve().await).await;
}

/// Serves a connection that has come home, in a task of its own: the task that handed it over has
/// ended, and the task of the server's channel must go on. No limit refuses the connection: it was
/// admitted before. The worker's drain waits for it from this call on, not only from the first poll
/// of the task.
pub(crate) fn resume(worker: Rc<Worker>, stream: Stream, back: impl Into<ReturnInfo>) {
    let (entered, back) = (worker.enter(), back.into());
    tokio::task::spawn_local(async move {
        let _entered = entered;
        let admission = worker.clients.admit_returned(stream.peer().ip(), back.origin.listener);
        worker.meter.gauge_add(Gauge::OpenConnections, 1);
        let connection = Connection::new(worker.clone(), stream, back, admission);
        act(&worker, connection.serve().await).await;
        worker.meter.gauge_add(Gauge::OpenConnections, -1);
    });
}

/// Acts on the outcome of a connection's requests.
async fn act(worker: &Rc<Worker>, outcome: Outcome) {
    match outcome {
        // If it comes back, it passes `resume`.
        Outcome::HandedOver => {}
        Outcome::Close(Finished { mut stream, timeouts, mut state }, how) => {
            if state.has_slot() {
                closing::may_linger(stream.tcp());
            }
            let timer = &mut state.timer;
            closing::close(&mut stream, how, timer, &timeouts, &worker.meter).await;
            state.count_traffic(&stream);
            state.end();
        }
        Outcome::Tunnel(Finished { stream, timeouts, mut state }, upgraded) => {
            tunnel::run(worker, stream, *upgraded, &mut state.timer, &timeouts).await;
            state.end();
        }
    }
}

async fn handshake(
    worker: &Rc<Worker>,
    listener: &ListenerPlan,
    config: std::sync::Arc<rustls::ServerConfig>,
    tcp: TcpStream,
) -> Option<Stream> {
    let start = Instant::now();
    let mut timer = Timer::default();
    let peer = tcp.peer_addr();
    let accepting = tls::accept(tcp, config);
    let ended = timer.limit(listener.timeouts.handshake, accepting).await;
    let why = match ended {
        Ok(Ok(stream)) => {
            worker.meter.add(Event::TlsHandshake);
            worker.meter.record(Stage::TlsHandshake, start.elapsed());
            return Some(stream);
        }
        Ok(Err(tls::Failure::PlainHttp(tcp))) => {
            let mut out = Vec::new();
            respond::write(PLAIN, false, false, &mut out);
            let mut stream = Stream::plain(tcp);
            let _ = timer.limit(listener.timeouts.close, stream.write_all(&out, false)).await;
            closing::close_gently(&mut stream, &mut timer, &listener.timeouts).await;
            "plain HTTP".to_owned()
        }
        Ok(Err(tls::Failure::Handshake(error))) => error.to_string(),
        Ok(Err(tls::Failure::Transport)) => "the connection ended".to_owned(),
        Err(_) => "it took too long".to_owned(),
    };
    worker.meter.add(Event::TlsHandshakeFailed);
    tracing::debug!(?peer, why, "TLS handshake failed");
    None
}
