//! A TLS client's request whose response is sealed at the server's host, with the client's keys.
//!
//! ```text
//!  SEAL: the request, a delegation of the next records ──► the server's agent
//!  header of a piece: number of records, of bytes ◄───────┤
//!  records ──► the client, as they are ◄──────────────────┘
//!  after the last piece, the next record is sealed here again
//! ```
//! From the delegation on nothing else can be sent to the client: a failure resets its connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use unlade_channel::trust::Membership;
use unlade_handoff_protocol::frame::{Frame, SEALED_REQUEST_BYTES_MAX};
use unlade_http::forward::Body;
use unlade_metrics::{Event, SealingRefusal, Stage};
use unlade_steering::splice::ClientSlot;
use unlade_tls::piece::{PIECE_HEADER_BYTES, Piece, PieceEnd};

use super::{Exchange, Forward, Going};
use crate::deliver::Delivered;
use crate::direct_return::Looks;
use crate::exchange::{Done, Ended, Failed};
use crate::incoming::{Incoming, ReadEvent};
use crate::server::Server;
use crate::timer::Elapsed;
use crate::upload::Upload;
use crate::upstream::Upstream;
use crate::ways::Way;

/// Most records of a response: 64 GiB.
const RECORDS_MAX: u64 = 1 << 22;

/// A response, as far as it has come.
#[derive(Default)]
struct Passed {
    records: u64,
    /// Bytes of records.
    sealed_bytes: u64,
    /// Number of the request's path.
    path: u64,
    /// The records are to be direct from the first one on.
    is_early: bool,
    /// Time since the end of the response, if it is seen later.
    age: Duration,
}

impl Exchange<'_> {
    /// Lets the server's agent answer the request and seal the response. `None`: nothing has happened, the
    /// request is to be proxied.
    pub(super) async fn run_sealed(
        &mut self,
        forward: &mut Forward<'_>,
        server: &Server,
        start: Instant,
    ) -> Option<Done> {
        let agent = server.agent?;
        let is_suited = self.pool.sealing
            && !forward.original.is_empty()
            && forward.original.len() <= SEALED_REQUEST_BYTES_MAX
            && forward.upgrade.is_none()
            && !forward.awaits_continue
            && self.may_go_on();
        if !is_suited {
            return None;
        }
        let trust = self.pool.trust.as_ref()?;
        let expected = self.expected_sealed(forward, agent);
        if self.pick.is_some_and(|pick| pick.way == Way::Relay) {
            self.worker.meter.add(Event::SealingDeclined(SealingRefusal::Way));
            return None;
        }
        let pooled = self.worker.upstreams.take(agent, self.may_bypass(agent));
        if pooled.is_none() && self.worker.sealing_retries.is_waiting(agent, Instant::now()) {
            self.forget_pick();
            return None;
        }
        let upstream = match pooled {
            None => self.connect_sealing(agent, trust).await,
            pooled => pooled,
        };
        let Some(mut upstream) = upstream else { return self.decline(SealingRefusal::Agent) };
        let Some((delegation, record)) = self.client.begin_delegation(RECORDS_MAX) else {
            self.worker.upstreams.put(upstream, &self.pool.upstream, Instant::now());
            return self.decline(SealingRefusal::Connection);
        };
        let mut message = Vec::new();
        let frame = Frame::Seal {
            client: self.client.peer(),
            service: self.client.local(),
            is_apart: expected.is_some_and(|(_, bytes)| bytes.is_some()),
            delegation: delegation.to_bytes().to_vec().into(),
            request: std::mem::take(&mut forward.original).into(),
        };
        let encrypted =
            upstream.sealing.as_mut().map(|sealing| sealing.encrypt(&frame, &mut message));
        if !matches!(encrypted, Some(Ok(()))) {
            // Nothing has left.
            self.client.end_delegation(record, Some(0));
            return self.decline(SealingRefusal::Agent);
        }
        let mut passed = Passed::default();
        if let Some((path, bytes)) = expected {
            passed.path = path;
            passed.is_early = self.begin_or_limit(&mut upstream, path, bytes, message.len());
        }
        let outcome = self.pass_sealed(&message, &mut upstream, &mut passed, start).await;
        let content_bytes = delegation.content_bytes(passed.sealed_bytes, passed.records);
        let records = outcome.is_ok().then_some(passed.records);
        self.client.end_delegation(record, records);
        Some(self.end_sealed(outcome, upstream, &passed, content_bytes.unwrap_or_default()))
    }

    /// Counts a response that is proxied although another way was chosen for it.
    fn decline(&mut self, why: SealingRefusal) -> Option<Done> {
        self.worker.meter.add(Event::SealingDeclined(why));
        self.forget_pick();
        None
    }

    /// The response takes another way than the one that was chosen.
    fn forget_pick(&mut self) {
        if let (Some(pick), Some(pool)) = (self.pick.take(), &self.pool.direct_return) {
            pool.end(pick);
        }
    }

    /// Connects to the agent; `None`: it does not answer, or one side does not trust the other.
    async fn connect_sealing(&mut self, agent: SocketAddr, trust: &Membership) -> Option<Upstream> {
        let connecting = self.worker.upstreams.connect_sealing(agent, trust);
        match self.timer.limit(self.timeouts.upstream_connect, connecting).await {
            Ok(Ok(upstream)) => {
                self.worker.sealing_retries.succeed(agent);
                return Some(upstream);
            }
            Ok(Err(error)) => tracing::debug!(%agent, %error, "no sealing"),
            Err(Elapsed) => tracing::debug!(%agent, "no sealing: it does not answer in time"),
        }
        self.worker.sealing_retries.fail(agent, Instant::now());
        None
    }

    /// Ends a request that the agent has got.
    fn end_sealed(
        &mut self,
        outcome: Result<PieceEnd, Failed>,
        upstream: Upstream,
        passed: &Passed,
        content_bytes: u64,
    ) -> Done {
        match outcome {
            Ok(PieceEnd { status, keep_alive }) => {
                self.worker.meter.add(Event::Sealed);
                let keep_alive = keep_alive && self.may_go_on();
                let delivered = Delivered {
                    outcome: Ok(()),
                    begun: true,
                    upstream: (!upstream.is_broken).then_some(upstream),
                    response_bytes: content_bytes,
                    age: passed.age,
                };
                let going = Going { keep_alive, reuse: true, unread: !keep_alive };
                self.finish(delivered, status, going)
            }
            Err(failed) => {
                self.worker.meter.add(Event::SealingDeclined(SealingRefusal::Broken));
                tracing::debug!(?failed, client = %self.client.peer(), "a sealed response");
                if passed.is_early {
                    self.cancel_early(&upstream);
                }
                // Nothing can tell the client.
                Done { ended: Ended::Abort, ..self.break_off(failed, 0, content_bytes) }
            }
        }
    }

    /// Returns the number of the request's path, and the bytes that are expected if the response is to go to
    /// the client from its first record on. `None`: it passes this process.
    fn expected_sealed(
        &mut self,
        forward: &Forward<'_>,
        agent: SocketAddr,
    ) -> Option<(u64, Option<u32>)> {
        if !self.may_bypass(agent) {
            return None;
        }
        let path = self.worker.splices()?.path(forward.path());
        let bytes = forward.has_plain_response().then(|| self.plan_return(path, agent, true));
        Some((path, bytes.flatten()))
    }

    /// Sends the request, and passes the pieces of the response on.
    async fn pass_sealed(
        &mut self,
        message: &[u8],
        upstream: &mut Upstream,
        passed: &mut Passed,
        start: Instant,
    ) -> Result<PieceEnd, Failed> {
        let sent = self.send(message, upstream).await;
        passed.is_early = passed.is_early && self.is_early_still(upstream, sent.is_ok());
        if !passed.is_early {
            self.acknowledge();
        }
        sent.map_err(|_| Failed::Server)?;
        let (mut incoming, mut is_first) = (Incoming::new(usize::MAX), true);
        loop {
            let piece = self.await_piece(upstream, &mut incoming, is_first).await?;
            if std::mem::take(&mut is_first) {
                self.worker.meter.record(Stage::UpstreamResponse, start.elapsed());
            }
            passed.records = passed.records.saturating_add(piece.records);
            passed.sealed_bytes = passed.sealed_bytes.saturating_add(piece.bytes);
            if passed.records > RECORDS_MAX {
                return Err(Failed::Server);
            }
            let mut delivery = self.delivery(Upload::new(Body::Done, 0), incoming);
            if let Some(direct) = &mut delivery.direct {
                (direct.path, direct.is_early) = (passed.path, passed.is_early);
            }
            let is_last = piece.end.is_some();
            delivery.run_piece(piece.bytes, is_last, upstream).await?;
            (incoming, passed.age) = (delivery.incoming, delivery.age);
            passed.is_early = false;
            match piece.end {
                Some(end) if incoming.data().is_empty() => return Ok(end),
                Some(_) => return Err(Failed::Server),
                None => {}
            }
        }
    }

    /// Waits for the header of the next piece, and takes it out of `incoming`.
    async fn await_piece(
        &mut self,
        upstream: &mut Upstream,
        incoming: &mut Incoming,
        is_first: bool,
    ) -> Result<Piece, Failed> {
        let limit =
            if is_first { self.timeouts.upstream_response } else { self.timeouts.body_stall };
        let deadline = Instant::now() + limit;
        let (mut looks, mut watches) = (Looks::late(), true);
        loop {
            let sealing = upstream.sealing.as_mut().ok_or(Failed::Server)?;
            if let Some(piece) = sealing.read(incoming.data()).map_err(|_| Failed::Server)? {
                incoming.consume(PIECE_HEADER_BYTES);
                return Ok(piece);
            }
            incoming.make_room();
            let (buffers, watched) = (&self.worker.buffers, watches.then_some(&*self.client));
            let seen = incoming.fill_watching(&mut upstream.tcp, buffers, watched, || false);
            // The acknowledgement of the request may have been kept.
            let is_held = self.direct.as_ref().is_some_and(ClientSlot::is_ack_kept);
            let next = if is_held { deadline.min(looks.next()) } else { deadline };
            match self.timer.until(next, seen).await {
                Err(Elapsed) if Instant::now() >= deadline => return Err(Failed::Slow),
                Err(Elapsed) => {
                    looks.looked();
                    self.acknowledge();
                }
                Ok(ReadEvent::Read(Ok(1..)) | ReadEvent::Over) => {}
                Ok(ReadEvent::Read(_)) => return Err(Failed::Server),
                Ok(ReadEvent::ClientBusy) => watches = false,
                Ok(ReadEvent::ClientGone) => return Err(Failed::Client),
            }
        }
    }
}
