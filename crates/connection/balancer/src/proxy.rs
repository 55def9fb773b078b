//! Proxies one request: to a server, and the response back.
//!
//! ```text
//!  client ──head──► rewritten ──► server        the head and what came with it, in one write
//!  client ──body──► (pipe | buffer) ──► server  while an answer may already be on its way
//!  server ──head──► rewritten in place ──► client, with the first of the body, in one write
//!  server ──body──► (pipe | buffer) ──► client  as fast as the client takes it
//! ```
//! A request that could not be sent, or was sent on a pooled connection that turned out to be
//! closed, is sent again if that cannot carry it out twice.

mod early;
mod sealed;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use unlade_http::forward::{self, Body, ClientOrigin, ResponseTerms};
use unlade_http::{BodyFraming, HeadError, HeadLimits, Method, RequestHead, ResponseHead};
use unlade_metrics::{Event, Stage, UpstreamFailure};
use unlade_runtime::Stream;
use unlade_steering::splice::ClientSlot;

use crate::config::Timeouts;
use crate::deliver::{Delivered, Delivery};
use crate::direct_return::DirectReturn;
use crate::exchange::{Done, Ended, Failed};
use crate::incoming::{Incoming, ReadEvent};
use crate::pool::Pool;
use crate::respond::Refusal;
use crate::server::{InFlight, Server};
use crate::timer::{Elapsed, Timer};
use crate::tunnel::Upgraded;
use crate::upgrade;
use crate::upload::{Upload, UploadError};
use crate::upstream::Upstream;
use crate::ways::Pick;
use crate::worker::Worker;

/// Limits of a server's heads: servers are trusted more than clients, but their heads are bounded.
const RESPONSE_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: 64 * 1024 - 1, headers_max: 256, target_bytes_max: 0 };
/// Most interim responses to one request.
const INTERIM_MAX: u32 = 32;
/// Number of servers that are tried for one request.
const SERVERS_TRIED_MAX: usize = 3;

const BAD_ANSWER: Refusal = Refusal::new(502, "the server's answer is malformed");
const NO_ANSWER: Refusal = Refusal::new(502, "the server closed the connection");
const NO_CONNECTION: Refusal = Refusal::new(502, "the server cannot be reached");
const SLOW_CONNECTION: Refusal = Refusal::new(504, "the server did not accept in time");
const SLOW_ANSWER: Refusal = Refusal::new(504, "the server did not answer in time");
const SLOW_BODY: Refusal = Refusal::new(408, "the request's body did not come in time");
const LARGE_BODY: Refusal = Refusal::new(413, "the request's body is too large");

/// A request that is being sent to a server. `sent` contains its head, and the part of its body
/// that came with it; the rest is still in the client's stream.
pub(crate) struct Forward<'b> {
    sent: &'b [u8],
    rest: Body,
    body_bytes_max: u64,
    method: Method,
    http10: bool,
    keep_alive: bool,
    awaits_continue: bool,
    /// The protocols that are offered to the server.
    upgrade: Option<String>,
    /// The request as the client has sent it, if it has no body and the response may be sealed at the
    /// server's host.
    original: Vec<u8>,
}

/// Parameters of forwarding a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forwarding<'a> {
    /// The client's address as text.
    pub client: &'a str,
    /// The server.
    pub server: SocketAddr,
    /// Most bytes of its body.
    pub body_bytes_max: u64,
    /// Protocols that the connection may change to.
    pub upgrades: &'a [String],
    /// The response may be sealed at the server's host.
    pub may_seal: bool,
}

impl<'b> Forward<'b> {
    /// Rewrites the request at the front of the client's input into `out` and consumes it.
    ///
    /// # Errors
    /// The body is malformed at its start.
    pub(crate) fn prepare(
        client: &mut Stream,
        request: &RequestHead,
        how: Forwarding<'_>,
        out: &'b mut Vec<u8>,
    ) -> Result<Forward<'b>, HeadError> {
        let input = client.input();
        out.clear();
        // Only a request of HTTP/1.0 can lack a host; only such a request causes the allocation.
        let authority =
            if request.host(input).is_none() { how.server.to_string() } else { String::new() };
        let upgrade = upgrade::offer(request, input, how.upgrades);
        let origin = ClientOrigin {
            client: how.client,
            tls: client.is_tls(),
            authority: &authority,
            upgrade: upgrade.as_deref(),
        };
        forward::request(request, input, &origin, out);
        let is_bodiless = matches!(request.framing(), BodyFraming::None | BodyFraming::Length(0));
        let original = match how.may_seal && is_bodiless && client.is_tls() {
            true => input.get(..request.head_bytes()).unwrap_or_default().to_vec(),
            false => Vec::new(),
        };
        let mut rest = Body::new(request.framing());
        let behind = input.get(request.head_bytes()..).unwrap_or_default();
        let taken = rest.advance(behind)?;
        out.extend_from_slice(behind.get(..taken).unwrap_or_default());
        client.consume(request.head_bytes() + taken);
        Ok(Forward {
            sent: out,
            rest,
            body_bytes_max: how.body_bytes_max.saturating_sub(taken as u64),
            method: request.method(),
            http10: request.is_http10(),
            keep_alive: request.keep_alive(),
            awaits_continue: request.expects_continue(),
            upgrade,
            original,
        })
    }

    /// Returns true if a response's head can be that of the server: a request of HTTP/1.1 for a
    /// body, without one of its own, on a connection that goes on.
    fn has_plain_response(&self) -> bool {
        self.method == Method::Get
            && !self.http10
            && self.keep_alive
            && self.rest.is_done()
            && self.upgrade.is_none()
            && !self.awaits_continue
    }

    /// Returns the path, for choosing another server.
    fn path(&self) -> &str {
        let line = self.sent.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        std::str::from_utf8(path).unwrap_or_default()
    }
}

/// The context of one exchange.
pub(crate) struct Exchange<'c> {
    /// The worker.
    pub worker: &'c Worker,
    /// The client.
    pub client: &'c mut Stream,
    /// The connection's timer.
    pub timer: &'c mut Timer,
    /// Timeouts of the listener.
    pub timeouts: &'c Timeouts,
    /// The pool.
    pub pool: &'c Pool,
    /// Slot of the client's connection, if it has one.
    pub direct: &'c mut Option<ClientSlot>,
    /// The way that was chosen for the response.
    pub pick: Option<Pick>,
    /// It has begun early, and the server's host has got no rule.
    pub is_forwarded: bool,
    /// The connection ends with this request.
    pub is_last: bool,
}

/// Reason why an attempt did not lead to a response.
enum Attempt {
    /// A pooled connection was closed, and the request can be sent again.
    Stale,
    /// The request ended with it.
    Over(Done),
}

impl Exchange<'_> {
    /// Gets the request answered, first by the server of `in_flight`, which has the index `server`
    /// in the pool.
    pub(crate) async fn run(
        mut self,
        forward: Forward<'_>,
        server: usize,
        in_flight: InFlight,
        start: Instant,
    ) -> Done {
        let head_only = forward.method == Method::Head;
        let mut done = self.run_attempts(forward, server, in_flight, start).await;
        if let (Some(pick), Some(pool)) = (self.pick, &self.pool.direct_return) {
            pool.end(pick);
            let is_timed = pick.lasts_to_next_request() && matches!(done.ended, Ended::KeepAlive);
            done.timed = is_timed.then_some(pick);
        }
        done.head_only = head_only;
        done
    }

    async fn run_attempts(
        &mut self,
        mut forward: Forward<'_>,
        mut server: usize,
        mut in_flight: InFlight,
        start: Instant,
    ) -> Done {
        if let Some(done) = self.run_sealed(&mut forward, in_flight.server(), start).await {
            return done;
        }
        let mut failed = Vec::new();
        let mut pooled = self.pooled(&in_flight);
        loop {
            let upstream = match pooled.take() {
                Some(upstream) => upstream,
                None => match self.connect(&in_flight).await {
                    Ok(upstream) => upstream,
                    Err(refusal) => {
                        failed.push(server);
                        // Nothing was sent, so any other server may be asked.
                        match self.another(&forward, &failed) {
                            Some((index, other)) => (server, in_flight) = (index, other),
                            None => return Done::refused(refusal),
                        }
                        pooled = self.pooled(&in_flight);
                        continue;
                    }
                },
            };
            match self.attempt(&mut forward, upstream, in_flight.server(), start).await {
                Attempt::Over(mut done) => {
                    if let Ended::Upgraded(upgraded) = &mut done.ended {
                        upgraded.in_flight = Some(in_flight);
                    }
                    return done;
                }
                Attempt::Stale => self.worker.meter.add(Event::UpstreamRetried),
            }
        }
    }

    /// Returns an idle connection to the server.
    fn pooled(&self, in_flight: &InFlight) -> Option<Upstream> {
        let address = in_flight.server().address;
        self.worker.upstreams.take(address, self.may_return_directly(address))
    }

    /// Returns true if responses of a server to this client can bypass the sockets.
    fn may_return_directly(&self, server: SocketAddr) -> bool {
        !self.client.is_tls() && self.may_bypass(server)
    }

    /// As [`Exchange::may_return_directly`], for bytes that the client can have as they are.
    fn may_bypass(&self, server: SocketAddr) -> bool {
        // A segment cannot change its family.
        self.pool.direct_return.is_some()
            && self.client.peer().is_ipv6() == server.is_ipv6()
            && self.worker.splices().is_some()
    }

    async fn connect(&mut self, in_flight: &InFlight) -> Result<Upstream, Refusal> {
        let server = in_flight.server();
        let connecting = self.worker.upstreams.connect(server.address);
        let connected = self.timer.limit(self.timeouts.upstream_connect, connecting).await;
        if !matches!(connected, Ok(Ok(_))) {
            // Only failures count: a server that accepts may still fail its checks.
            server.observe(false, &self.pool.health, &self.worker.meter);
        }
        match connected {
            Ok(Ok(upstream)) => Ok(upstream),
            Ok(Err(error)) => {
                tracing::debug!(server = %server.address, %error, "connecting");
                Err(self.failure(UpstreamFailure::Connect, NO_CONNECTION))
            }
            Err(Elapsed) => Err(self.failure(UpstreamFailure::ConnectTimeout, SLOW_CONNECTION)),
        }
    }

    fn failure(&self, reason: UpstreamFailure, refusal: Refusal) -> Refusal {
        self.worker.meter.add(Event::UpstreamFailed(reason));
        refusal
    }

    fn another(&self, forward: &Forward<'_>, failed: &[usize]) -> Option<(usize, InFlight)> {
        if failed.len() >= SERVERS_TRIED_MAX {
            return None;
        }
        let mut turn = self.worker.turn.get();
        let index = self.pool.choose(forward.path(), &mut turn, failed)?;
        self.worker.turn.set(turn);
        Some((index, InFlight::begin(self.pool.servers.get(index)?.clone())))
    }

    /// Sends the request on `upstream` and delivers the response.
    async fn attempt(
        &mut self,
        forward: &mut Forward<'_>,
        mut upstream: Upstream,
        server: &Server,
        start: Instant,
    ) -> Attempt {
        let mut is_early = self.prepare_return(forward, &mut upstream);
        // Body bytes that are taken from the client from now on have no other copy.
        let replayable =
            upstream.reused && forward.rest.is_done() && forward.method.is_idempotent();
        let sent = self.send(forward.sent, &upstream).await;
        is_early = is_early && self.is_early_still(&upstream, sent.is_ok());
        if !is_early {
            self.acknowledge();
        }
        if let Err(ended) = sent {
            match ended {
                // Bytes that the client got directly cannot be sent again.
                Some(_) if replayable && !is_early => return Attempt::Stale,
                // The server may have answered before it closed.
                Some(_) => {}
                None => return self.fail(Failed::Slow, is_early, &upstream),
            }
        }
        let rest = std::mem::replace(&mut forward.rest, Body::Done);
        let mut upload = Upload::new(rest, forward.body_bytes_max);
        // A body through TLS is not spliced: the first read may take more than the head.
        let recent = (!self.client.is_tls()).then_some(&self.worker.recent_bodies);
        let first_read_bytes = self.worker.plan().config.body.first_read_bytes(recent);
        let mut incoming = Incoming::new(first_read_bytes);
        let passed = match is_early {
            true => self.await_passed(&mut upstream, &mut incoming).await,
            false => Ok(None),
        };
        let awaited = match passed {
            Ok(Some(head)) => {
                let age = self.direct.as_ref().map(ClientSlot::head_age).unwrap_or_default();
                let after = start.elapsed().saturating_sub(age);
                self.worker.meter.record(Stage::UpstreamResponse, after);
                server.set_silent(false);
                return Attempt::Over(self.deliver_passed(forward, head, upstream, upload).await);
            }
            Ok(None) => {
                let upload = &mut upload;
                is_early = is_early && self.is_early_still(&upstream, true);
                self.await_head(forward, &mut upstream, upload, &mut incoming, &mut is_early).await
            }
            Err(failed) => Err(failed),
        };
        match awaited {
            Ok(head) => {
                self.worker.meter.record(Stage::UpstreamResponse, start.elapsed());
                server.set_silent(false);
                if head.status() == 101 {
                    let switching = Box::pin(self.switch(forward, head, upstream, incoming));
                    return Attempt::Over(switching.await);
                }
                let arrived = Arrived { head, incoming, is_early };
                Attempt::Over(self.deliver(forward, arrived, upstream, upload).await)
            }
            Err(Failed::Server) if incoming.is_untouched() && (replayable || is_early) => {
                // An end in order is behind all bytes of the server: none was direct.
                let is_sure = !is_early || incoming.is_ended();
                if is_early && is_sure {
                    self.cancel_early(&upstream);
                }
                match is_sure && replayable {
                    true => Attempt::Stale,
                    false => self.fail(Failed::Server, is_early && !is_sure, &upstream),
                }
            }
            Err(failed @ Failed::Malformed(_)) if is_early => {
                // The server's host takes no such head for a fit one.
                self.cancel_early(&upstream);
                self.fail(failed, false, &upstream)
            }
            Err(failed) => self.fail(failed, is_early, &upstream),
        }
    }

    /// Ends a request without a response. `is_early`: the client may have got a part of one from the
    /// server's host, so nothing else may follow.
    fn fail(&self, failed: Failed, is_early: bool, upstream: &Upstream) -> Attempt {
        let done = self.give_up(failed);
        if !is_early {
            return Attempt::Over(done);
        }
        self.cancel_early(upstream);
        Attempt::Over(Done::aborted())
    }

    /// Sends all of `bytes`. The error is `None` on a timeout.
    async fn send(&mut self, bytes: &[u8], upstream: &Upstream) -> Result<(), Option<io::Error>> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.timer.limit(self.timeouts.body_stall, upstream.write(left)).await {
                Ok(Ok(count)) => left = left.get(count..).unwrap_or_default(),
                Ok(Err(error)) => return Err(Some(error)),
                Err(Elapsed) => return Err(None),
            }
        }
        Ok(())
    }

    /// Waits for the head of the final response; meanwhile sends the rest of the request and
    /// passes interim responses on.
    async fn await_head(
        &mut self,
        forward: &mut Forward<'_>,
        upstream: &mut Upstream,
        upload: &mut Upload,
        incoming: &mut Incoming,
        is_early: &mut bool,
    ) -> Result<ResponseHead, Failed> {
        let mut interim = 0;
        let mut watch_client = true;
        let mut deadline = None;
        loop {
            let parsed = ResponseHead::parse(incoming.data(), &RESPONSE_LIMITS, forward.method);
            match parsed.map_err(Failed::Malformed)? {
                Some(head) if head.is_interim() => {
                    interim += 1;
                    if interim > INTERIM_MAX {
                        return Err(Failed::Malformed(HeadError::BadStatusLine));
                    }
                    forward.awaits_continue = false;
                    if std::mem::take(is_early) {
                        // The server's host has read this head, and takes no other one.
                        self.cancel_early(upstream);
                        self.lift_limit(upstream);
                    }
                    Box::pin(self.pass_interim(&head, forward.http10, incoming)).await?;
                    continue;
                }
                // The request did not offer another protocol.
                Some(head) if head.status() == 101 && forward.upgrade.is_none() => {
                    return Err(Failed::Malformed(HeadError::BadStatusLine));
                }
                Some(head) => return Ok(head),
                None => {}
            }
            if upload.is_done() {
                let after = self.timeouts.upstream_response;
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + after);
                let watched = watch_client.then_some(&*self.client);
                let buffers = &self.worker.buffers;
                let seen = incoming.fill_watching(&mut upstream.tcp, buffers, watched, || false);
                match self.timer.until(deadline, seen).await {
                    Err(Elapsed) => return Err(Failed::Slow),
                    Ok(ReadEvent::Read(Ok(1..)) | ReadEvent::Over) => {}
                    Ok(ReadEvent::Read(_)) => return Err(Failed::Server),
                    Ok(ReadEvent::ClientBusy) => watch_client = false,
                    Ok(ReadEvent::ClientGone) => return Err(Failed::Client),
                }
                continue;
            }
            Box::pin(self.upload_or_read(forward, upstream, upload, incoming)).await?;
        }
    }

    /// Either sends some of the body, or receives some of a response.
    async fn upload_or_read(
        &mut self,
        forward: &Forward<'_>,
        upstream: &mut Upstream,
        upload: &mut Upload,
        incoming: &mut Incoming,
    ) -> Result<(), Failed> {
        let stall = match forward.awaits_continue {
            true => self.timeouts.upstream_response,
            false => self.timeouts.body_stall,
        };
        let worker = self.worker;
        let client = &mut *self.client;
        let (mut reader, writer) = upstream.tcp.split();
        let either = async {
            tokio::select! {
                biased;
                read = incoming.fill(&mut reader, &worker.buffers) => Either::Read(read),
                step = upload.step(client, writer.as_ref(), worker) => Either::Step(step),
            }
        };
        match self.timer.limit(stall, either).await {
            Err(Elapsed) if upload.is_stuck_at_server() || forward.awaits_continue => {
                Err(Failed::Slow)
            }
            Err(Elapsed) => Err(Failed::ClientSlow),
            Ok(Either::Read(Ok(1..)) | Either::Step(Ok(()))) => Ok(()),
            Ok(Either::Read(_)) => Err(Failed::Server),
            // The server reads no more; it may have sent the reason.
            Ok(Either::Step(Err(UploadError::Server))) => {
                upload.abandon();
                Ok(())
            }
            Ok(Either::Step(Err(UploadError::Client))) => Err(Failed::Client),
            Ok(Either::Step(Err(UploadError::Malformed(error)))) => Err(Failed::Body(error)),
            Ok(Either::Step(Err(UploadError::TooLarge))) => Err(Failed::TooLarge),
        }
    }

    async fn pass_interim(
        &mut self,
        head: &ResponseHead,
        http10: bool,
        incoming: &mut Incoming,
    ) -> Result<(), Failed> {
        // RFC 9110 §15.2: a client of HTTP/1.0 does not understand them.
        if !http10 {
            let mut out = Vec::new();
            let terms = ResponseTerms { http10, keep_alive: true };
            forward::response(head, incoming.data(), terms, &mut out);
            let sending = self.client.write_all(&out, false);
            match self.timer.limit(self.timeouts.body_stall, sending).await {
                Ok(Ok(())) => {}
                _ => return Err(Failed::Client),
            }
        }
        incoming.consume(head.head_bytes());
        Ok(())
    }

    /// Sends the 101 to the client after the server has changed the protocol.
    async fn switch(
        &mut self,
        forward: &Forward<'_>,
        head: ResponseHead,
        upstream: Upstream,
        incoming: Incoming,
    ) -> Done {
        let data = incoming.data();
        let offered = forward.upgrade.as_deref().unwrap_or_default();
        let Some(protocol) = upgrade::chosen(&head, data, offered) else {
            return self.give_up(Failed::Malformed(HeadError::BadStatusLine));
        };
        let mut out = Vec::with_capacity(head.head_bytes() + 64);
        forward::switching(&head, data, protocol, &mut out);
        let behind = data.get(head.head_bytes()..).unwrap_or_default().to_vec();
        let mut upstream = upstream;
        self.lift_limit(&mut upstream);
        self.client.set_stall_limit(self.timeouts.body_stall);
        if self.client.write_all(&out, false).await.is_err() {
            return Done::aborted();
        }
        let upgraded = Box::new(Upgraded { upstream, behind, in_flight: None });
        let (ended, status) = (Ended::Upgraded(upgraded), head.status());
        let age = Duration::ZERO;
        Done { ended, status, response_bytes: 0, unread: false, head_only: false, age, timed: None }
    }

    async fn deliver(
        &mut self,
        forward: &Forward<'_>,
        Arrived { head, incoming, is_early }: Arrived,
        upstream: Upstream,
        mut upload: Upload,
    ) -> Done {
        // A server that refuses a request does not want the rest of it.
        if head.status() >= 400 && !upload.is_done() {
            upload.abandon();
        }
        let unread = upload.is_abandoned();
        let chunks_removed = forward.http10 && head.framing() == unlade_http::BodyFraming::Chunked;
        let keep_alive = forward.keep_alive
            && !unread
            && !chunks_removed
            && head.framing() != unlade_http::BodyFraming::UntilClose
            && self.may_go_on();
        let terms = ResponseTerms { http10: forward.http10, keep_alive };
        let (status, reusable) = (head.status(), head.keep_alive());
        let is_possible = self.may_return_directly(upstream.address);
        let mut delivery = self.delivery(upload, incoming);
        if is_early && delivery.direct.is_none() {
            // A new configuration has no direct return: nothing can follow the bytes that were.
            return Done::aborted();
        }
        if let Some(direct) = &mut delivery.direct {
            direct.path = if is_possible { direct.splices.path(forward.path()) } else { 0 };
            direct.is_over = !is_possible || !keep_alive || !reusable;
            direct.is_early = is_early;
        }
        let delivered = delivery.run(&head, terms, upstream).await;
        let reuse = reusable && !unread;
        // A client that asked for the close sends no more; if the close is ours, it may be
        // sending.
        let unread = unread || (!keep_alive && forward.keep_alive);
        self.finish(delivered, status, Going { keep_alive, reuse, unread })
    }

    /// Returns true if the client's connection may go on after this request.
    fn may_go_on(&self) -> bool {
        !self.is_last && !self.worker.is_draining()
    }

    /// Returns the delivery of a response that is relayed unless its `direct` says otherwise.
    fn delivery(&mut self, upload: Upload, incoming: Incoming) -> Delivery<'_> {
        let means = self.pool.direct_return.as_ref().zip(self.worker.splices());
        let direct = means.map(|(pool, splices)| {
            let decided = (self.pick, self.is_forwarded);
            DirectReturn::new((self.worker, splices, pool), &mut *self.direct, decided)
        });
        Delivery {
            worker: self.worker,
            direct,
            client: self.client,
            timer: self.timer,
            timeouts: self.timeouts,
            upload,
            incoming,
            came_bytes: 0,
            age: Duration::ZERO,
        }
    }

    /// Ends a request whose response was delivered, as far as it was.
    fn finish(&mut self, delivered: Delivered, status: u16, going: Going) -> Done {
        let Delivered { outcome, begun, upstream, response_bytes, age } = delivered;
        self.worker.recent_bodies.note(response_bytes);
        let ended = match outcome {
            Ok(()) if going.keep_alive => Ended::KeepAlive,
            Ok(()) => Ended::Close,
            Err(failed) if !begun => return self.give_up(failed),
            Err(failed) => return self.break_off(failed, status, response_bytes),
        };
        if let Some(upstream) = upstream.filter(|_| going.reuse) {
            self.worker.upstreams.put(upstream, &self.pool.upstream, Instant::now());
        }
        let unread = going.unread;
        Done { ended, status, response_bytes, unread, head_only: false, age, timed: None }
    }

    /// Ends a request before anything was sent to the client.
    fn give_up(&self, failed: Failed) -> Done {
        Done::refused(match failed {
            Failed::Server => self.failure(UpstreamFailure::Closed, NO_ANSWER),
            Failed::Slow => self.failure(UpstreamFailure::ResponseTimeout, SLOW_ANSWER),
            Failed::Malformed(error) => {
                self.worker.meter.add(Event::ResponseRefused(error.reason().into()));
                self.failure(UpstreamFailure::BadResponse, BAD_ANSWER)
            }
            Failed::Body(error) => {
                self.worker.meter.add(Event::HeadRefused(error.reason().into()));
                Refusal::new(error.status(), "the request's body is malformed")
            }
            Failed::TooLarge => LARGE_BODY,
            Failed::ClientSlow => {
                self.worker.meter.add(Event::ClientStalled);
                SLOW_BODY
            }
            Failed::Client => return Done::aborted(),
        })
    }

    /// Ends a request after the head was sent: the status cannot be changed any more.
    fn break_off(&self, failed: Failed, status: u16, response_bytes: u64) -> Done {
        let event = match failed {
            Failed::Server => Some(Event::UpstreamFailed(UpstreamFailure::Closed)),
            Failed::Slow => Some(Event::UpstreamFailed(UpstreamFailure::ResponseTimeout)),
            Failed::Malformed(error) => {
                self.worker.meter.add(Event::ResponseRefused(error.reason().into()));
                Some(Event::UpstreamFailed(UpstreamFailure::BadResponse))
            }
            Failed::Body(error) => Some(Event::HeadRefused(error.reason().into())),
            Failed::ClientSlow => Some(Event::ClientStalled),
            Failed::Client | Failed::TooLarge => None,
        };
        if let Some(event) = event {
            self.worker.meter.add(event);
        }
        Done { status, response_bytes, ..Done::aborted() }
    }
}

/// The use of both connections after a response.
struct Going {
    /// The client's connection goes on.
    keep_alive: bool,
    /// The server's connection takes another request, if the response left it so.
    reuse: bool,
    /// The client may be sending bytes that nobody reads.
    unread: bool,
}

/// The head of a response, and the bytes that came with it.
struct Arrived {
    head: ResponseHead,
    incoming: Incoming,
    /// The splice began before the request was sent.
    is_early: bool,
}

enum Either {
    Read(io::Result<usize>),
    Step(Result<(), UploadError>),
}
