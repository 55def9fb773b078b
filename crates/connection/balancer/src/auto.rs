//! `offload = "auto"`: whether handing a connection over is expected to pay. Sans-IO: what
//! happened is told, what to do is asked; no clock, no socket.
//!
//! Proxying a request costs the worker `request + byte × size`; handing the connection over costs
//! one migration, and then next to nothing for each request that the server answers before the
//! connection is back; and where it comes back without a request, because its client thinks for
//! longer than a server keeps it ([`crate::park`]), taking it home besides. All of these are learnt: sizes by object (a small direct-mapped memory of
//! the paths seen last), by class (route, method, first path segment, file extension) and by
//! route, whichever is known; costs from what this worker measured; the number of requests that a
//! connection still has from those that connections had.
//!
//! A full link costs no processor time: what clients wait for besides is [`crate::pace`]'s.
//!
//! Whatever is not done is not measured, so now and then the other way is tried. What such trials
//! are expected to cost is kept below [`EXPLORE_SHARE`] of everything spent.

use crate::mean::Mean;
use crate::pace::{Advice, Paces, Way};
use crate::park::Silences;
use std::num::NonZeroU32;
use std::time::Duration;

/// Share of the total cost that trials of the worse way may use.
pub(crate) const EXPLORE_SHARE: f64 = 0.02;
/// One in so many affordable trials is made, so that they do not fall in step with the traffic.
const EXPLORE_ONE_IN: u64 = 4;
/// Slots of the object memory; a power of two.
const OBJECTS: usize = 8192;
/// Slots for classes; a power of two.
const CLASSES: usize = 1024;
/// Observations that a mean remembers: long, because a rare large object decides the mean.
const WINDOW: f64 = 1024.0;
/// Observations that the short mean remembers, which notices that a class has changed.
const WINDOW_SHORT: f64 = 16.0;
/// Observations that a cost remembers.
const COST_WINDOW: f64 = 64.0;
/// Responses up to this size tell the cost of a request, beyond [`BYTE_COST_BYTES_MIN`] that of a
/// byte.
const REQUEST_COST_BYTES_MAX: u64 = 16 * 1024;
/// See [`REQUEST_COST_BYTES_MAX`].
const BYTE_COST_BYTES_MIN: u64 = 64 * 1024;
/// Buckets of connection lengths: one for each length below [`LENGTH_STEPS`], then so many for
/// each doubling.
const LENGTHS: usize = 176;
/// See [`LENGTHS`]; a power of two.
const LENGTH_STEPS: u64 = 8;
/// Connections that the histogram of lengths remembers.
const LENGTHS_WINDOW: f32 = 512.0;
/// A single cost beyond this is an accident (a suspended machine), not a cost.
const COST_US_MAX: f64 = 10_000_000.0;

/// What a request looks like before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    /// Index of the route.
    pub route: usize,
    /// Requests of one class are expected to have responses of one distribution.
    class: u64,
    /// Requests of one object are expected to have responses of one size.
    object: u64,
}

impl RequestKey {
    /// The key of a request: `partial` where it asks for a part of the object (Range).
    pub(crate) fn new(route: usize, method: &str, path: &str, partial: bool) -> RequestKey {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        // A file in the top directory is no class of its own.
        let first = if first.len() == name.len() { "" } else { first };
        let base = hash(hash(SEED, &[u8::from(partial)]), method.as_bytes());
        let base = hash(base, &route.to_le_bytes());
        let class = hash(hash(hash(base, first.as_bytes()), b"/"), extension.as_bytes());
        RequestKey { route, class, object: hash(base, path.as_bytes()) }
    }
}

const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a. A client that makes keys collide spoils the estimates of its own requests only as
/// much as by asking for objects of random sizes.
fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// The request that is to be answered.
    pub key: RequestKey,
    /// The connection has TLS.
    pub tls: bool,
    /// Requests that the connection has had before this one.
    pub requests_before: u64,
    /// Requests after which the connection comes home; `None` for no limit.
    pub requests_per_migration: Option<NonZeroU32>,
    /// Since any origin.
    pub now: Duration,
}

/// Requests of one connection that were answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// How many.
    pub requests: u64,
    /// Bytes of their responses.
    pub bytes: u64,
    /// From the first to the one after the last; `None` where none came, or the client was idle.
    pub took: Option<Duration>,
    /// Of that, how long the client waited for what it had asked for; known where it was proxied.
    pub waited: Duration,
    /// Since any origin.
    pub now: Duration,
}

/// Why a connection is no longer at the server that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It was to come back after so many requests; or the connection has ended.
    Done,
    /// Its next request belongs to another server.
    OtherServer,
    /// Its client was silent for too long: it was taken home.
    Idle,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Hand the connection over.
    pub offload: bool,
    /// Requests, this one included, that the server is expected to answer.
    pub requests_expected: f64,
    /// Made to learn, against the expectation.
    pub explored: bool,
}

/// The sizes of one class or route.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    bytes: Mean,
    /// Of log2(bytes): outliers do not move it, so it shows that the distribution changed.
    log: Mean,
    log_square: Mean,
    recent_bytes: Mean,
    recent_log: Mean,
    /// How often the distribution changed: what was remembered of single objects before is void.
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

    /// The short mean is out of what chance explains. A mean over [`WINDOW_SHORT`] with
    /// exponential forgetting has 0.18 of the deviation of one observation; five of these, and
    /// half a doubling so that equal sizes do not make it infinitely sharp.
    fn has_changed(&self) -> bool {
        if self.log.count < 2.0 * WINDOW_SHORT {
            return false;
        }
        let variance = (self.log_square.value - self.log.value * self.log.value).max(0.0);
        (self.recent_log.value - self.log.value).abs() > 5.0 * 0.18 * variance.sqrt() + 0.5
    }
}

/// How many requests connections have.
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

    /// The middle of a bucket.
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

    /// Requests still to come, the present one included, on a connection that has had `before`,
    /// at most `cap`. One fictitious connection that has as many still to come as it has had
    /// stands for those that have not ended yet.
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

/// What is known of a route.
#[derive(Clone, Copy, Debug)]
struct Route {
    sizes: Sizes,
    lengths: Lengths,
    /// Share of the requests, answered by a server that had the connection, after which it left
    /// because the next one belonged to another server, or none came for too long.
    departures: Mean,
    /// Share of these requests after which it was taken home.
    homecomings: Mean,
    /// Migrations that succeeded, of those tried.
    success: Mean,
    paces: Paces,
    silences: Silences,
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
            silences: Silences::default(),
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
    /// Orders of magnitude of a current machine, until there is a measurement.
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
    /// [`Sizes::changes`] of its class at the time.
    changes: u32,
}

/// What one worker has learnt.
#[derive(Debug)]
pub(crate) struct Auto {
    routes: Vec<Route>,
    classes: Box<[ClassSlot]>,
    objects: Box<[ObjectSlot]>,
    /// Plain, TLS.
    costs: [Costs; 2],
    spent_us: f64,
    explored_us: f64,
    random: u64,
}

impl Auto {
    /// Knows nothing yet. `seed` decides when trials are made.
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

    /// Forgets the routes (their numbers changed meaning), not what the machine costs.
    pub(crate) fn reset_routes(&mut self, routes: usize) {
        self.routes = vec![Route::default(); routes];
        self.classes.fill(ClassSlot::default());
        self.objects.fill(ObjectSlot::default());
    }

    /// Decides.
    pub(crate) fn decide(&mut self, question: &Question) -> Answer {
        let Some(route) = self.routes.get(question.key.route) else {
            return Answer { offload: false, requests_expected: 1.0, explored: false };
        };
        let costs = self.costs(question.tls);
        let cap = question.requests_per_migration.map_or(f64::INFINITY, |n| f64::from(n.get()));
        let left = route.lengths.remaining(question.requests_before, cap);
        // Whichever comes first, the end of the connection or a request for another server.
        let kept = (1.0 / (1.0 / left + route.departures.value)).clamp(1.0, cap);
        let later = self.class_bytes(question.key);
        let first = self.object_bytes(question.key).or(later);
        // Of a size never seen nothing is saved but the request: the first one is proxied and
        // tells.
        let proxied = costs.proxied_us(first.unwrap_or(0.0))
            + (kept - 1.0) * costs.proxied_us(later.unwrap_or(0.0));
        let reclaimed = (kept * route.homecomings.value).min(1.0) * costs.reclaim_us.value;
        let handed = costs.migration_us.value + kept * costs.direct_us.value + reclaimed;
        // A migration that fails costs itself, and the proxying besides.
        let failed = 1.0 - route.success.value;
        let saving = proxied - (handed + failed * proxied);
        let best = saving > 0.0;
        let bytes = first.or(later).unwrap_or(0.0) as u64;
        self.spent_us += proxied.min(handed) / kept;
        match self.advice(question, bytes) {
            Advice::None => {}
            advice => {
                let explored = advice == Advice::Try;
                return Answer { offload: true, requests_expected: kept, explored };
            }
        }
        // An observation of the other way costs what it is worse by.
        let explored = self.explore(saving.abs(), proxied.min(handed));
        Answer { offload: best != explored, requests_expected: kept, explored }
    }

    fn advice(&mut self, question: &Question, bytes: u64) -> Advice {
        let busy_us = self.costs(question.tls).proxied_us(bytes as f64);
        match self.routes.get_mut(question.key.route) {
            // Migrations that fail lead nowhere, however slow proxying is.
            Some(route) if route.success.value > 0.5 => {
                route.paces.advise(bytes, busy_us, question.now)
            }
            _ => Advice::None,
        }
    }

    /// It took a client of `route` so long from a request, or `requests` of them with responses of
    /// `bytes` bytes altogether, to the one after.
    pub(crate) fn learn_pace(&mut self, route: usize, way: Way, served: Served) {
        if let Some(route) = self.routes.get_mut(route) {
            if let Some(took) = served.took {
                route.paces.learn(way, (served.requests, served.bytes), took, served.waited);
            }
            route.paces.carry(served.bytes, served.now);
        }
    }

    /// The worker was busy for `busy` to proxy a response of `bytes` bytes.
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

    /// A response of `bytes` bytes was seen, here or by a server that reported it.
    pub(crate) fn learn_size(&mut self, key: RequestKey, bytes: u64) {
        self.learn_class(key, bytes as f64);
        let changes = self.class(key).map_or(0, |class| class.changes);
        if let Some(slot) = self.objects.get_mut(key.object as usize % OBJECTS) {
            *slot = ObjectSlot { object: key.object, bytes, changes };
        }
    }

    /// A migration cost this (both ends, there and back), whether it succeeded or not.
    pub(crate) fn learn_migration(&mut self, route: usize, tls: bool, cost: Duration, good: bool) {
        self.costs_mut(tls).migration_us.learn(micros(cost), COST_WINDOW);
        if let Some(route) = self.routes.get_mut(route) {
            route.success.learn(f64::from(u8::from(good)), COST_WINDOW);
        }
    }

    /// A connection was taken home.
    pub(crate) fn learn_reclaim(&mut self, tls: bool, cost: Duration) {
        self.costs_mut(tls).reclaim_us.learn(micros(cost), COST_WINDOW);
    }

    /// A client of `route` was silent for so long between two requests.
    pub(crate) fn learn_silence(&mut self, route: usize, silence: Duration) {
        if let Some(route) = self.routes.get_mut(route) {
            route.silences.learn(silence);
        }
    }

    /// See [`Silences::learn_below`].
    pub(crate) fn learn_silences_below(&mut self, route: usize, count: u64, below: Duration) {
        if let Some(route) = self.routes.get_mut(route) {
            route.silences.learn_below(count, below);
        }
    }

    /// How long a server is to keep a connection of `route` without a request: see
    /// [`Silences::idle_return`].
    pub(crate) fn idle_return(&self, route: usize, occupancy: f64, most: Duration) -> Duration {
        self.routes.get(route).map_or(most, |route| route.silences.idle_return(occupancy, most))
    }

    /// A connection handed over for the request `key` is back, or has ended there: the server
    /// answered `requests` requests with `bytes` bytes altogether.
    pub(crate) fn learn_returned(
        &mut self,
        key: RequestKey,
        requests: u64,
        bytes: u64,
        left: Left,
    ) {
        if requests == 0 {
            return;
        }
        if requests == 1 {
            self.learn_size(key, bytes);
        } else {
            // The mean counts as often as it was observed, up to what moves a mean at all.
            let mean = bytes as f64 / requests as f64;
            for _ in 0..requests.min(WINDOW_SHORT as u64) {
                self.learn_class(key, mean);
            }
        }
        if let Some(route) = self.routes.get_mut(key.route) {
            // One departure among `requests` opportunities, counted as so many observations.
            let share = |is_so: bool| f64::from(u8::from(is_so)) / requests as f64;
            let (departed, home) = (share(left != Left::Done), share(left == Left::Idle));
            for _ in 0..requests.min(COST_WINDOW as u64) {
                route.departures.learn(departed, COST_WINDOW * 4.0);
                route.homecomings.learn(home, COST_WINDOW * 4.0);
            }
        }
    }

    /// A connection ended after `requests` requests, its last ones belonging to `route`.
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

    /// The expected size of a class, or of its route.
    fn class_bytes(&self, key: RequestKey) -> Option<f64> {
        if let Some(class) = self.class(key) {
            return Some(class.bytes.value);
        }
        let sizes = &self.routes.get(key.route)?.sizes;
        sizes.bytes.known().then_some(sizes.bytes.value)
    }

    /// Whether to go the worse way, which is expected to cost `excess_us` more.
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
