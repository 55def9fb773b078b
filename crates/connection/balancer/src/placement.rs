//! Finds the route and the server of a request: of one whose connection is here, or of one with
//! which a server returned the connection.

use std::sync::Arc;

use unlade_http::{BodyFraming, Method, RequestHead};
use unlade_metrics::{Event, UpstreamFailure};

use crate::auto::RequestKey;
use crate::config::OffloadMode;
use crate::offload::{Candidate, ConnOrigin, takes_a_proxy};
use crate::plan::Plan;
use crate::pool::Pool;
use crate::respond::Refusal;
use crate::route::Route;
use crate::server::InFlight;
use crate::worker::Worker;

const NO_ROUTE: Refusal = Refusal::new(404, "no route for this host and path");
const NO_SERVER: Refusal = Refusal::new(503, "no server can answer at the moment");
const NO_TUNNEL: Refusal = Refusal::new(501, "CONNECT is not served here");
const NO_TRACE: Refusal = Refusal::new(405, "TRACE is not served here");
const LARGE_BODY: Refusal = Refusal::new(413, "the request's body is too large");

/// A request with a route and a server.
pub(crate) struct PlacedRequest<'p> {
    /// The route.
    pub route: &'p Route,
    /// Index of the server in the pool.
    pub server: usize,
    /// The server, which counts the request while it lives.
    pub in_flight: InFlight,
    /// Key of the request in the policy's estimates.
    pub key: RequestKey,
    plan: &'p Plan,
}

impl PlacedRequest<'_> {
    /// Returns the pool of the route.
    pub(crate) fn pool(&self) -> Option<&Arc<Pool>> {
        self.plan.pools.get(self.route.pool)
    }
}

/// Finds the route and the server of a request.
///
/// # Errors
/// The response to a request that no server can get.
pub(crate) fn place<'p>(
    worker: &Worker,
    plan: &'p Plan,
    head: &RequestHead,
    input: &[u8],
) -> Result<PlacedRequest<'p>, Refusal> {
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
        worker.meter.add(Event::RequestUnrouted);
        return Err(NO_ROUTE);
    };
    let mut turn = worker.turn.get();
    let chosen = pool.choose(path, &mut turn, &[]);
    worker.turn.set(turn);
    let chosen = chosen.and_then(|index| Some((index, pool.servers.get(index)?)));
    let Some((server, state)) = chosen else {
        worker.meter.add(Event::UpstreamFailed(UpstreamFailure::NoServer));
        return Err(NO_SERVER);
    };
    let in_flight = InFlight::begin(state.clone());
    let key = key(route, head, input);
    Ok(PlacedRequest { route, server, in_flight, key, plan })
}

/// Routes the request at the front of `input`, for a connection that one server has returned and
/// that may go straight to another. `None`: there is no complete request with a route and a
/// server; the connection goes home and is answered there.
pub(crate) fn place_returned(
    worker: &Worker,
    input: &[u8],
    origin: ConnOrigin,
) -> Option<Candidate> {
    let plan = worker.plan();
    let head = RequestHead::parse(input, &plan.head_limits).ok()??;
    let host = head.host(input);
    let route = plan.routes.find(host, head.path(input))?;
    // The request is proxied, which the request loop does.
    if route.offload == OffloadMode::Off || takes_a_proxy(&head) {
        return None;
    }
    let pool = plan.pools.get(route.pool)?;
    let mut turn = worker.turn.get();
    let server = pool.choose(head.path(input), &mut turn, &[])?;
    worker.turn.set(turn);
    Some(Candidate {
        plan: plan.shared(),
        route: route.index,
        pool: pool.clone(),
        server,
        scope: plan.routes.scope_key(route, host),
        key: key(route, &head, input),
        origin,
    })
}

/// Returns the key of a request in the policy's estimates.
fn key(route: &Route, head: &RequestHead, input: &[u8]) -> RequestKey {
    // Only `auto` uses the key.
    if route.offload != OffloadMode::Auto {
        return RequestKey::new(route.index, "", "", false);
    }
    let partial = head.header(input, "range").is_some();
    RequestKey::new(route.index, head.method_text(input), head.path(input), partial)
}
