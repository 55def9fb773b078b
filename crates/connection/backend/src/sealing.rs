//! Answers requests of a balancer's TLS clients on connections of the balancer, and seals the responses with the
//! clients' keys.
//!
//! ```text
//!  SEAL: client, request, delegation ──► a stream whose input is the request ──► serve ──► the service
//!  balancer ◄── pieces: header, records for the client ◄── seals ◄────────────── response
//! ```
//! No socket moves. The header of a piece tells the balancer the number of the records, and after the last one
//! the status; it continues with the record behind them. A response that cannot be completed resets the
//! connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;
use unlade_channel::channel::ChannelError;
use unlade_channel::sealing::{Opened, SealingReceiver};
use unlade_handoff_protocol::frame::Frame;
use unlade_http::RequestHead;
use unlade_metrics::{Event, Gauge, GaugeGuard};
use unlade_runtime::Stream;
use unlade_tls::RecordError;
use unlade_tls::delegation::{Delegation, Sealer};
use unlade_tls::piece::PieceEnd;

use crate::agent::SealingArrival;
use crate::context::Context;
use crate::exchange::{ServeError, Served};
use crate::serve;
use crate::session::{ConnectionOrigin, OnDrain, Session};

/// Most buffers that a worker keeps, and the largest.
const SPARES_MAX: usize = 16;
const SPARE_BYTES_MAX: usize = 512 * 1024;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("a frame that does not belong here")]
    Frame,
    #[error("keys: {0}")]
    Keys(#[from] RecordError),
    #[error("the request is not whole")]
    Request,
    #[error("response: {0}")]
    Response(#[from] ServeError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Serves the connections of a queue until the task is dropped.
pub(crate) async fn serve(
    mut arrivals: mpsc::UnboundedReceiver<SealingArrival>,
    context: Rc<Context>,
) {
    let spares = Rc::new(Spares::default());
    while let Some(arrival) = arrivals.recv().await {
        let (context, spares) = (Rc::clone(&context), Rc::clone(&spares));
        tokio::task::spawn_local(async move {
            if let Err(end) = serve_connection(arrival, &context, &spares).await {
                match &end {
                    End::Response(error) => serve::count_failure(&context, error),
                    // The balancer is gone.
                    End::Io(_) => {}
                    End::Channel(error) if !error.is_violation() => {}
                    _ => context.meter.add(Event::FrameRefused),
                }
                tracing::debug!(error = %end, "a connection for sealing has ended");
            }
        });
    }
}

async fn serve_connection(
    SealingArrival { channel, key }: SealingArrival,
    context: &Rc<Context>,
    spares: &Spares,
) -> Result<(), End> {
    let Opened { mut tcp, mut receiver, mut proof } =
        SealingReceiver::open(channel.attach()?, &key)?;
    let _open = GaugeGuard::new(Arc::clone(&context.meter), Gauge::SealingConnections);
    let mut session = Session::new(context, ConnectionOrigin::Adopted);
    loop {
        // The balancer has its own limit of the time between two requests.
        let idle = context.limits().idle_timeout.saturating_mul(2);
        let received = session.within(idle, OnDrain::GiveUp, receiver.receive(&tcp)).await;
        let Ok(received) = received else { return Ok(()) };
        let Some(frame) = received? else { return Ok(()) };
        let Frame::Seal { client, service, is_apart, delegation, request } = frame else {
            return Err(End::Frame);
        };
        let sealer = Sealer::new(&Delegation::from_bytes(&delegation)?)?;
        let parts = (tcp, proof, spares.take());
        let ends = (client, service);
        let mut stream = Stream::sealing(parts, sealer, request.to_vec(), ends, is_apart);
        stream.set_stall_limit(context.limits().write_timeout);
        let end = answer(&mut stream, &mut session).await;
        if end.is_err() {
            // A response without an end must not look complete.
            let _ = stream.tcp().set_zero_linger();
        }
        let (socket, after, spare) = stream.finish_sealing(end?).await?;
        (tcp, proof) = (socket, after);
        spares.put(spare);
        context.meter.add(Event::BackendSealed);
    }
}

/// Answers the request in the input.
async fn answer(stream: &mut Stream, session: &mut Session) -> Result<PieceEnd, End> {
    let limits = session.context().limits();
    let head = RequestHead::parse(stream.input(), &limits.head).ok().flatten();
    let Served { status, keep_alive, .. } =
        serve::serve_head(stream, session, head.ok_or(End::Request)?).await?;
    // It was of this client only.
    session.upstream = None;
    match stream.input().is_empty() {
        true => Ok(PieceEnd { status, keep_alive }),
        false => Err(End::Request),
    }
}

/// Memory for records of the worker's responses: an idle connection has none.
#[derive(Debug, Default)]
struct Spares(RefCell<Vec<Vec<u8>>>);

impl Spares {
    fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    fn put(&self, mut spare: Vec<u8>) {
        let mut all = self.0.borrow_mut();
        if all.len() < SPARES_MAX && spare.capacity() <= SPARE_BYTES_MAX {
            spare.clear();
            all.push(spare);
        }
    }
}
