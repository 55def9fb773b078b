//! Forwards one request of a client to the local server, and relays the response.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use tokio::time::Instant;
use unlade_http::forward::Body;
use unlade_http::{HeadError, Method, RequestHead, ResponseHead};
use unlade_metrics::{Event, Stage};
use unlade_runtime::Stream;
use unlade_runtime::peer::{self, PeerEvent};
use unlade_tls::piece::PieceEnd;

use super::failure::{Failed, Refusal};
use super::pool::{Upstream, Upstreams};
use super::proxy_protocol;
use super::received::Received;
use super::request::{Request, Upload, UploadError};
use super::response::{self, INTERIM_MAX, LIMITS, Response};
use crate::exchange::{ServeError, Served};
use crate::reply::Persistence;
use crate::session::{OnDrain, Session};
use crate::transfer::{self, TURN_BYTES_MAX};

/// Methods that are no request for a resource of the local server.
const NOT_FORWARDED: Refusal = Refusal { status: 405, why: "the method is not served here" };

/// Most bytes of memory that a connection keeps for the next head.
const OUT_KEPT_BYTES_MAX: usize = 4096;

/// A failure, and how far the response had come.
struct Stopped {
    failed: Failed,
    /// The client may have got a part of the response.
    begun: bool,
}

impl From<Failed> for Stopped {
    fn from(failed: Failed) -> Stopped {
        Stopped { failed, begun: false }
    }
}

/// The first event of a wait for both sides.
enum Either {
    Read(io::Result<usize>),
    Step(Result<(), UploadError>),
    Client(PeerEvent),
}

/// One request on its way.
struct Forwarding<'c> {
    client: &'c mut Stream,
    session: &'c mut Session,
    upstreams: &'c Upstreams,
    /// A reset of the client is looked for: it has sent nothing since the request.
    watches: bool,
}

/// Serves the request whose head is at the front of the client's input.
///
/// # Errors
/// The client is gone, or its response cannot be completed.
pub(crate) async fn serve(
    client: &mut Stream,
    session: &mut Session,
    head: &RequestHead,
    upstreams: &Upstreams,
) -> Result<Served, ServeError> {
    let (method, http10) = (head.method(), head.is_http10());
    if matches!(method, Method::Connect | Method::Trace) {
        client.consume(head.head_bytes());
        return refuse(client, session, NOT_FORWARDED, method, Persistence::Close).await;
    }
    let out = std::mem::take(&mut session.out);
    let authority = match head.host(client.input()) {
        Some(_) => String::new(),
        None => upstreams.settings().address.authority(),
    };
    let mut whole = false;
    let keep_alive = head.keep_alive();
    let stopped = match Request::prepare(client, head, &authority, out) {
        Err(error) => Stopped::from(Failed::Body(error)),
        Ok(mut request) => {
            whole = request.rest.is_done();
            let (client, session) = (&mut *client, &mut *session);
            let mut forwarding = Forwarding { client, session, upstreams, watches: true };
            let ended = forwarding.run(&mut request).await;
            // A kept body would cost each idle connection its memory.
            request.sent.clear();
            request.sent.shrink_to(OUT_KEPT_BYTES_MAX);
            forwarding.session.out = std::mem::take(&mut request.sent);
            match ended {
                Ok(served) => return Ok(served),
                Err(stopped) => stopped,
            }
        }
    };
    let Stopped { failed, begun } = stopped;
    upstreams.note(&failed);
    let meter = &session.context().meter;
    match &failed {
        Failed::ClientGone => meter.add(Event::SidecarAbandoned),
        Failed::Body(_) => meter.add(Event::SidecarBodyRefused),
        _ => {}
    }
    match failed.refusal().filter(|_| !begun) {
        Some(refusal) => {
            if matches!(failed, Failed::ClientStalled) {
                meter.add(Event::BackendStalled);
            }
            // The rest of a body would be taken for the next request.
            let persistence = match whole && keep_alive {
                false => Persistence::Close,
                true if http10 => Persistence::KeepSaid,
                true => Persistence::Keep,
            };
            refuse(client, session, refusal, method, persistence).await
        }
        None => {
            // A response without an end must not look complete.
            let _ = client.tcp().set_zero_linger();
            Err(failed.into())
        }
    }
}

/// Answers without the local server.
async fn refuse(
    client: &mut Stream,
    session: &mut Session,
    refusal: Refusal,
    method: Method,
    persistence: Persistence,
) -> Result<Served, ServeError> {
    let mut out = std::mem::take(&mut session.out);
    out.clear();
    let date = session.context().clock.now().1;
    let head_only = method == Method::Head;
    let body_bytes = response::refuse(refusal, &date, persistence, head_only, &mut out);
    let keep_alive = persistence != Persistence::Close;
    client.announce(out.len() as u64, persistence.end_of(refusal.status)).await?;
    let sent = transfer::send(client, session, &out, false).await;
    session.out = out;
    sent?;
    Ok(Served { keep_alive, method, status: refusal.status, body_bytes })
}

impl Forwarding<'_> {
    /// Gets the request answered. A pooled connection that turns out to be closed is replaced once.
    async fn run(&mut self, request: &mut Request) -> Result<Served, Stopped> {
        let mut pooled = match self.session.upstream.take() {
            Some(kept) => self.upstreams.again(kept),
            None if self.upstreams.settings().proxy_protocol => None,
            None => self.upstreams.take(),
        };
        loop {
            let upstream = match pooled.take() {
                Some(upstream) => upstream,
                None => self.connect().await?,
            };
            match self.attempt(request, upstream).await? {
                Some(served) => return Ok(served),
                None => self.session.context().meter.add(Event::SidecarRetried),
            }
        }
    }

    async fn connect(&mut self) -> Result<Upstream, Failed> {
        let settings = self.upstreams.settings();
        let header = match settings.proxy_protocol {
            true => proxy_protocol::header(self.client.peer(), self.client.local()),
            false => Vec::new(),
        };
        let connecting = self.upstreams.connect(&header);
        let limit = settings.connect_timeout;
        match self.session.within(limit, OnDrain::Finish, connecting).await {
            Ok(connected) => connected.map_err(Failed::Connect),
            Err(_) => Err(Failed::ConnectTimeout),
        }
    }

    /// Sends the request on `upstream`, and relays the response. Returns None if a pooled connection
    /// was closed, and the request can be sent again.
    async fn attempt(
        &mut self,
        request: &mut Request,
        upstream: Upstream,
    ) -> Result<Option<Served>, Stopped> {
        // Bytes of a body that are taken from the client from now on have no other copy.
        let replayable =
            upstream.reused && request.rest.is_done() && request.method.is_idempotent();
        let begin = Instant::now();
        match self.send(&request.sent, &upstream).await {
            Err(Failed::Closed) if replayable => return Ok(None),
            // The server may have answered before it closed.
            Ok(()) | Err(Failed::Closed) => {}
            Err(failed) => return Err(failed.into()),
        }
        let rest = std::mem::replace(&mut request.rest, Body::Done);
        let (mut upload, mut received) = (Upload::new(rest), Received::default());
        match self.await_head(request, &upstream, &mut upload, &mut received).await {
            Ok(head) => {
                let meter = &self.session.context().meter;
                meter.record(Stage::UpstreamResponse, begin.elapsed());
                self.deliver(request, &head, (upload, received), upstream).await.map(Some)
            }
            Err(Failed::Closed) if replayable && received.is_untouched() => Ok(None),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Sends all of `bytes`.
    async fn send(&mut self, bytes: &[u8], upstream: &Upstream) -> Result<(), Failed> {
        let limit = self.body_timeout();
        let mut left = bytes;
        while !left.is_empty() {
            let writing = upstream.socket.write(left);
            match self.session.within(limit, OnDrain::Finish, writing).await {
                Ok(Ok(sent)) => left = left.get(sent..).unwrap_or_default(),
                Ok(Err(_)) => return Err(Failed::Closed),
                Err(_) => return Err(Failed::Stalled),
            }
        }
        Ok(())
    }

    /// Waits for the head of the final response; meanwhile sends the rest of the request, and passes
    /// interim responses on.
    async fn await_head(
        &mut self,
        request: &mut Request,
        upstream: &Upstream,
        upload: &mut Upload,
        received: &mut Received,
    ) -> Result<ResponseHead, Failed> {
        let (mut interim, mut deadline) = (0, None);
        loop {
            let parsed = ResponseHead::parse(received.data(), &LIMITS, request.method);
            match parsed.map_err(Failed::BadResponse)? {
                // No protocol was offered.
                Some(head) if head.status() == 101 => return Err(malformed()),
                Some(head) if head.is_interim() => {
                    interim += 1;
                    if interim > INTERIM_MAX {
                        return Err(malformed());
                    }
                    request.awaits_continue = false;
                    self.pass_interim(&head, request.http10, received).await?;
                }
                Some(head) => return Ok(head),
                None if upload.is_done() => {
                    let limit = self.upstreams.settings().response_timeout;
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
                    let left = deadline.saturating_duration_since(Instant::now());
                    if self.read(upstream, received, left, Failed::ResponseTimeout).await? == 0 {
                        return Err(Failed::Closed);
                    }
                }
                None => {
                    // A client that waits for an interim response waits for the server.
                    let limit = match request.awaits_continue {
                        true => self.upstreams.settings().response_timeout,
                        false => self.body_timeout(),
                    };
                    let waits = request.awaits_continue;
                    let read = match self.both_ways(upstream, upload, received, limit).await {
                        Err(Failed::ClientStalled) if waits => Err(Failed::ResponseTimeout),
                        other => other,
                    }?;
                    if matches!(read, Some(Ok(0) | Err(_))) {
                        return Err(Failed::Closed);
                    }
                    request.awaits_continue = waits && self.client.input().is_empty();
                }
            }
        }
    }

    /// Reads from the server; `late` is the failure after `limit`. Meanwhile a reset of the client is
    /// noticed.
    async fn read(
        &mut self,
        upstream: &Upstream,
        received: &mut Received,
        limit: Duration,
        late: Failed,
    ) -> Result<usize, Failed> {
        let (client, buffers) = (&*self.client, self.upstreams.buffers());
        loop {
            let watches = self.watches;
            let either = async {
                let sign = poll_fn(|context| peer::poll_event(client.tcp(), context));
                tokio::select! {
                    biased;
                    read = received.fill(&upstream.socket, buffers) => Either::Read(read),
                    event = sign, if watches => Either::Client(event),
                }
            };
            match self.session.within(limit, OnDrain::Finish, either).await {
                Err(_) => return Err(late),
                Ok(Either::Read(read)) => return read.map_err(|_| Failed::Closed),
                Ok(Either::Client(PeerEvent::Gone)) => return Err(Failed::ClientGone),
                Ok(Either::Client(PeerEvent::Sent) | Either::Step(_)) => self.watches = false,
            }
        }
    }

    /// Either sends some of the body, or receives some of the response: then returns what was read.
    async fn both_ways(
        &mut self,
        upstream: &Upstream,
        upload: &mut Upload,
        received: &mut Received,
        limit: Duration,
    ) -> Result<Option<io::Result<usize>>, Failed> {
        let (client, buffers) = (&mut *self.client, self.upstreams.buffers());
        let either = async {
            tokio::select! {
                biased;
                read = received.fill(&upstream.socket, buffers) => Either::Read(read),
                step = upload.step(client, &upstream.socket) => Either::Step(step),
            }
        };
        match self.session.within(limit, OnDrain::Finish, either).await {
            Err(_) if upload.is_stuck_at_server() => Err(Failed::Stalled),
            Err(_) => Err(Failed::ClientStalled),
            Ok(Either::Read(read)) => Ok(Some(read)),
            Ok(Either::Step(step)) => stepped(step, upload).map(|()| None),
            Ok(Either::Client(_)) => Ok(None),
        }
    }

    async fn pass_interim(
        &mut self,
        head: &ResponseHead,
        http10: bool,
        received: &mut Received,
    ) -> Result<(), Failed> {
        // RFC 9110 §15.2: a client of HTTP/1.0 does not understand them.
        if !http10 {
            let mut out = Vec::new();
            response::interim(head, received.data(), &mut out);
            self.write(&out).await?;
        }
        received.consume(head.head_bytes());
        Ok(())
    }

    /// Relays the response that begins with `head`, and sends the rest of the request meanwhile.
    async fn deliver(
        &mut self,
        request: &Request,
        head: &ResponseHead,
        (mut upload, mut received): (Upload, Received),
        upstream: Upstream,
    ) -> Result<Served, Stopped> {
        // A server that refuses a request, or has not asked for its body, does not want the rest.
        if !upload.is_done() && (head.status() >= 400 || request.awaits_continue) {
            upload.abandon();
        }
        let keep_alive = request.keep_alive && !upload.is_abandoned();
        let mut response = Response::new(head, request.http10, keep_alive);
        let mut out = Vec::with_capacity(head.head_bytes() + 128);
        response.head(head, received.data(), request.http10, &mut out);
        received.consume(head.head_bytes());
        let head_bytes = out.len() as u64;
        if let Some(body_bytes) = response.left_bytes() {
            let end = PieceEnd { status: response.status, keep_alive: response.keep_alive };
            let announced = self.client.announce(head_bytes + body_bytes, end).await;
            announced.map_err(|_| Failed::ClientGone)?;
        }
        let taken = response.take(received.data(), &mut out).map_err(Failed::BadResponse)?;
        received.consume(taken);
        let (mut sent_bytes, mut turn_bytes) = (out.len() as u64, 0);
        let begun = |failed| Stopped { failed, begun: true };
        self.write(&out).await.map_err(begun)?;
        while !(response.is_done() && upload.is_done()) {
            let limit = self.body_timeout();
            let read = match (response.is_done(), upload.is_done()) {
                (false, true) => {
                    let read = self.read(&upstream, &mut received, limit, Failed::Stalled).await;
                    Some(read.map_err(begun)?)
                }
                (false, false) => {
                    let read = self.both_ways(&upstream, &mut upload, &mut received, limit).await;
                    let read = read.map_err(begun)?;
                    read.transpose().map_err(|_| begun(Failed::Closed))?
                }
                (true, _) => {
                    self.upload_only(&upstream, &mut upload, limit).await.map_err(begun)?;
                    None
                }
            };
            let Some(read) = read else { continue };
            if read == 0 && !response.end() {
                return Err(begun(Failed::Closed));
            }
            out.clear();
            let taken = response.advance(received.data(), &mut out);
            let taken = taken.map_err(Failed::BadResponse).map_err(begun)?;
            let piece = match response.is_verbatim() {
                true => received.data().get(..taken).unwrap_or_default(),
                false => &out,
            };
            sent_bytes += piece.len() as u64;
            self.write(piece).await.map_err(begun)?;
            received.consume(taken);
            turn_bytes += taken as u64;
            if turn_bytes >= TURN_BYTES_MAX {
                turn_bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        // Bytes behind the response belong to no request.
        let is_reusable = head.keep_alive() && received.data().is_empty();
        if is_reusable && !upload.is_abandoned() {
            self.keep(upstream);
        }
        Ok(Served {
            keep_alive: response.keep_alive && !upload.is_abandoned(),
            method: request.method,
            status: response.status,
            body_bytes: sent_bytes - head_bytes,
        })
    }

    /// Keeps the connection for the next request: of this client, or of any.
    fn keep(&mut self, upstream: Upstream) {
        match self.upstreams.settings().proxy_protocol {
            true => self.session.upstream = Some(upstream),
            false => self.upstreams.put(upstream),
        }
    }

    async fn upload_only(
        &mut self,
        upstream: &Upstream,
        upload: &mut Upload,
        limit: Duration,
    ) -> Result<(), Failed> {
        let step = upload.step(self.client, &upstream.socket);
        match self.session.within(limit, OnDrain::Finish, step).await {
            Err(_) if upload.is_stuck_at_server() => Err(Failed::Stalled),
            Err(_) => Err(Failed::ClientStalled),
            Ok(step) => stepped(step, upload),
        }
    }

    /// Writes to the client as long as it makes progress.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.client.set_stall_limit(self.session.context().limits().write_timeout);
        self.client.write_all(bytes, false).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Failed::ClientStalled,
            _ => Failed::ClientGone,
        })
    }

    fn body_timeout(&self) -> Duration {
        self.session.context().limits().body_timeout
    }
}

fn malformed() -> Failed {
    Failed::BadResponse(HeadError::BadStatusLine)
}

fn stepped(step: Result<(), UploadError>, upload: &mut Upload) -> Result<(), Failed> {
    match step {
        Ok(()) => Ok(()),
        // The server reads no more; it may have sent the reason.
        Err(UploadError::Server) => {
            upload.abandon();
            Ok(())
        }
        Err(UploadError::Client) => Err(Failed::ClientGone),
        Err(UploadError::Malformed(error)) => Err(Failed::Body(error)),
    }
}
