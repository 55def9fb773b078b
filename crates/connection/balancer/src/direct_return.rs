//! Direct return: the rest of a response goes from the server's host to the client, past the
//! sockets of this balancer.
//!
//! ```text
//!  begin early   before the request, if a long response is expected: the server's host gets a rule,
//!                and looks at the head; without an agent, the program here does that. The process
//!                learns of a fit head by the slot, and reads any other one from the socket
//!  or late       head and first bytes are relayed, until the server has used up what it was granted
//!  direct        bytes ──► client; acknowledgements ──► server; what comes here without a rule at
//!                the server's host goes on to the client as packets
//!  end           the client has acknowledged the last byte; both connections go on as before
//! ```
//! Connections without such a response have no part in it: a slot is opened by the first one.

use std::time::Duration;

use tokio::time::Instant;
use unlade_metrics::{self as metrics, Begin, Event};
use unlade_net::FlowKey;
use unlade_runtime::Stream;
use unlade_splice::Unfit;
use unlade_splice::head::{Head, fit};
use unlade_steering::splice::{ClientSlot, End, SpliceError};

use crate::direct_pool::DirectPool;
use crate::splices::{ServerEnd, Splices};
use crate::upstream::Upstream;
use crate::ways::{Pick, Way};
use crate::worker::Worker;

/// The connections of a response that is to bypass this balancer's sockets.
pub(crate) struct DirectReturn<'c> {
    /// The worker.
    pub worker: &'c Worker,
    /// Its splices.
    pub splices: &'c Splices,
    /// The pool's key.
    pub pool: &'c DirectPool,
    /// Slot of the client's connection, from the first direct response on.
    pub client: &'c mut Option<ClientSlot>,
    /// The path of the request: see [`Splices::path`].
    pub path: u64,
    /// This response is relayed.
    pub is_over: bool,
    /// The splice has begun, before the request was sent.
    pub is_early: bool,
    /// The way that was chosen before the request was sent.
    pub pick: Option<Pick>,
    /// The server's host gets no rule, even if it takes rules.
    pub is_forwarded: bool,
}

/// The conclusion from the head of a response whose splice began early, and whose first bytes came to the
/// socket.
pub(crate) enum Judged {
    /// The head goes on as it is, and the rest takes the direct way.
    Fit(Head),
    /// No byte was direct. The response is relayed from its first byte on.
    Unfit,
    /// The server's host has sent bytes that are not fit: both connections have to be closed.
    Broken,
}

/// The next step of a response.
pub(crate) enum Begun {
    /// It has begun; so many bytes are direct.
    Direct(u64),
    /// The server may send more bytes, which are relayed first.
    Later,
    /// The response is relayed.
    Relayed,
}

/// Returns the counted reason of an error.
fn reason(error: &SpliceError) -> metrics::Unfit {
    match error {
        SpliceError::Unfit(Unfit::Window) => metrics::Unfit::Window,
        SpliceError::Unfit(Unfit::Segments) => metrics::Unfit::Segments,
        SpliceError::Unfit(Unfit::Timestamps) => metrics::Unfit::Timestamps,
        SpliceError::Unfit(Unfit::Granted | Unfit::Gap | Unfit::Over | Unfit::Long)
        | SpliceError::Closed
        | SpliceError::Steer(_)
        | SpliceError::Run(_) => metrics::Unfit::Failed,
    }
}

/// Times between two looks at a response that causes no event here: it goes to the client directly, and
/// its end is seen with the client's next request only.
pub(crate) struct Looks {
    pause: Duration,
}

impl Looks {
    const PAUSE_MIN: Duration = Duration::from_millis(1);
    const PAUSE_MAX: Duration = Duration::from_millis(64);

    /// The first one is after a millisecond.
    pub(crate) fn soon() -> Looks {
        Looks { pause: Self::PAUSE_MIN }
    }

    /// The first one is later than most responses take.
    pub(crate) fn late() -> Looks {
        Looks { pause: 4 * Self::PAUSE_MIN }
    }

    /// Returns the time of the next one.
    pub(crate) fn next(&self) -> Instant {
        Instant::now() + self.pause
    }

    /// Doubles the time between two.
    pub(crate) fn looked(&mut self) {
        self.pause = (self.pause * 2).min(Self::PAUSE_MAX);
    }
}

impl<'c> DirectReturn<'c> {
    /// Returns a response that bypasses nothing yet, the way that was chosen for it, and true if it was
    /// decided that the server's host gets no rule.
    pub(crate) fn new(
        (worker, splices, pool): (&'c Worker, &'c Splices, &'c DirectPool),
        client: &'c mut Option<ClientSlot>,
        (pick, is_forwarded): (Option<Pick>, bool),
    ) -> DirectReturn<'c> {
        let is_forwarded = is_forwarded || pick.is_some_and(|pick| pick.way == Way::Forward);
        DirectReturn {
            worker,
            splices,
            pool,
            client,
            path: 0,
            is_over: false,
            is_early: false,
            pick,
            is_forwarded,
        }
    }

    /// Returns true if a response of so many bytes may bypass the sockets.
    pub(crate) fn is_worth_it(&self, bytes: u64) -> bool {
        bytes >= self.pool.from_bytes
    }

    /// Returns the key of the server's agent; `None`: its host gets no rules.
    pub(crate) fn secret(&self, upstream: &Upstream) -> Option<[u8; 16]> {
        let secret = self.pool.secret.filter(|_| !self.is_forwarded);
        secret.filter(|_| !self.worker.backoffs.is_on(upstream.address))
    }

    /// Opens the slots of both connections.
    pub(crate) fn open(&mut self, client: &Stream, upstream: &mut Upstream) -> bool {
        match self.open_slots(client, upstream) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, client = %client.peer(), "no direct return");
                self.worker.meter.add(Event::DirectReturnUnfit(reason(&error)));
                false
            }
        }
    }

    fn open_slots(&mut self, client: &Stream, upstream: &mut Upstream) -> Result<(), SpliceError> {
        if self.client.is_none() {
            let flow = FlowKey::new(client.peer(), client.local());
            *self.client = Some(self.splices.open_client(&flow)?);
            // Also if this process is killed within a response: see [`closing::may_linger`].
            let _ = client.tcp().set_zero_linger();
        }
        // Without a limit the server sends as much as the socket has room for.
        match upstream.end.as_ref().is_some_and(ServerEnd::is_limited) {
            true => Ok(()),
            false => upstream.limit(self.splices, self.pool, self.path),
        }
    }

    /// Begins a splice before a request of so many bytes is sent, for which as many of a response are
    /// expected. Returns false if the response begins here.
    pub(crate) fn begin_early(
        &mut self,
        client: &Stream,
        upstream: &mut Upstream,
        bytes: (u32, u32),
    ) -> bool {
        let opened = self.open_slots(client, upstream);
        let is_sealed = upstream.sealing.is_some();
        // A server's host takes no rule for the first bytes of a sealed response.
        let secret = self.secret(upstream).filter(|_| !is_sealed);
        self.is_forwarded = secret.is_none();
        let begun = match (&*self.client, &mut upstream.end, opened) {
            (Some(slot), Some(end), Ok(())) => {
                self.splices.begin_early(slot, end, bytes, secret, is_sealed)
            }
            (_, _, opened) => opened.and(Err(SpliceError::Closed)),
        };
        if let Err(error) = &begun {
            // The response can begin late: a reason is counted there.
            tracing::debug!(%error, client = %client.peer(), "no early direct return");
        }
        self.is_early = begun.is_ok();
        self.is_early
    }

    /// Decides about the response that begins with `data`, its head, whose body has `body_bytes`
    /// bytes if it has a length. The server's host comes to the same conclusion if all of it was in one
    /// segment.
    pub(crate) fn judge_head(
        &mut self,
        upstream: &mut Upstream,
        data: &[u8],
        body_bytes: Option<u64>,
    ) -> Judged {
        let (Some(client), Some(end)) = (&*self.client, &upstream.end) else {
            return Judged::Broken;
        };
        let head = fit(data).filter(|head| Some(u64::from(head.body_bytes)) == body_bytes);
        if let Some(head) = head {
            self.splices.set_length(client, end, head.response_bytes());
            return Judged::Fit(head);
        }
        let is_direct = client.is_ahead();
        self.cancel(upstream);
        self.worker.meter.add(Event::DirectReturnUnfit(metrics::Unfit::Head));
        if is_direct { Judged::Broken } else { Judged::Unfit }
    }

    /// Ends a splice of which no byte was direct.
    pub(crate) fn cancel(&mut self, upstream: &Upstream) {
        self.is_early = false;
        self.abort(upstream);
    }

    /// Begins the direct return of the rest of a response, of which `came_bytes` came.
    pub(crate) fn begin(&mut self, upstream: &Upstream, came_bytes: u64, rest_bytes: u64) -> Begun {
        if self.pick.is_none() {
            let is_sealed = upstream.sealing.is_some();
            self.is_forwarded = self.pool.is_forwarded(rest_bytes, is_sealed);
        }
        let (Some(client), Some(end)) = (&*self.client, &upstream.end) else {
            return Begun::Relayed;
        };
        if !end.is_used_up(came_bytes) {
            return Begun::Later;
        }
        let secret = self.secret(upstream);
        self.is_forwarded = secret.is_none();
        match self.splices.begin(client, end, rest_bytes, secret) {
            Ok(bytes) => {
                self.worker.meter.add(Event::DirectReturned(Begin::Late));
                Begun::Direct(bytes)
            }
            Err(SpliceError::Unfit(Unfit::Granted)) => Begun::Later,
            Err(error) => {
                tracing::debug!(%error, flow = %client.flow(), "no direct return");
                self.worker.meter.add(Event::DirectReturnUnfit(reason(&error)));
                Begun::Relayed
            }
        }
    }

    /// Sends the acknowledgement that the server lacks; `is_forced`: also if none is known to be
    /// lacking.
    pub(crate) fn settle(&self, upstream: &Upstream, is_forced: bool) {
        if let (Some(client), Some(end)) = (&*self.client, &upstream.end)
            && (is_forced || client.owes_ack())
        {
            self.splices.settle(client, end, is_forced);
        }
    }

    /// Lets the response to the client's next request acknowledge that request: it may well go past the
    /// sockets, too.
    pub(crate) fn expect_another(&self) {
        self.client.iter().for_each(ClientSlot::hold);
    }

    /// Returns true if the header of a sealed response has come, and its records are direct.
    pub(crate) fn has_header(&self) -> bool {
        self.client.as_ref().is_some_and(ClientSlot::has_header)
    }

    /// Returns true if the client has acknowledged the last byte.
    pub(crate) fn is_complete(&self) -> bool {
        self.client.as_ref().is_some_and(ClientSlot::is_complete)
    }

    /// Returns the client's newest acknowledgement, as a number that grows.
    pub(crate) fn acknowledged(&self) -> u32 {
        self.client.as_ref().map_or(0, ClientSlot::acknowledged)
    }

    /// Returns the time since the client has acknowledged the last byte.
    pub(crate) fn end_age(&self) -> Duration {
        self.client.as_ref().map(ClientSlot::end_age).unwrap_or_default()
    }

    /// Ends a splice that is complete.
    pub(crate) fn end(&self, upstream: &Upstream) -> Option<End> {
        let (client, end) = (self.client.as_ref()?, upstream.end.as_ref()?);
        self.splices.end(client, end)
    }

    /// Gives up a splice; both connections are closed afterwards.
    pub(crate) fn abort(&self, upstream: &Upstream) {
        if let (Some(client), Some(end)) = (&*self.client, &upstream.end) {
            self.splices.abort(client, end);
        }
    }

    /// Returns the bytes of the newest splice that came here and went to the client as packets.
    pub(crate) fn forwarded_bytes(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.forwarded_bytes().into())
    }
}
