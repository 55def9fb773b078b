//! A client connection: serves its requests in order until one side ends it.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use unlade_http::{BodyFraming, HeadError, Method, RequestHead};
use unlade_metrics::{Event, Mode, Stage, StatusClass};
use unlade_runtime::Stream;

use crate::busy;
use crate::clients::Admission;
use crate::config::{OffloadMode, Timeouts};
use crate::fallback::FallbackContext;
use crate::offload::{self, Candidate, ConnOrigin, Kept, Routed, Verdict};
use crate::pace::AnsweredBy;
use crate::pool::{InFlight, Pool};
use crate::proxy::{Done, Ended, Exchange, Forward, Forwarding};
use crate::respond::{self, Refusal};
use crate::route::Route;
use crate::timer::{Elapsed, Timer};
use crate::tunnel::{self, Upgraded};
use crate::worker::{PlanRef, Worker};

/// Most bytes read and dropped from a client while the connection closes.
const LINGER_BYTES_MAX: usize = 4 << 20;
/// Bytes dropped per read.
const LINGER_READ_BYTES: usize = 16 * 1024;
/// A scratch buffer that has grown beyond this is freed.
const SCRATCH_BYTES_MAX: usize = 16 * 1024;

const NO_ROUTE: Refusal = Refusal::new(404, "no route for this host and path");
const NO_SERVER: Refusal = Refusal::new(503, "no server can answer at the moment");
const NO_TUNNEL: Refusal = Refusal::new(501, "CONNECT is not served here");
const NO_TRACE: Refusal = Refusal::new(405, "TRACE is not served here");
const SLOW_HEAD: Refusal = Refusal::new(408, "the request did not come in time");
const LARGE_BODY: Refusal = Refusal::new(413, "the request's body is too large");
const AMBIGUOUS: Refusal = Refusal::new(502, "a server may have carried the request out already");

/// A client connection and its worker.
pub(crate) struct Connection {
    stream: Stream,
    state: ConnectionState,
}

/// Everything of a connection except its stream, which other code may own for a while.
struct ConnectionState {
    worker: Rc<Worker>,
    origin: ConnOrigin,
    /// The client's address as text.
    client: String,
    timer: Timer,
    /// Buffer for heads to be sent.
    scratch: Vec<u8>,
    /// Route of the last request.
    route: Option<usize>,
    /// The last request, if its pace is measured.
    paced: Option<PacedRequest>,
    /// Start of the present idle time: the end of the last response, or the start of the
    /// connection.
    quiet: Instant,
    /// Idle time of the client before that, at a server.
    idle_before: Duration,
    /// A server may have carried out the next request (ambiguous delivery). It is sent again only
    /// if that cannot carry it out twice, and the connection ends with it.
    is_ambiguous: bool,
    /// Busy time of the socket (data in flight) at the last query.
    busy: Duration,
    /// Bytes of the stream's traffic that are in the meter already.
    counted_in: u64,
    counted_out: u64,
    _admission: Admission,
}

/// A request that was proxied on a route with `offload = "auto"`.
struct PacedRequest {
    route: usize,
    response_bytes: u64,
    start: Instant,
    /// Time that its response took.
    took: Duration,
}

/// The action after a request.
enum Next {
    /// Serve the next request.
    Request,
    /// Close gently: the last response is sent, but the client may still be sending.
    CloseGently,
    /// Close; the client expects it.
    Close,
    /// Reset: the response is incomplete, and the client must notice that.
    Abort,
    /// Nothing; the connection is closed already.
    Gone,
    /// Continue as a tunnel, without HTTP.
    Tunnel(Box<Upgraded>),
}

/// A connection that comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReturnInfo {
    /// Its origin.
    pub origin: ConnOrigin,
    /// The route of its last request.
    pub route: Option<usize>,
    /// Idle time of its client at the server.
    pub idle: Duration,
    /// A server may have carried out the request at the front of its input.
    pub is_ambiguous: bool,
}

impl From<ConnOrigin> for ReturnInfo {
    fn from(origin: ConnOrigin) -> ReturnInfo {
        ReturnInfo { origin, route: None, idle: Duration::ZERO, is_ambiguous: false }
    }
}

/// The result of waiting for a request.
enum HeadWait {
    Head(RequestHead),
    Refused(HeadError),
    TooSlow,
    /// No request was begun: the client closed, or was idle for too long.
    Over,
    /// No request was begun, and the process drains.
    Drained,
    Broken,
}

impl Connection {
    /// Creates a connection that begins or comes back.
    pub(crate) fn new(
        worker: Rc<Worker>,
        stream: Stream,
        back: impl Into<ReturnInfo>,
        admission: Admission,
    ) -> Connection {
        let ReturnInfo { origin, route, idle, is_ambiguous } = back.into();
        let client = stream.peer().ip().to_string();
        let state = ConnectionState {
            worker,
            origin,
            client,
            timer: Timer::default(),
            scratch: Vec::new(),
            route,
            paced: None,
            quiet: Instant::now(),
            idle_before: idle,
            is_ambiguous,
            busy: Duration::ZERO,
            counted_in: 0,
            counted_out: 0,
            _admission: admission,
        };
        Connection { stream, state }
    }

    /// Serves the connection until it ends or is handed over.
    pub(crate) async fn serve(self) {
        let Connection { mut stream, mut state } = self;
        loop {
            let plan = state.worker.plan();
            let Some(listener) = plan.listeners.get(state.origin.listener) else { break };
            let timeouts = listener.timeouts;
            let head = match state.next_head(&mut stream, &plan, &timeouts).await {
                HeadWait::Head(head) => head,
                HeadWait::Over => {
                    // close_notify tells a TLS client that the data is complete (RFC 8446 §6.1).
                    let _ = end_sending(&mut stream, &timeouts).await;
                    break;
                }
                HeadWait::Drained => {
                    // A request may be in transit: it is read so that the client is not reset.
                    close_gently(&mut stream, &mut state.timer, &timeouts).await;
                    break;
                }
                HeadWait::Broken => break,
                HeadWait::Refused(error) => {
                    state.worker.meter.add(Event::HeadRefused(error.reason().into()));
                    let refusal = Refusal::new(error.status(), "the request is malformed");
                    state.turn_away(&mut stream, refusal, &timeouts).await;
                    break;
                }
                HeadWait::TooSlow => {
                    state.worker.meter.add(Event::HeadTimeout);
                    if !stream.input().is_empty() {
                        state.turn_away(&mut stream, SLOW_HEAD, &timeouts).await;
                    }
                    break;
                }
            };
            let start = Instant::now();
            state.learn_pace(&stream, start);
            if state.is_ambiguous && !head.method().is_idempotent() {
                state.worker.meter.add(Event::RequestAmbiguous);
                state.refuse(&mut stream, &head, AMBIGUOUS, &timeouts).await;
                break;
            }
            let mut placed = state.place(&stream, &plan, &head);
            let candidate = match &placed {
                Ok(placed) => state.candidate(&stream, &plan, &head, placed),
                Err(_) => None,
            };
            if let Some(candidate) = candidate {
                let worker = state.worker.clone();
                match worker.offload.hand_over(stream, candidate).await {
                    Ok(()) => {
                        worker.meter.add(Event::Request(Mode::Offload));
                        worker.meter.record(Stage::RequestOffload, start.elapsed());
                        return;
                    }
                    Err(Kept { stream: back, why, is_ambiguous }) => {
                        stream = *back;
                        let (route, server) = match &placed {
                            Ok(placed) => (Some(placed.route), Some(&**placed.in_flight.server())),
                            Err(_) => (None, None),
                        };
                        let place = FallbackContext { route, server, client: stream.peer() };
                        worker.fallbacks.report(&worker.meter, &why, &place);
                        state.is_ambiguous = is_ambiguous;
                        if is_ambiguous && !head.method().is_idempotent() {
                            worker.meter.add(Event::RequestAmbiguous);
                            state.refuse(&mut stream, &head, AMBIGUOUS, &timeouts).await;
                            break;
                        }
                        // Another server answers, if there is one.
                        if placed.as_ref().is_ok_and(|p| !p.in_flight.server().is_usable()) {
                            placed = state.place(&stream, &plan, &head);
                        }
                    }
                }
            }
            let next = match placed {
                Ok(placed) => state.proxy(&mut stream, &plan, head, placed, &timeouts, start).await,
                Err(refusal) => state.answer(&mut stream, &head, refusal, &timeouts).await,
            };
            state.origin.requests += 1;
            match next {
                Next::Request => {}
                Next::CloseGently => {
                    close_gently(&mut stream, &mut state.timer, &timeouts).await;
                    break;
                }
                Next::Close => {
                    let _ = end_sending(&mut stream, &timeouts).await;
                    break;
                }
                Next::Abort => {
                    let _ = stream.tcp().set_zero_linger();
                    break;
                }
                Next::Gone => break,
                Next::Tunnel(upgraded) => {
                    let (worker, timer) = (state.worker.clone(), &mut state.timer);
                    tunnel::run(&worker, stream, *upgraded, timer, &timeouts).await;
                    return state.end();
                }
            }
        }
        state.count_traffic(&stream);
        state.end();
    }
}

/// Serves a connection that has come home. No limit refuses it: it was admitted before. The
/// worker's drain waits for it from this call on.
pub(crate) fn resume(
    worker: Rc<Worker>,
    stream: Stream,
    back: impl Into<ReturnInfo>,
) -> impl Future<Output = ()> {
    let (entered, back) = (worker.enter(), back.into());
    async move {
        let _entered = entered;
        let admission = worker.clients.admit_returned(stream.peer().ip(), back.origin.listener);
        worker.meter.gauge_add(unlade_metrics::Gauge::OpenConnections, 1);
        let meter = worker.meter.clone();
        Connection::new(worker, stream, back, admission).serve().await;
        meter.gauge_add(unlade_metrics::Gauge::OpenConnections, -1);
    }
}

/// Ends the sending direction. The close_notify for a client that reads slowly waits behind the
/// response.
async fn end_sending(stream: &mut Stream, timeouts: &Timeouts) -> io::Result<()> {
    stream.set_stall_limit(timeouts.body_stall);
    stream.shutdown().await
}

/// Ends the sending direction and waits for a limited time until the client has ended its own: a
/// close with unread bytes would reset the connection, and the client might lose the response (RFC
/// 9112 §9.6).
pub(crate) async fn close_gently(stream: &mut Stream, timer: &mut Timer, timeouts: &Timeouts) {
    if end_sending(stream, timeouts).await.is_err() {
        return;
    }
    let deadline = Instant::now() + timeouts.close;
    let mut sink = vec![0; LINGER_READ_BYTES];
    let mut dropped = 0;
    while dropped < LINGER_BYTES_MAX {
        let tcp = stream.tcp();
        match tcp.try_read(&mut sink) {
            Ok(0) => return,
            Ok(bytes) => dropped += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !matches!(timer.until(deadline, tcp.readable()).await, Ok(Ok(()))) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// A request with a route and a server.
struct PlacedRequest<'p> {
    route: &'p Route,
    pool: &'p Rc<PlanRef>,
    server: usize,
    in_flight: InFlight,
    key: crate::auto::RequestKey,
}

impl PlacedRequest<'_> {
    fn pool(&self) -> Option<&std::sync::Arc<Pool>> {
        self.pool.pools.get(self.route.pool)
    }
}

impl ConnectionState {
    /// Waits for the next request's head. The wait for the first request of a connection has the
    /// time limit of a head.
    async fn next_head(
        &mut self,
        stream: &mut Stream,
        plan: &PlanRef,
        timeouts: &Timeouts,
    ) -> HeadWait {
        let mut deadline = None;
        loop {
            match RequestHead::parse(stream.input(), &plan.head_limits) {
                Ok(Some(head)) => return HeadWait::Head(head),
                Ok(None) => {}
                Err(error) => return HeadWait::Refused(error),
            }
            let begun = !stream.input().is_empty();
            let filled = if begun {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeouts.head);
                let stall = Instant::now() + timeouts.head_stall;
                self.timer.until(deadline.min(stall), stream.fill()).await
            } else {
                let first = self.origin.requests == 0;
                let after = match first {
                    true => timeouts.head,
                    false => timeouts.idle.saturating_sub(self.idle_before),
                };
                match self.wait_idle(stream, after).await {
                    Ok(Some(filled)) => Ok(filled),
                    Ok(None) => return HeadWait::Drained,
                    Err(Elapsed) if first => Err(Elapsed),
                    Err(Elapsed) => {
                        self.worker.meter.add(Event::IdleTimeout);
                        let _ = end_sending(stream, timeouts).await;
                        return HeadWait::Over;
                    }
                }
            };
            match filled {
                Err(Elapsed) => return HeadWait::TooSlow,
                Ok(Ok(0)) => return HeadWait::Over,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    self.note_broken(&error);
                    return HeadWait::Broken;
                }
            }
        }
    }

    /// Waits for the first bytes of a request; returns `None` if the process drains meanwhile.
    async fn wait_idle(
        &mut self,
        stream: &mut Stream,
        after: Duration,
    ) -> Result<Option<io::Result<usize>>, Elapsed> {
        let (worker, quiet) = (&self.worker, self.quiet);
        let either = async {
            tokio::select! {
                biased;
                filled = stream.fill() => Some(filled),
                () = worker.drained_since(quiet) => None,
            }
        };
        self.timer.limit(after, either).await
    }

    fn note_broken(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::InvalidData {
            self.worker.meter.add(Event::TlsBroken);
        }
        tracing::debug!(client = self.client, %error, "the connection broke");
    }

    /// Finds the route and the server of a request.
    fn place<'p>(
        &self,
        stream: &Stream,
        plan: &'p Rc<PlanRef>,
        head: &RequestHead,
    ) -> Result<PlacedRequest<'p>, Refusal> {
        let input = stream.input();
        match head.method() {
            Method::Connect => return Err(NO_TUNNEL),
            Method::Trace => return Err(NO_TRACE),
            _ => {}
        }
        if matches!(head.framing(), BodyFraming::Length(bytes) if bytes > plan.body_bytes_max) {
            return Err(LARGE_BODY);
        }
        let path = head.path(input);
        let route = plan.routes.find(head.host(input), path);
        let Some((route, pool)) = route.and_then(|r| Some((r, plan.pools.get(r.pool)?))) else {
            self.worker.meter.add(Event::RequestUnrouted);
            return Err(NO_ROUTE);
        };
        let mut turn = self.worker.turn.get();
        let chosen = pool.choose(path, &mut turn, &[]);
        self.worker.turn.set(turn);
        let chosen = chosen.and_then(|index| Some((index, pool.servers.get(index)?)));
        let Some((server, state)) = chosen else {
            self.worker.meter.add(Event::UpstreamFailed(unlade_metrics::UpstreamFailure::NoServer));
            return Err(NO_SERVER);
        };
        let in_flight = InFlight::begin(state.clone());
        let key = offload::key(route, head, input);
        Ok(PlacedRequest { route, pool: plan, server, in_flight, key })
    }

    /// Returns the request as a candidate if its connection is to be handed over.
    fn candidate(
        &self,
        stream: &Stream,
        plan: &PlanRef,
        head: &RequestHead,
        placed: &PlacedRequest<'_>,
    ) -> Option<Candidate> {
        let routed = Routed {
            route: placed.route,
            server: placed.in_flight.server(),
            key: placed.key,
            tls: stream.is_tls(),
            requests_before: self.origin.requests,
            may_leave: !self.worker.is_draining() && !self.is_ambiguous,
        };
        match self.worker.offload.decide(&routed, head) {
            Verdict::Off => None,
            Verdict::Proxy(why) => {
                let place = FallbackContext {
                    route: Some(placed.route),
                    server: Some(placed.in_flight.server()),
                    client: stream.peer(),
                };
                self.worker.fallbacks.report(&self.worker.meter, &why.into(), &place);
                None
            }
            Verdict::HandOver => Some(Candidate {
                plan: plan.shared(),
                route: placed.route.index,
                pool: placed.pool()?.clone(),
                server: placed.server,
                scope: plan.routes.scope_key(placed.route, head.host(stream.input())),
                key: placed.key,
                origin: self.origin,
            }),
        }
    }

    /// Proxies a request.
    async fn proxy(
        &mut self,
        stream: &mut Stream,
        plan: &PlanRef,
        head: RequestHead,
        placed: PlacedRequest<'_>,
        timeouts: &Timeouts,
        start: Instant,
    ) -> Next {
        let Some(pool) = placed.pool() else { return Next::Abort };
        let PlacedRequest { route, key, server, .. } = placed;
        let pool = pool.clone();
        self.route = Some(route.index);
        let mut scratch = std::mem::take(&mut self.scratch);
        let forwarding = Forwarding {
            client: &self.client,
            server: placed.in_flight.server().address,
            body_bytes_max: plan.body_bytes_max,
            upgrades: &route.upgrade,
        };
        let forward = Forward::prepare(stream, &head, forwarding, &mut scratch);
        drop(head);
        let exchange = Exchange {
            worker: &self.worker,
            client: stream,
            timer: &mut self.timer,
            timeouts,
            pool: &pool,
            is_last: self.is_ambiguous,
        };
        let running = async {
            match forward {
                Ok(forward) => exchange.run(forward, server, placed.in_flight, start).await,
                Err(error) => {
                    exchange.worker.meter.add(Event::HeadRefused(error.reason().into()));
                    let why = "the request's body is malformed";
                    Done::refused(Refusal::new(error.status(), why))
                }
            }
        };
        let done = if route.offload == OffloadMode::Auto {
            let (done, busy) = busy::measured(running).await;
            if !matches!(done.ended, Ended::Refused(_) | Ended::Abort) {
                let tls = stream.is_tls();
                let response_bytes = done.response_bytes;
                self.worker.offload.learn_proxied(key, tls, response_bytes, busy);
                let took = start.elapsed();
                self.paced = Some(PacedRequest { route: route.index, response_bytes, start, took });
            }
            done
        } else {
            running.await
        };
        if scratch.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch = scratch;
        }
        self.finish(stream, done, timeouts, start).await
    }

    /// Learns the pace of the last request. The arrival of the next one proves that its response
    /// has arrived.
    fn learn_pace(&mut self, stream: &Stream, now: Instant) {
        let offload = &self.worker.offload;
        if let Some(route) = self.route.filter(|_| self.origin.requests > 0) {
            let silence = now.saturating_duration_since(self.quiet) + self.idle_before;
            offload.learn_idle_time(route, silence);
        }
        if let Some(PacedRequest { route, response_bytes, start, took: answered }) =
            self.paced.take()
        {
            let took = now.saturating_duration_since(start);
            // The busy time of the socket includes the time in which the client received bytes
            // after the last write.
            let busy = unlade_sys::info::busy(stream.tcp()).unwrap_or_default();
            let before = std::mem::replace(&mut self.busy, busy);
            let waited = answered.max(busy.saturating_sub(before));
            let served = (1, response_bytes);
            offload.learn_pace(route, AnsweredBy::Proxied, served, Some(took), waited);
        }
    }

    async fn finish(
        &mut self,
        stream: &mut Stream,
        done: Done,
        timeouts: &Timeouts,
        start: Instant,
    ) -> Next {
        let is_refused = matches!(done.ended, Ended::Refused(_));
        let next = match done.ended {
            Ended::KeepAlive => Next::Request,
            Ended::Close if done.unread => Next::CloseGently,
            Ended::Close => Next::Close,
            Ended::Abort => Next::Abort,
            Ended::Upgraded(upgraded) => Next::Tunnel(upgraded),
            Ended::Refused(refusal) => {
                self.turn_away_with(stream, refusal, done.head_only, timeouts).await;
                Next::Gone
            }
        };
        let meter = &self.worker.meter;
        if !is_refused && done.status != 0 {
            meter.add(Event::Request(Mode::Proxy));
            meter.add(Event::Response(StatusClass::of(done.status)));
            meter.record(Stage::RequestProxy, start.elapsed());
        }
        self.count_traffic(stream);
        (self.quiet, self.idle_before) = (Instant::now(), Duration::ZERO);
        next
    }

    /// Answers a request here and closes the connection.
    async fn refuse(
        &mut self,
        stream: &mut Stream,
        head: &RequestHead,
        refusal: Refusal,
        timeouts: &Timeouts,
    ) {
        self.origin.requests += 1;
        let head_only = head.method() == Method::Head;
        self.turn_away_with(stream, refusal, head_only, timeouts).await;
    }

    /// Answers a request here. The connection continues if the rest of the request is known to be
    /// in the input.
    async fn answer(
        &mut self,
        stream: &mut Stream,
        head: &RequestHead,
        refusal: Refusal,
        timeouts: &Timeouts,
    ) -> Next {
        let head_only = head.method() == Method::Head;
        let body = match head.framing() {
            BodyFraming::None => Some(0),
            BodyFraming::Length(bytes) => usize::try_from(bytes).ok(),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        };
        let whole = body.and_then(|body| head.head_bytes().checked_add(body));
        let whole = whole.filter(|whole| stream.input().len() >= *whole);
        let may_go_on = !self.worker.is_draining() && !self.is_ambiguous;
        let keep_alive = head.keep_alive() && whole.is_some() && may_go_on;
        stream.consume(whole.unwrap_or(stream.input().len()));
        let mut out = Vec::new();
        respond::write(refusal, keep_alive, head_only, &mut out);
        stream.set_stall_limit(timeouts.body_stall);
        let sent = stream.write_all(&out, false).await;
        self.worker.meter.add(Event::Response(StatusClass::of(refusal.status)));
        self.count_traffic(stream);
        (self.quiet, self.idle_before) = (Instant::now(), Duration::ZERO);
        match (sent, keep_alive) {
            (Ok(()), true) => Next::Request,
            (Ok(()), false) => Next::CloseGently,
            _ => Next::Abort,
        }
    }

    /// Answers a malformed or incomplete request and closes.
    async fn turn_away(&mut self, stream: &mut Stream, refusal: Refusal, timeouts: &Timeouts) {
        self.turn_away_with(stream, refusal, false, timeouts).await;
    }

    async fn turn_away_with(
        &mut self,
        stream: &mut Stream,
        refusal: Refusal,
        head_only: bool,
        timeouts: &Timeouts,
    ) {
        let mut out = Vec::new();
        respond::write(refusal, false, head_only, &mut out);
        self.worker.meter.add(Event::Response(StatusClass::of(refusal.status)));
        let sent = self.timer.limit(timeouts.close, stream.write_all(&out, false)).await;
        if matches!(sent, Ok(Ok(()))) {
            close_gently(stream, &mut self.timer, timeouts).await;
        }
    }

    fn count_traffic(&mut self, stream: &Stream) {
        let (received, sent) = (stream.received_bytes(), stream.sent_bytes());
        let meter = &self.worker.meter;
        meter.add_n(Event::BytesIn, received.saturating_sub(self.counted_in));
        meter.add_n(Event::BytesOut, sent.saturating_sub(self.counted_out));
        (self.counted_in, self.counted_out) = (received, sent);
    }

    fn end(self) {
        self.worker.meter.add(Event::ConnectionClosed);
        if let Some(route) = self.route {
            self.worker.offload.learn_connection(route, self.origin.requests);
        }
    }
}
