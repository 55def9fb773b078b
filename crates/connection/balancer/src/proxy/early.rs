//! A request whose response is to go to the client from its first byte on.
//!
//! ```text
//!  prepare_return   a long response is expected: the splice begins before the request is sent, or
//!                   with it
//!  is_early_still   the request is sent: has it begun?
//!  await_passed     the head: a program has read it, or it comes to the socket
//!  deliver_passed   the rest
//! ```

use std::net::SocketAddr;

use tokio::time::Instant;
use unlade_metrics::Event;
use unlade_splice::head::Head;
use unlade_steering::splice::ClientSlot;

use super::{Exchange, Forward, Going};
use crate::closing;
use crate::direct_return::{DirectReturn, Looks};
use crate::exchange::{Done, Failed};
use crate::incoming::{Incoming, ReadEvent};

use crate::splices::{Beginning, ServerEnd};
use crate::timer::Elapsed;
use crate::upload::Upload;
use crate::upstream::Upstream;

impl Exchange<'_> {
    /// Limits what the server may send, or lets the response go to the client from its first byte on.
    /// Returns true for the latter.
    pub(super) fn prepare_return(
        &mut self,
        forward: &Forward<'_>,
        upstream: &mut Upstream,
    ) -> bool {
        if !self.may_return_directly(upstream.address) {
            return false;
        }
        let Some(splices) = self.worker.splices() else { return false };
        let path = splices.path(forward.path());
        let is_fit = forward.has_plain_response() && self.may_go_on();
        let expected_bytes =
            is_fit.then(|| self.plan_return(path, upstream.address, false)).flatten();
        self.begin_or_limit(upstream, path, expected_bytes, forward.sent.len())
    }

    /// Chooses the way of the response to a request for a path. Returns the bytes that are expected of it if
    /// it is to go to the client from its first byte on.
    pub(super) fn plan_return(
        &mut self,
        path: u64,
        server: SocketAddr,
        is_sealed: bool,
    ) -> Option<u32> {
        let (pool, splices) = self.pool.direct_return.as_ref().zip(self.worker.splices())?;
        let has_agent = pool.secret.is_some() && !self.worker.backoffs.is_on(server);
        // The request may have waited for this process: that is a part of the time it takes.
        let waited = self.direct.as_ref().map(ClientSlot::request_age).unwrap_or_default();
        let planned = pool.plan(splices.expected_bytes(path), is_sealed, has_agent, waited);
        self.pick = planned.pick;
        if let Some(change) = planned.change {
            self.worker.meter.add(Event::DirectReturnWayChanged);
            tracing::info!(pool = self.pool.name, "{change}");
        }
        planned.early_bytes
    }

    /// Begins a splice before a request of so many bytes, if bytes of the response are expected; returns
    /// true then. Limits what the server may send otherwise.
    pub(super) fn begin_or_limit(
        &mut self,
        upstream: &mut Upstream,
        path: u64,
        expected_bytes: Option<u32>,
        request_bytes: usize,
    ) -> bool {
        let means = self.pool.direct_return.as_ref().zip(self.worker.splices());
        let Some((pool, splices)) = means else { return false };
        self.is_forwarded = false;
        if let Some(expected_bytes) = expected_bytes
            && let Ok(request_bytes) = u32::try_from(request_bytes)
        {
            let means = (self.worker, splices, pool);
            let decided = (self.pick, false);
            let mut direct = DirectReturn::new(means, &mut *self.direct, decided);
            if direct.begin_early(self.client, upstream, (request_bytes, expected_bytes)) {
                self.is_forwarded = direct.is_forwarded;
                return true;
            }
        }
        if let Err(error) = upstream.limit(splices, pool, path) {
            tracing::debug!(%error, server = %upstream.address, "no direct return");
        }
        false
    }

    /// Sends the client the acknowledgement of its request, if it was kept: no response will have it soon.
    pub(super) fn acknowledge(&self) {
        if let (Some(client), Some(splices)) = (&*self.direct, self.worker.splices())
            && client.is_ack_kept()
        {
            splices.acknowledge(client);
        }
    }

    /// Returns false if a splice that was to begin early has not begun, and will not. `is_sent`: the
    /// request was.
    pub(super) fn is_early_still(&self, upstream: &Upstream, is_sent: bool) -> bool {
        let beginning = || upstream.end.as_ref().map(ServerEnd::beginning);
        let refusal = match beginning() {
            Some(Beginning::Refused(error)) => error,
            Some(Beginning::Awaited) if !is_sent => {
                self.cancel_early(upstream);
                // It may have begun in between.
                return matches!(beginning(), Some(Beginning::Begun));
            }
            _ => return true,
        };
        // The response can begin late: a reason is counted there.
        tracing::debug!(error = %refusal, client = %self.client.peer(), "no early direct return");
        false
    }

    /// Ends a splice that began early. Unless it is sure that no byte was direct, both connections are
    /// closed afterwards.
    pub(super) fn cancel_early(&self, upstream: &Upstream) {
        if let (Some(splices), Some(client), Some(end)) =
            (self.worker.splices(), &*self.direct, &upstream.end)
        {
            splices.abort(client, end);
        }
    }

    /// Waits for the head of a response that began early. `None`: it came to the socket, at least in part.
    pub(super) async fn await_passed(
        &mut self,
        upstream: &mut Upstream,
        incoming: &mut Incoming,
    ) -> Result<Option<Head>, Failed> {
        let deadline = Instant::now() + self.timeouts.upstream_response;
        let (mut looks, mut watches) = (Looks::late(), true);
        loop {
            let head = self.direct.as_ref().and_then(ClientSlot::head);
            if head.is_some() {
                return Ok(head);
            }
            let watched = watches.then_some(&*self.client);
            let (direct, buffers) = (&*self.direct, &self.worker.buffers);
            // The client's next request wakes this task, and is read by the next one.
            let is_over = || direct.as_ref().and_then(ClientSlot::head).is_some();
            let seen = incoming.fill_watching(&mut upstream.tcp, buffers, watched, is_over);
            match self.timer.until(deadline.min(looks.next()), seen).await {
                Ok(ReadEvent::Over) => {}
                Err(Elapsed) if !watches && closing::is_gone(self.client.tcp()) => {
                    return Err(Failed::Client);
                }
                Err(Elapsed) if Instant::now() >= deadline => return Err(Failed::Slow),
                Err(Elapsed) => {
                    looks.looked();
                    self.acknowledge();
                }
                Ok(ReadEvent::Read(Ok(1..))) => return Ok(None),
                Ok(ReadEvent::Read(_)) => {
                    // A whole response may have come before the end.
                    let head = self.direct.as_ref().and_then(ClientSlot::head);
                    return if head.is_some() { Ok(head) } else { Err(Failed::Server) };
                }
                // The client has the response before this program knows of it.
                Ok(ReadEvent::ClientBusy) => (watches, looks) = (false, Looks::soon()),
                Ok(ReadEvent::ClientGone) => return Err(Failed::Client),
            }
        }
    }

    /// Lets the server send as much as the socket has room for.
    pub(super) fn lift_limit(&self, upstream: &mut Upstream) {
        if let Some(splices) = self.worker.splices() {
            splices.relay(&mut upstream.end, u64::MAX);
        }
    }

    /// Follows a response whose head went past the sockets.
    pub(super) async fn deliver_passed(
        &mut self,
        forward: &Forward<'_>,
        head: Head,
        upstream: Upstream,
        upload: Upload,
    ) -> Done {
        let keep_alive = self.may_go_on();
        let mut delivery = self.delivery(upload, Incoming::new(usize::MAX));
        let Some(direct) = &mut delivery.direct else { return Done::aborted() };
        direct.path = direct.splices.path(forward.path());
        direct.is_early = true;
        let delivered = delivery.run_passed(head, upstream).await;
        let going = Going { keep_alive, reuse: true, unread: !keep_alive };
        self.finish(delivered, head.status, going)
    }
}
