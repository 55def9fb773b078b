//! A client connection: serves its requests in order until one side ends it.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use unlade_http::{BodyFraming, Method, RequestHead};
use unlade_metrics::{Event, Mode, Stage, StatusClass};
use unlade_runtime::Stream;

use crate::busy;
use crate::clients::Admission;
use crate::closing::Close;
use crate::config::{OffloadMode, Timeouts};
use crate::exchange::{Done, Ended};
use crate::fallback::{Declined, FallbackContext};
use crate::offload::{Candidate, ConnOrigin, Kept, ReturnInfo, Routed, Verdict};
use crate::pace::AnsweredBy;
use crate::placement::{self, PlacedRequest};
use crate::pool::Pool;
use crate::proxy::{Exchange, Forward, Forwarding};
use crate::respond::{self, Refusal};
use crate::timer::{Elapsed, Timer};
use crate::tunnel::Upgraded;
use crate::ways::Pick;
use crate::worker::{PlanRef, Worker};
use unlade_steering::splice::ClientSlot;

/// A scratch buffer that has grown beyond this is freed.
const SCRATCH_BYTES_MAX: usize = 16 * 1024;

const SLOW_HEAD: Refusal = Refusal::new(408, "the request did not come in time");
const AMBIGUOUS: Refusal = Refusal::new(502, "a server may have carried the request out already");

/// A client connection and its worker.
pub(crate) struct Connection {
    stream: Stream,
    state: ConnectionState,
}

/// Everything of a connection except its stream, which other code may own for a while.
pub(crate) struct ConnectionState {
    worker: Rc<Worker>,
    origin: ConnOrigin,
    /// The client's address as text.
    client: String,
    /// Its timer.
    pub timer: Timer,
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
    /// The way of the last response, if its time ends with the next request.
    timed: Option<(Arc<Pool>, Pick)>,
    /// The connection's slot, after the first response that bypassed this balancer's sockets.
    direct: Option<ClientSlot>,
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

/// The way in which a connection leaves the loop over its requests. The caller acts on it.
pub(crate) enum Outcome {
    /// A server has the connection. It may come back, as another [`Connection`].
    HandedOver,
    /// The connection is to be closed.
    Close(Finished, Close),
    /// The server has changed the protocol; a tunnel follows.
    Tunnel(Finished, Box<Upgraded>),
}

/// A connection that serves no further request.
pub(crate) struct Finished {
    /// The stream.
    pub stream: Stream,
    /// Timeouts of its listener.
    pub timeouts: Timeouts,
    /// Its remaining state.
    pub state: ConnectionState,
}

/// The action after a request.
enum Next {
    /// Serve the next request.
    Request,
    /// Close.
    Close(Close),
    /// Continue as a tunnel, without HTTP.
    Tunnel(Box<Upgraded>),
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
            timed: None,
            direct: None,
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

    /// Serves requests until none can follow on this connection.
    pub(crate) async fn serve(self) -> Outcome {
        let Connection { mut stream, mut state } = self;
        loop {
            let plan = state.worker.plan();
            let Some(listener) = plan.listeners.get(state.origin.listener) else {
                return state.close(stream, Timeouts::default(), Close::Now);
            };
            let timeouts = listener.timeouts;
            let head = match state.next_head(&mut stream, &plan, &timeouts).await {
                Ok(head) => head,
                Err(close) => {
                    // Some clients send one request only.
                    if matches!(close, Close::InOrder) {
                        state.learn_way();
                    }
                    return state.close(stream, timeouts, close);
                }
            };
            let start = Instant::now();
            state.learn_pace(&stream, start);
            state.learn_way();
            if state.is_ambiguous && !head.method().is_idempotent() {
                let close = state.refuse_ambiguous(&head);
                return state.close(stream, timeouts, close);
            }
            let mut placed = placement::place(&state.worker, &plan, &head, stream.input());
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
                        return Outcome::HandedOver;
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
                            let close = state.refuse_ambiguous(&head);
                            return state.close(stream, timeouts, close);
                        }
                        // Another server answers, if there is one.
                        if placed.as_ref().is_ok_and(|p| !p.in_flight.server().is_usable()) {
                            placed = placement::place(&worker, &plan, &head, stream.input());
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
                Next::Close(close) => return state.close(stream, timeouts, close),
                Next::Tunnel(upgraded) => {
                    return Outcome::Tunnel(Finished { stream, timeouts, state }, upgraded);
                }
            }
        }
    }
}

impl ConnectionState {
    fn close(self, stream: Stream, timeouts: Timeouts, how: Close) -> Outcome {
        Outcome::Close(Finished { stream, timeouts, state: self }, how)
    }

    /// Waits for the next request's head. The wait for the first request of a connection has the
    /// time limit of a head.
    ///
    /// # Errors
    /// The way to close the connection if no request follows.
    async fn next_head(
        &mut self,
        stream: &mut Stream,
        plan: &PlanRef,
        timeouts: &Timeouts,
    ) -> Result<RequestHead, Close> {
        let mut deadline = None;
        loop {
            let parsed = RequestHead::parse(stream.input(), &plan.head_limits);
            if !stream.input().is_empty() {
                self.end_hold(matches!(parsed, Ok(None)));
            }
            match parsed {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(error) => {
                    self.worker.meter.add(Event::HeadRefused(error.reason().into()));
                    let refusal = Refusal::new(error.status(), "the request is malformed");
                    return Err(Close::refused(refusal));
                }
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
                    // The process drains. A request may be in transit: it is read so that the
                    // client is not reset.
                    Ok(None) => return Err(Close::Gently),
                    Err(Elapsed) if first => Err(Elapsed),
                    Err(Elapsed) => {
                        self.worker.meter.add(Event::IdleTimeout);
                        return Err(Close::InOrder);
                    }
                }
            };
            match filled {
                Err(Elapsed) => {
                    self.worker.meter.add(Event::HeadTimeout);
                    return Err(match stream.input().is_empty() {
                        true => Close::Now,
                        false => Close::refused(SLOW_HEAD),
                    });
                }
                Ok(Ok(0)) => return Err(Close::InOrder),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    self.note_broken(&error);
                    return Err(Close::Now);
                }
            }
        }
    }

    /// Lets acknowledgements go to the client again, after the first read of a request. `is_partial`: the
    /// client may send the rest only when it has one.
    fn end_hold(&self, is_partial: bool) {
        if let (Some(client), Some(splices)) = (&self.direct, self.worker.splices())
            && client.end_hold()
            && is_partial
        {
            splices.acknowledge(client);
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
            may_leave: !self.worker.is_draining(),
        };
        // The failure that made its delivery ambiguous has been counted.
        if self.is_ambiguous {
            return None;
        }
        let verdict = match self.worker.offload.decide(&routed, head) {
            // The client's numbers are not those of the socket any more, so it cannot move.
            Verdict::HandOver if self.direct.is_some() => Verdict::Proxy(Declined::direct_return()),
            verdict => verdict,
        };
        match verdict {
            Verdict::Off => None,
            Verdict::Proxy(why) => {
                let place = FallbackContext {
                    route: Some(placed.route),
                    server: Some(placed.in_flight.server()),
                    client: stream.peer(),
                };
                self.worker.fallbacks.report(&self.worker.meter, &why, &place);
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
        let Some(pool) = placed.pool() else { return Next::Close(Close::Reset) };
        let PlacedRequest { route, key, server, .. } = placed;
        let pool = pool.clone();
        self.route = Some(route.index);
        let mut scratch = std::mem::take(&mut self.scratch);
        let forwarding = Forwarding {
            client: &self.client,
            server: placed.in_flight.server().address,
            body_bytes_max: plan.body_bytes_max,
            upgrades: &route.upgrade,
            may_seal: pool.sealing,
        };
        let forward = Forward::prepare(stream, &head, forwarding, &mut scratch);
        drop(head);
        let exchange = Exchange {
            worker: &self.worker,
            client: stream,
            timer: &mut self.timer,
            timeouts,
            pool: &pool,
            direct: &mut self.direct,
            pick: None,
            is_forwarded: false,
            is_last: self.is_ambiguous,
        };
        let (done, busy) = {
            // In one place: the future is large, and every move of it is a copy.
            let running = pin!(async {
                match forward {
                    Ok(forward) => exchange.run(forward, server, placed.in_flight, start).await,
                    Err(error) => {
                        exchange.worker.meter.add(Event::HeadRefused(error.reason().into()));
                        let why = "the request's body is malformed";
                        Done::refused(Refusal::new(error.status(), why))
                    }
                }
            });
            match route.offload {
                OffloadMode::Auto => busy::measured(running).await,
                _ => (running.await, Duration::ZERO),
            }
        };
        self.timed = done.timed.map(|pick| (pool, pick));
        if route.offload == OffloadMode::Auto
            && !matches!(done.ended, Ended::Refused(_) | Ended::Abort)
        {
            let response_bytes = done.response_bytes;
            self.worker.offload.learn_proxied(key, stream.is_tls(), response_bytes, busy);
            let took = start.elapsed().saturating_sub(done.age);
            self.paced = Some(PacedRequest { route: route.index, response_bytes, start, took });
        }
        if scratch.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch = scratch;
        }
        self.finish(stream, done, start)
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

    /// Learns the time of the last response, if it ends now.
    fn learn_way(&mut self) {
        if let Some((pool, pick)) = self.timed.take()
            && let Some(direct) = &pool.direct_return
        {
            direct.learn(pick, Duration::ZERO);
        }
    }

    fn finish(&mut self, stream: &Stream, done: Done, start: Instant) -> Next {
        let is_refused = matches!(done.ended, Ended::Refused(_));
        let next = match done.ended {
            Ended::KeepAlive => Next::Request,
            Ended::Close if done.unread => Next::Close(Close::Gently),
            Ended::Close => Next::Close(Close::InOrder),
            Ended::Abort => Next::Close(Close::Reset),
            Ended::Upgraded(upgraded) => Next::Tunnel(upgraded),
            Ended::Refused(refusal) => {
                Next::Close(Close::Refused { refusal, head_only: done.head_only })
            }
        };
        let now = Instant::now();
        let end = now.checked_sub(done.age).unwrap_or(now);
        let meter = &self.worker.meter;
        if !is_refused && done.status != 0 {
            meter.add(Event::Request(Mode::Proxy));
            meter.add(Event::Response(StatusClass::of(done.status)));
            meter.record(Stage::RequestProxy, end.saturating_duration_since(start));
        }
        self.count_traffic(stream);
        (self.quiet, self.idle_before) = (end, Duration::ZERO);
        next
    }

    /// Counts a request that a server may have carried out already and that must not be sent again.
    /// Returns the way to close its connection.
    fn refuse_ambiguous(&mut self, head: &RequestHead) -> Close {
        self.worker.meter.add(Event::RequestAmbiguous);
        self.origin.requests += 1;
        Close::Refused { refusal: AMBIGUOUS, head_only: head.method() == Method::Head }
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
            (Ok(()), false) => Next::Close(Close::Gently),
            _ => Next::Close(Close::Reset),
        }
    }

    /// Adds the stream's traffic since the last call to the meter.
    pub(crate) fn count_traffic(&mut self, stream: &Stream) {
        let (received, sent) = (stream.received_bytes(), stream.sent_bytes());
        let meter = &self.worker.meter;
        meter.add_n(Event::BytesIn, received.saturating_sub(self.counted_in));
        meter.add_n(Event::BytesOut, sent.saturating_sub(self.counted_out));
        (self.counted_in, self.counted_out) = (received, sent);
    }

    /// Returns true if a response has bypassed this balancer's sockets, or was to.
    pub(crate) fn has_slot(&self) -> bool {
        self.direct.is_some()
    }

    /// Counts the end of the connection.
    pub(crate) fn end(self) {
        self.worker.meter.add(Event::ConnectionClosed);
        if let Some(route) = self.route {
            self.worker.offload.learn_connection(route, self.origin.requests);
        }
    }
}
