//! The registry of metrics.

use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::{self, BUCKETS};
use crate::shard::{self, SHARDS, Shard};
use crate::{Event, Gauge, Stage};

/// The role whose metrics are rendered: a process does not print families that it never counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Families of all roles.
    #[default]
    Any,
    /// Those of a balancer, and those that both have.
    Balancer,
    /// Those of a server, and those that both have.
    Backend,
    /// Those of the agent at a server's host.
    Agent,
    /// Those of an agent with a sidecar: of the agent, of the sidecar, and those of a server.
    Sidecar,
    /// Those of the I/O worker of a tenant's functions.
    Worker,
    /// Those of the gateway of functions.
    Gateway,
}

impl Role {
    pub(crate) fn shows(self, family: &str) -> bool {
        let starts = |of: &[&str]| of.iter().any(|start| family.starts_with(start));
        match self {
            Role::Any => true,
            Role::Balancer => {
                const OTHERS: [&str; 5] = [
                    "unlade_backend_",
                    "unlade_sidecar_",
                    "unlade_agent_",
                    "unlade_hostio_",
                    "unlade_fn_",
                ];
                !starts(&OTHERS)
            }
            Role::Backend => {
                const OTHERS: [&str; 5] = [
                    "unlade_lb_",
                    "unlade_sidecar_",
                    "unlade_agent_",
                    "unlade_hostio_",
                    "unlade_fn_",
                ];
                !starts(&OTHERS)
            }
            Role::Sidecar => !starts(&["unlade_lb_", "unlade_hostio_", "unlade_fn_"]),
            Role::Agent => starts(&["unlade_agent_"]),
            Role::Worker => starts(&["unlade_hostio_"]),
            Role::Gateway => starts(&["unlade_fn_"]),
        }
    }
}

/// All metrics of a process. Any thread may update them, without a lock or an allocation; shared
/// as `Arc<Meter>`.
pub struct Meter {
    pub(crate) role: Role,
    shards: Box<[Shard]>,
    gauges: Box<[AtomicI64]>,
    /// The gauges that have been above zero: a gauge of a meter that ends is zero again.
    #[cfg(debug_assertions)]
    raised: Box<[AtomicBool]>,
}

/// Records the samples for a check of the tests: see `recording.rs`.
#[cfg(debug_assertions)]
impl Drop for Meter {
    fn drop(&mut self) {
        for (gauge, raised) in self.gauges.iter().zip(&self.raised) {
            gauge.store(raised.load(Ordering::Relaxed).into(), Ordering::Relaxed);
        }
        self.render();
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

impl core::fmt::Debug for Meter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Meter").field("role", &self.role).finish_non_exhaustive()
    }
}

impl Meter {
    /// A meter that renders every family.
    pub fn new() -> Meter {
        Meter::for_role(Role::Any)
    }

    /// A meter that renders the families of `role`.
    pub fn for_role(role: Role) -> Meter {
        Meter::with(role, SHARDS)
    }

    /// As [`Meter::for_role`], for use by one thread: other threads may count too, but more
    /// slowly, and the meter takes an eighth of the memory.
    pub fn of_thread(role: Role) -> Meter {
        Meter::with(role, 1)
    }

    fn with(role: Role, shards: usize) -> Meter {
        Meter {
            role,
            shards: (0..shards).map(|_| Shard::new()).collect(),
            gauges: Gauge::ALL.iter().map(|_| AtomicI64::new(0)).collect(),
            #[cfg(debug_assertions)]
            raised: Gauge::ALL.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Counts `event` once.
    pub fn add(&self, event: Event) {
        self.add_n(event, 1);
    }

    /// Counts `event` `n` times, or `n` bytes of it.
    pub fn add_n(&self, event: Event, n: u64) {
        let _before = self.shard().counters[event.index()].fetch_add(n, Ordering::Relaxed);
        #[cfg(debug_assertions)]
        if _before == 0 && n > 0 {
            self.note_counted(event);
        }
    }

    /// Records the first count at once: a process that is killed drops no meter.
    #[cfg(debug_assertions)]
    #[cold]
    fn note_counted(&self, event: Event) {
        let name = event.name();
        if self.role.shows(&name) {
            let label = event.label().map(|(key, value)| format!("{{{key}=\"{value}\"}}"));
            crate::recording::record(&format!("{name}{} 1", label.unwrap_or_default()));
        }
    }

    /// The number of times that `event` was counted.
    pub fn value(&self, event: Event) -> u64 {
        self.counter(event.index())
    }

    /// Adds `delta` to a gauge.
    pub fn gauge_add(&self, gauge: Gauge, delta: i64) {
        let before = self.gauges[gauge as usize].fetch_add(delta, Ordering::Relaxed);
        self.note_raised(gauge, before.wrapping_add(delta));
    }

    /// Sets a gauge.
    pub fn gauge_set(&self, gauge: Gauge, value: i64) {
        self.gauges[gauge as usize].store(value, Ordering::Relaxed);
        self.note_raised(gauge, value);
    }

    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "no record is kept"))]
    fn note_raised(&self, gauge: Gauge, value: i64) {
        #[cfg(debug_assertions)]
        if value > 0
            && !self.raised[gauge as usize].swap(true, Ordering::Relaxed)
            && self.role.shows(gauge.name())
        {
            crate::recording::record(&format!("{} 1", gauge.name()));
        }
    }

    /// The value of a gauge.
    pub fn gauge(&self, gauge: Gauge) -> i64 {
        self.gauges[gauge as usize].load(Ordering::Relaxed)
    }

    /// Records that `stage` took `duration`.
    pub fn record(&self, stage: Stage, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let shard = self.shard();
        let bucket = stage as usize * BUCKETS + histogram::bucket(ns);
        shard.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        shard.sums_ns[stage as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// The number of times that `stage` was recorded.
    pub fn count(&self, stage: Stage) -> u64 {
        self.buckets(stage).iter().sum()
    }

    /// The sum of the durations recorded for `stage`.
    pub fn sum(&self, stage: Stage) -> Duration {
        let of = |shard: &Shard| load(&shard.sums_ns[stage as usize]);
        Duration::from_nanos(self.shards.iter().map(of).fold(0, u64::wrapping_add))
    }

    /// The `q`-quantile (0 to 1) of the durations recorded for `stage`, with an error below 2 %;
    /// `None` if there are none.
    pub fn quantile(&self, stage: Stage, q: f64) -> Option<Duration> {
        let bucket = histogram::quantile(&self.buckets(stage), q)?;
        Some(Duration::from_nanos(histogram::middle_ns(bucket)))
    }

    pub(crate) fn counter(&self, index: usize) -> u64 {
        self.shards.iter().map(|shard| load(&shard.counters[index])).sum()
    }

    pub(crate) fn buckets(&self, stage: Stage) -> Vec<u64> {
        let first = stage as usize * BUCKETS;
        let of =
            |bucket| self.shards.iter().map(|shard| load(&shard.buckets[first + bucket])).sum();
        (0..BUCKETS).map(of).collect()
    }

    fn shard(&self) -> &Shard {
        &self.shards[shard::of_thread() % self.shards.len()]
    }
}

/// One unit of a gauge, counted while this value exists.
#[derive(Debug)]
pub struct GaugeGuard {
    meter: Arc<Meter>,
    gauge: Gauge,
}

impl GaugeGuard {
    /// Adds one to `gauge`; dropping the value subtracts it again.
    pub fn new(meter: Arc<Meter>, gauge: Gauge) -> GaugeGuard {
        meter.gauge_add(gauge, 1);
        GaugeGuard { meter, gauge }
    }

    /// Moves the unit from its current gauge to `gauge`.
    pub fn move_to(&mut self, gauge: Gauge) {
        if self.gauge != gauge {
            self.meter.gauge_add(self.gauge, -1);
            self.meter.gauge_add(gauge, 1);
            self.gauge = gauge;
        }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.meter.gauge_add(self.gauge, -1);
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
