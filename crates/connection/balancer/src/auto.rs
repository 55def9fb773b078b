//! Policy of `offload = "auto"`: decides if a handover is expected to cost less than proxying.
//! Sans-IO: the caller reports events and asks for decisions; there is no clock and no socket.
//!
//! Proxying a request costs the worker `request + byte × size`. Handing the connection over costs
//! one migration, and then almost nothing for each request that the server answers before the
//! connection is back. A connection that comes back without a request, because its client is idle
//! for longer than a server keeps it ([`crate::idle_time`]), also costs one reclaim. All of these
//! values are learnt: sizes by object (a small direct-mapped table of the paths seen last), by
//! class (route, method, first path segment, file extension) and by route, the most specific one
//! that is known; costs from measurements of this worker; the number of requests left on a
//! connection from the lengths of earlier connections.
//!
//! A full link costs no processor time: [`crate::pace`] detects the other causes of waiting.
//!
//! Only the chosen way is measured, so the other way is tried from time to time. The expected cost
//! of these trials is kept below [`EXPLORE_SHARE`] of the total cost.

use crate::idle_time::IdleTimes;
use crate::mean::Mean;
use crate::pace::{Advice, AnsweredBy, Paces};
use std::num::NonZeroU32;
use std::time::Duration;

/// Share of the total cost that trials of the worse way may use.
pub(crate) const EXPLORE_SHARE: f64 = 0.02;
/// One in this many affordable trials is made, at random, so that trials do not follow a rhythm of
/// the traffic.
const EXPLORE_ONE_IN: u64 = 4;
/// Slots of the object table; a power of two.
const OBJECTS: usize = 8192;
/// Slots for classes; a power of two.
const CLASSES: usize = 1024;
/// Observations that a mean covers. The number is large because a rare large object decides the
/// mean.
const WINDOW: f64 = 1024.0;
/// Observations that the short mean covers. The short mean detects that a class has changed.
const WINDOW_SHORT: f64 = 16.0;
/// Observations that a cost covers.
const COST_WINDOW: f64 = 64.0;
/// Responses up to this size measure the cost of a request. Responses beyond
/// [`BYTE_COST_BYTES_MIN`] measure the cost of a byte.
const REQUEST_COST_BYTES_MAX: u64 = 16 * 1024;
/// See [`REQUEST_COST_BYTES_MAX`].
const BYTE_COST_BYTES_MIN: u64 = 64 * 1024;
/// Buckets of connection lengths: one for each length below [`LENGTH_STEPS`], then
/// [`LENGTH_STEPS`] for each doubling.
const LENGTHS: usize = 176;
/// See [`LENGTHS`]; a power of two.
const LENGTH_STEPS: u64 = 8;
/// Connections that the histogram of lengths covers.
const LENGTHS_WINDOW: f32 = 512.0;
/// Upper bound of a measured cost. A larger measurement is an accident (a suspended machine).
const COST_US_MAX: f64 = 10_000_000.0;

/// Properties of a request that are known before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    /// Index of the route.
    pub route: usize,
    /// Hash of the class. Requests of one class are expected to have responses of one
    /// distribution.
    class: u64,
    /// Hash of the object. Requests of one object are expected to have responses of one size.
    object: u64,
}

impl RequestKey {
    /// Returns the key of a request. `partial`: it asks for a part of the object (Range).
    pub(crate) fn new(route: usize, method: &str, path: &str, partial: bool) -> RequestKey {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        // A file in the top directory has no first segment.
        let first = if first.len() == name.len() { "" } else { first };
        let base = hash(hash(SEED, &[u8::from(partial)]), method.as_bytes());
        let base = hash(base, &route.to_le_bytes());
        let class = hash(hash(hash(base, first.as_bytes()), b"/"), extension.as_bytes());
        RequestKey { route, class, object: hash(base, path.as_bytes()) }
    }
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. Collisions that a client provokes spoil the estimates of its own requests no more than
/// requests for objects of random sizes do.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The input of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionInput {
    /// The request that is to be answered.
    pub key: RequestKey,
    /// The connection has TLS.
    pub tls: bool,
    /// Requests that the connection has had before this one.
    pub requests_before: u64,
    /// Requests after which the connection comes home; `None` for no limit.
    pub requests_per_migration: Option<NonZeroU32>,
    /// Time since any origin.
    pub now: Duration,
}

/// Answered requests of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedRequests {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of their responses.
    pub bytes: u64,
    /// Time from the first request to the one after the last; `None` where none came, or the
    /// client was idle.
    pub took: Option<Duration>,
    /// Part of that time in which the client waited for responses; known for proxied requests.
    pub waited: Duration,
    /// Time since any origin.
    pub now: Duration,
}

/// Reason why a connection left its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaveReason {
    /// The connection has used up its requests, or it has ended.
    Done,
    /// Its next request belongs to another server.
    OtherServer,
    /// Its client was idle for too long: the connection was reclaimed.
    Idle,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decision {
    /// Hand the connection over.
    pub offload: bool,
    /// Requests, this one included, that the server is expected to answer.
    pub requests_expected: f64,
    /// The decision is a trial: it contradicts the expectation.
    pub explored: bool,
}

/// The sizes of one class or route.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    bytes: Mean,
    /// Mean of log2(bytes). Outliers do not move it, so it shows a change of the distribution.
    log: Mean,
    log_square: Mean,
    recent_bytes: Mean,
    recent_log: Mean,
    /// Number of changes of the distribution. A change makes older sizes of single objects void.
    changes: u32,
}

impl Sizes {
    fn learn(&mut self, bytes: f64) {
        let log = bytes.max(1.0).log2();
        self.recent_bytes.learn(bytes, WINDOW_SHORT);
        self.recent_log.learn(log, WINDOW_SHORT);
        if self.has_changed() {
            self.changes = self.changes.wrapping_add(1);
            self.bytes = self.recent_bytes;
            self.log = self.recent_log;
            let square = self.recent_log.value * self.recent_log.value;
            self.log_square = Mean { value: square, count: WINDOW_SHORT };
        }
        self.bytes.learn(bytes, WINDOW);
        self.log.learn(log, WINDOW);
        self.log_square.learn(log * log, WINDOW);
    }

    /// Returns true if the short mean differs by more than chance explains. A mean over
    /// [`WINDOW_SHORT`] with exponential forgetting has 0.18 of the deviation of one observation.
    /// The limit is five of these, plus half a doubling so that equal sizes do not make it
    /// infinitely sharp.
    fn has_changed(&self) -> bool {
        if self.log.count < 2.0 * WINDOW_SHORT {
            return false;
        }
        let variance = (self.log_square.value - self.log.value * self.log.value).max(0.0);
        (self.recent_log.value - self.log.value).abs() > 5.0 * 0.18 * variance.sqrt() + 0.5
    }
}

/// Histogram of the number of requests per connection.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    count: [f32; LENGTHS],
    total: f32,
}

impl Default for Lengths {
    fn default() -> Self {
        Lengths { count: [0.0; LENGTHS], total: 0.0 }
    }
}

impl Lengths {
    fn bucket(requests: u64) -> usize {
        let steps = LENGTH_STEPS.ilog2();
        let octave = requests.max(1).ilog2().saturating_sub(steps);
        let step = (requests >> octave) as usize;
        (octave as usize * LENGTH_STEPS as usize + step).min(LENGTHS - 1)
    }

    /// Returns the middle of a bucket.
    fn requests(bucket: usize) -> f64 {
        let steps = LENGTH_STEPS as usize;
        let octave = (bucket / steps).saturating_sub(1);
        let start = (bucket - octave * steps) as f64;
        let width = (1u64 << octave) as f64;
        start * width + (width - 1.0) / 2.0
    }

    fn learn(&mut self, requests: u64) {
        if self.total >= LENGTHS_WINDOW {
            self.count.iter_mut().for_each(|count| *count *= 0.5);
            self.total *= 0.5;
        }
        if let Some(count) = self.count.get_mut(Lengths::bucket(requests)) {
            *count += 1.0;
            self.total += 1.0;
        }
    }

    /// Returns the expected number of requests still to come, the present one included, on a
    /// connection that has had `before`, at most `cap`. One fictitious connection that has as many
    /// still to come as it has had stands for those that have not ended yet.
    fn remaining(&self, before: u64, cap: f64) -> f64 {
        let first = Lengths::bucket(before.saturating_add(1));
        let before = before as f64;
        let mut weight = 1.0;
        let mut sum = before.clamp(1.0, cap.max(1.0));
        for (bucket, count) in self.count.iter().enumerate().skip(first) {
            if *count > 0.0 {
                let left = (Lengths::requests(bucket) - before).max(1.0);
                weight += f64::from(*count);
                sum += f64::from(*count) * left.min(cap);
            }
        }
        (sum / weight).max(1.0)
    }
}

/// Estimates of one route.
#[derive(Clone, Copy, Debug)]
struct Route {
    sizes: Sizes,
    lengths: Lengths,
    /// Share of the requests answered by a server after which the connection left it, because the
    /// next request belonged to another server or the client was idle for too long.
    departures: Mean,
    /// Share of these requests after which the connection was reclaimed.
    homecomings: Mean,
    /// Share of the attempted migrations that succeeded.
    success: Mean,
    paces: Paces,
    idle_times: IdleTimes,
}

impl Default for Route {
    fn default() -> Self {
        Route {
            sizes: Sizes::default(),
            lengths: Lengths::default(),
            departures: Mean::prior(0.0),
            homecomings: Mean::prior(0.0),
            success: Mean::prior(1.0),
            paces: Paces::default(),
            idle_times: IdleTimes::default(),
        }
    }
}

/// Costs to this worker, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    request_us: Mean,
    byte_us: Mean,
    migration_us: Mean,
    reclaim_us: Mean,
    direct_us: Mean,
}

impl Costs {
    /// Returns orders of magnitude of a current machine, used until there is a measurement.
    const fn prior(tls: bool) -> Costs {
        Costs {
            request_us: Mean::prior(if tls { 40.0 } else { 30.0 }),
            byte_us: Mean::prior(if tls { 0.0012 } else { 0.0008 }),
            migration_us: Mean::prior(if tls { 450.0 } else { 400.0 }),
            reclaim_us: Mean::prior(if tls { 120.0 } else { 100.0 }),
            direct_us: Mean::prior(2.0),
        }
    }

    fn proxied_us(&self, bytes: f64) -> f64 {
        self.request_us.value + self.byte_us.value * bytes
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ClassSlot {
    class: u64,
    sizes: Sizes,
}

#[derive(Clone, Copy, Debug, Default)]
struct ObjectSlot {
    object: u64,
    bytes: u64,
    /// [`Sizes::changes`] of its class when the size was stored.
    changes: u32,
}

/// Estimates of one worker.
#[derive(Debug)]
pub(crate) struct Auto {
    routes: Vec<Route>,
    classes: Box<[ClassSlot]>,
    objects: Box<[ObjectSlot]>,
    /// Costs of plain connections, then of TLS connections.
    costs: [Costs; 2],
    spent_us: f64,
    explored_us: f64,
    random: u64,
}

impl Auto {
    /// Creates a policy without observations. `seed` decides when trials are made.
    pub(crate) fn new(routes: usize, seed: u64) -> Auto {
        Auto {
            routes: vec![Route::default(); routes],
            classes: vec![ClassSlot::default(); CLASSES].into(),
            objects: vec![ObjectSlot::default(); OBJECTS].into(),
            costs: [Costs::prior(false), Costs::prior(true)],
            spent_us: 0.0,
            explored_us: 0.0,
            random: seed | 1,
        }
    }

    /// Forgets the routes, whose numbers changed their meaning, and keeps the costs of the
    /// machine.
    pub(crate) fn reset_routes(&mut self, routes: usize) {
        self.routes = vec![Route::default(); routes];
        self.classes.fill(ClassSlot::default());
        self.objects.fill(ObjectSlot::default());
    }

    /// Decides about one request.
    pub(crate) fn decide(&mut self, input: &DecisionInput) -> Decision {
        let Some(route) = self.routes.get(input.key.route) else {
            return Decision { offload: false, requests_expected: 1.0, explored: false };
        };
        let costs = self.costs(input.tls);
        let cap = input.requests_per_migration.map_or(f64::INFINITY, |n| f64::from(n.get()));
        let left = route.lengths.remaining(input.requests_before, cap);
        // The stay ends with the connection or with a request for another server, whichever is
        // first.
        let kept = (1.0 / (1.0 / left + route.departures.value)).clamp(1.0, cap);
        let later = self.class_bytes(input.key);
        let first = self.object_bytes(input.key).or(later);
        // For an unknown size only the cost of the request counts as saved: the first request is
        // proxied and reveals the size.
        let proxied = costs.proxied_us(first.unwrap_or(0.0))
            + (kept - 1.0) * costs.proxied_us(later.unwrap_or(0.0));
        let reclaimed = (kept * route.homecomings.value).min(1.0) * costs.reclaim_us.value;
        let handed = costs.migration_us.value + kept * costs.direct_us.value + reclaimed;
        // A migration that fails costs itself and the proxying.
        let failed = 1.0 - route.success.value;
        let saving = proxied - (handed + failed * proxied);
        let best = saving > 0.0;
        let bytes = first.or(later).unwrap_or(0.0) as u64;
        self.spent_us += proxied.min(handed) / kept;
        match self.advice(input, bytes) {
            Advice::None => {}
            advice => {
                let explored = advice == Advice::Try;
                return Decision { offload: true, requests_expected: kept, explored };
            }
        }
        // A trial costs the difference between the two ways.
        let explored = self.explore(saving.abs(), proxied.min(handed));
        Decision { offload: best != explored, requests_expected: kept, explored }
    }

    fn advice(&mut self, input: &DecisionInput, bytes: u64) -> Advice {
        let busy_us = self.costs(input.tls).proxied_us(bytes as f64);
        match self.routes.get_mut(input.key.route) {
            // Migrations that fail do not help, however slow proxying is.
            Some(route) if route.success.value > 0.5 => {
                route.paces.advise(bytes, busy_us, input.now)
            }
            _ => Advice::None,
        }
    }

    /// Learns the time that a client of `route` needed for a number of requests, from the first of
    /// them to the one after the last.
    pub(crate) fn learn_pace(&mut self, route: usize, way: AnsweredBy, served: ServedRequests) {
        if let Some(route) = self.routes.get_mut(route) {
            if let Some(took) = served.took {
                route.paces.learn(way, (served.requests, served.bytes), took, served.waited);
            }
            route.paces.carry(served.bytes, served.now);
        }
    }

    /// Learns that proxying a response of `bytes` bytes kept the worker busy for `busy`.
    pub(crate) fn learn_proxied(&mut self, key: RequestKey, tls: bool, bytes: u64, busy: Duration) {
        let busy_us = micros(busy);
        let costs = self.costs_mut(tls);
        if bytes <= REQUEST_COST_BYTES_MAX {
            let own = (busy_us - costs.byte_us.value * bytes as f64).max(busy_us * 0.5);
            costs.request_us.learn(own, COST_WINDOW);
        } else if bytes >= BYTE_COST_BYTES_MIN {
            let own = (busy_us - costs.request_us.value).max(busy_us * 0.5);
            costs.byte_us.learn(own / bytes as f64, COST_WINDOW);
        }
        self.learn_size(key, bytes);
    }

    /// Learns the size of a response that this worker proxied or a server reported.
    pub(crate) fn learn_size(&mut self, key: RequestKey, bytes: u64) {
        self.learn_class(key, bytes as f64);
        let changes = self.class(key).map_or(0, |class| class.changes);
        if let Some(slot) = self.objects.get_mut(key.object as usize % OBJECTS) {
            *slot = ObjectSlot { object: key.object, bytes, changes };
        }
    }

    /// Learns the cost of a migration (both ends, there and back). `good`: it succeeded.
    pub(crate) fn learn_migration(&mut self, route: usize, tls: bool, cost: Duration, good: bool) {
        self.costs_mut(tls).migration_us.learn(micros(cost), COST_WINDOW);
        if let Some(route) = self.routes.get_mut(route) {
            route.success.learn(f64::from(u8::from(good)), COST_WINDOW);
        }
    }

    /// Learns the cost of a reclaim.
    pub(crate) fn learn_reclaim(&mut self, tls: bool, cost: Duration) {
        self.costs_mut(tls).reclaim_us.learn(micros(cost), COST_WINDOW);
    }

    /// Learns how long a client of `route` was idle between two requests.
    pub(crate) fn learn_idle_time(&mut self, route: usize, silence: Duration) {
        if let Some(route) = self.routes.get_mut(route) {
            route.idle_times.learn(silence);
        }
    }

    /// See [`IdleTimes::learn_below`].
    pub(crate) fn learn_idle_times_below(&mut self, route: usize, count: u64, below: Duration) {
        if let Some(route) = self.routes.get_mut(route) {
            route.idle_times.learn_below(count, below);
        }
    }

    /// Returns how long a server keeps a connection of `route` without a request: see
    /// [`IdleTimes::idle_return`].
    pub(crate) fn idle_return(&self, route: usize, occupancy: f64, most: Duration) -> Duration {
        self.routes.get(route).map_or(most, |route| route.idle_times.idle_return(occupancy, most))
    }

    /// Learns that a connection handed over for the request `key` is back, or has ended there,
    /// after the server answered `requests` requests with `bytes` bytes altogether.
    pub(crate) fn learn_returned(
        &mut self,
        key: RequestKey,
        requests: u64,
        bytes: u64,
        left: LeaveReason,
    ) {
        if requests == 0 {
            return;
        }
        if requests == 1 {
            self.learn_size(key, bytes);
        } else {
            // The mean is learnt once for each request, at most as often as the short mean covers.
            let mean = bytes as f64 / requests as f64;
            for _ in 0..requests.min(WINDOW_SHORT as u64) {
                self.learn_class(key, mean);
            }
        }
        if let Some(route) = self.routes.get_mut(key.route) {
            // One departure among `requests` requests counts as that many observations.
            let share = |is_so: bool| f64::from(u8::from(is_so)) / requests as f64;
            let (departed, home) =
                (share(left != LeaveReason::Done), share(left == LeaveReason::Idle));
            for _ in 0..requests.min(COST_WINDOW as u64) {
                route.departures.learn(departed, COST_WINDOW * 4.0);
                route.homecomings.learn(home, COST_WINDOW * 4.0);
            }
        }
    }

    /// Learns that a connection ended after `requests` requests, the last ones on `route`.
    pub(crate) fn learn_connection(&mut self, route: usize, requests: u64) {
        if let Some(route) = self.routes.get_mut(route) {
            route.lengths.learn(requests);
        }
    }

    fn learn_class(&mut self, key: RequestKey, bytes: f64) {
        if let Some(slot) = self.classes.get_mut(key.class as usize % CLASSES) {
            if slot.class != key.class {
                *slot = ClassSlot { class: key.class, sizes: Sizes::default() };
            }
            slot.sizes.learn(bytes);
        }
        if let Some(route) = self.routes.get_mut(key.route) {
            route.sizes.learn(bytes);
        }
    }

    fn class(&self, key: RequestKey) -> Option<&Sizes> {
        let slot = self.classes.get(key.class as usize % CLASSES)?;
        (slot.class == key.class && slot.sizes.bytes.known()).then_some(&slot.sizes)
    }

    fn object_bytes(&self, key: RequestKey) -> Option<f64> {
        let slot = self.objects.get(key.object as usize % OBJECTS)?;
        let current = self.class(key).is_none_or(|class| class.changes == slot.changes);
        (slot.object == key.object && current).then_some(slot.bytes as f64)
    }

    /// Returns the expected size of a class, or of its route.
    fn class_bytes(&self, key: RequestKey) -> Option<f64> {
        if let Some(class) = self.class(key) {
            return Some(class.bytes.value);
        }
        let sizes = &self.routes.get(key.route)?.sizes;
        sizes.bytes.known().then_some(sizes.bytes.value)
    }

    /// Returns true if the worse way is tried. It is expected to cost `excess_us` more.
    fn explore(&mut self, excess_us: f64, best_us: f64) -> bool {
        let affordable = self.explored_us + excess_us <= EXPLORE_SHARE * (self.spent_us + best_us);
        let explore = affordable && self.draw().is_multiple_of(EXPLORE_ONE_IN);
        if explore {
            self.explored_us += excess_us;
        }
        explore
    }

    /// xorshift64.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn costs(&self, tls: bool) -> &Costs {
        let [plain, sealed] = &self.costs;
        if tls { sealed } else { plain }
    }

    fn costs_mut(&mut self, tls: bool) -> &mut Costs {
        let [plain, sealed] = &mut self.costs;
        if tls { sealed } else { plain }
    }
}

fn micros(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).min(COST_US_MAX)
}

#[cfg(test)]
mod tests;
