//! How many instances a node carries: their number grows, each with its share of a load that
//! arrives whether or not it is served in time, until invocations take too long or memory is used up.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use unlade_traces::arrivals::{MINUTE_US, arrivals};
use unlade_traces::synthetic::Plan;

use super::catalogue::{Mode, Subject};
use super::figures::percentile;
use super::http::Caller;
use super::measure::Field;
use super::node::{HostTime, State, invoke};
use super::objects::Name;

/// Invocations that can be on their way at a time: more wait, and are late.
const CALLERS: usize = 96;
/// How often more instances of a function are asked for, before what there is has to do.
const BURSTS_MAX: usize = 60;
/// One in so many outputs is compared.
const COMPARED_EVERY: usize = 4;
/// A 99th percentile needs so many invocations; small populations are watched for longer.
const INVOCATIONS_MIN: f64 = 300.0;
/// An invocation may take so many times what an unloaded stock one takes.
pub const SLO_FACTOR: f64 = 5.0;

/// How the population grows, and what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub seed: u64,
    /// The first population; memory is compared at it.
    pub first: usize,
    /// The last one that is tried.
    pub last: usize,
    /// Each next one is so many times as large.
    pub factor: f64,
    /// How long each is watched at least, and at most.
    pub window: Duration,
    pub window_max: Duration,
    /// Invocations of each instance a second, on average.
    pub rate_per_s: f64,
    /// Memory that a node may use, the store's not counted.
    pub budget_bytes: u64,
    /// Instances of a function that start at a time.
    pub starting: usize,
}

/// Measurements of one population.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    pub population: usize,
    pub pss_bytes: u64,
    /// Of latencies, each divided by its function's objective.
    pub p99_of_slo: f64,
    pub invocations: usize,
    pub failed: usize,
    pub cpu_us_per_invocation: f64,
}

impl Step {
    /// The criterion that it fails.
    pub fn limit(&self, budget_bytes: u64) -> Option<&'static str> {
        if self.pss_bytes > budget_bytes {
            return Some("memory");
        }
        (self.failed > 0 || self.p99_of_slo > 1.0).then_some("slo")
    }

    pub fn metrics(&self, growth: &Growth) -> Map<String, Value> {
        let value = json!({
            "population": self.population,
            "node_pss_bytes": self.pss_bytes,
            "latency_p99_of_slo": self.p99_of_slo,
            "invocations": self.invocations,
            "failed": self.failed,
            "node_cpu_us_per_invocation": self.cpu_us_per_invocation,
            "invocations_per_s": self.population as f64 * growth.rate_per_s,
            "memory_budget_bytes": growth.budget_bytes,
            "slo_factor": SLO_FACTOR,
        });
        super::figures::present(value)
    }
}

/// The largest population that is carried: between the last that was and the first that was not,
/// where the straight line between their figures crosses the limit. And by what it is limited;
/// nothing where it never was.
pub fn density(steps: &[Step], budget_bytes: u64) -> (f64, Option<&'static str>) {
    let carried = steps.iter().take_while(|step| step.limit(budget_bytes).is_none()).last();
    let broken = steps.iter().find_map(|step| Some((step, step.limit(budget_bytes)?)));
    let Some((broken, limit)) = broken else {
        return (carried.map_or(0.0, |step| step.population as f64), None);
    };
    let Some(carried) = carried else { return (0.0, Some(limit)) };
    let part = match limit {
        "memory" => {
            crossing(carried.pss_bytes as f64, broken.pss_bytes as f64, budget_bytes as f64)
        }
        // What fails has no latency to draw a line to.
        _ if broken.failed > 0 => 0.0,
        _ => crossing(carried.p99_of_slo, broken.p99_of_slo, 1.0),
    };
    let between = broken.population as f64 - carried.population as f64;
    (carried.population as f64 + part * between, Some(limit))
}

/// Where between two values a limit lies, from 0 to 1.
fn crossing(below: f64, above: f64, limit: f64) -> f64 {
    if above > below { ((limit - below) / (above - below)).clamp(0.0, 1.0) } else { 0.0 }
}

/// Grows the population of a node's functions in one mode. `slo_us` is by subject. Only the first
/// step is made where `once`.
///
/// # Errors
/// No instance starts, or an output is wrong.
pub fn grow(
    field: &mut Field<'_>,
    subjects: &[&Subject],
    mode: Mode,
    slo_us: &BTreeMap<String, f64>,
    growth: &Growth,
    once: bool,
    mut told: impl FnMut(&Step),
) -> Result<Vec<Step>> {
    let mut callers: Vec<Caller> = (0..CALLERS).map(|_| field.node.caller()).collect();
    let mut steps = Vec::new();
    let mut population = growth.first;
    loop {
        let here = populate(field, &mut callers, subjects, mode, population, growth.starting)?;
        let mut step = load(field, &mut callers, subjects, mode, slo_us, growth, here)?;
        if step.limit(growth.budget_bytes) == Some("slo") {
            // A single bad moment of the machine is none of the population's.
            step = load(field, &mut callers, subjects, mode, slo_us, growth, here)?;
        }
        told(&step);
        let is_over = step.limit(growth.budget_bytes).is_some() || population >= growth.last;
        steps.push(step);
        if once || is_over {
            return Ok(steps);
        }
        let next = (population as f64 * growth.factor).round() as usize;
        population = next.clamp(population + 1, growth.last);
    }
}

/// Instances of each subject, of a population.
fn share(population: usize, subjects: usize, number: usize) -> usize {
    population / subjects + usize::from(number < population % subjects)
}

/// Starts instances until there are so many; gives how many there are.
fn populate(
    field: &Field<'_>,
    callers: &mut [Caller],
    subjects: &[&Subject],
    mode: Mode,
    population: usize,
    starting: usize,
) -> Result<usize> {
    for (number, subject) in subjects.iter().enumerate() {
        let due = share(population, subjects.len(), number);
        let function = subject.function(mode);
        for burst in 0.. {
            let have = count(&state(field, callers)?, &function);
            if have >= due || burst == BURSTS_MAX {
                break;
            }
            // All that there are, and as many more, must be busy at once.
            let asked = (have + (due - have).min(starting)).min(callers.len());
            let events = (0..asked).map(|at| subject.event_for(&format!("grow/{function}/{at}")));
            let events: Vec<_> = events.map(|(event, _)| event).collect();
            let one = |(caller, event): (&mut Caller, &Vec<u8>)| {
                invoke(caller, &function, event).map(|_| ())
            };
            std::thread::scope(|scope| {
                let running: Vec<_> =
                    callers.iter_mut().zip(&events).map(|pair| scope.spawn(|| one(pair))).collect();
                running.into_iter().try_for_each(|running| match running.join() {
                    Ok(result) => result,
                    Err(_) => bail!("a caller has failed"),
                })
            })?;
        }
    }
    let state = state(field, callers)?;
    Ok(subjects.iter().map(|subject| count(&state, &subject.function(mode))).sum())
}

fn count(state: &State, function: &str) -> usize {
    state.instances_of(function).count()
}

fn state(field: &Field<'_>, callers: &mut [Caller]) -> Result<State> {
    field.node.state(callers.first_mut().context("no caller")?)
}

/// When each invocation begins, and of which subject: the load of a synthetic trace in which every
/// instance is a function, as unequal as those of a trace are, at exactly the rate that is asked for.
fn schedule(growth: &Growth, population: usize, subjects: usize) -> Result<Vec<(Duration, usize)>> {
    let plan = Plan {
        seed: growth.seed,
        functions: u32::try_from(population)?,
        minutes: 1,
        invocations_per_minute: 60.0 * growth.rate_per_s * population as f64,
        zipf_exponent: 0.8,
        diurnal: 0.0,
        ..Plan::default()
    };
    let made = arrivals(&plan.make()?.invocations(), 0..1, growth.seed)?;
    // Timers come at most once a minute, and counts vary: time is stretched to the rate.
    let stretch = made.len() as f64 / plan.invocations_per_minute;
    let due = |at_us: u64| Duration::from_micros((at_us as f64 * stretch) as u64);
    let all = made.iter().map(|arrival| (due(arrival.at_us), arrival.row as usize % subjects));
    let enough_s = INVOCATIONS_MIN / (growth.rate_per_s * population as f64);
    let window = growth.window.max(Duration::try_from_secs_f64(enough_s).unwrap_or_default());
    let window = window.min(growth.window_max).min(Duration::from_micros(MINUTE_US));
    Ok(all.take_while(|(at, _)| *at < window).collect())
}

/// An invocation of a load: its number, what it took from when it was due, and where it wrote.
type Served = (usize, Result<f64, String>, Vec<Name>);

fn load(
    field: &mut Field<'_>,
    callers: &mut [Caller],
    subjects: &[&Subject],
    mode: Mode,
    slo_us: &BTreeMap<String, f64>,
    growth: &Growth,
    population: usize,
) -> Result<Step> {
    let schedule = schedule(growth, population, subjects.len())?;
    let before = state(field, callers)?;
    let host = HostTime::now(&before, mode);
    let served = serve(callers, subjects, mode, population, &schedule);
    let host = HostTime::now(&before, mode).since(host);
    let after = state(field, callers)?;
    let mut of_slo = Vec::new();
    let mut failed = 0;
    for (number, took, names) in &served {
        let Some(subject) = schedule.get(*number).and_then(|(_, at)| subjects.get(*at)) else {
            continue;
        };
        match took {
            Ok(us) => {
                of_slo.push(us / slo_us.get(&subject.name).context("no objective")?);
                if number % COMPARED_EVERY == 0 {
                    field.expected.compare(field.objects, subject, names)?;
                }
            }
            Err(why) => {
                if failed == 0 {
                    eprintln!("unlade: {}: {why}", subject.function(mode));
                }
                failed += 1;
            }
        }
    }
    let instances = cpu_ns(&after).saturating_sub(cpu_ns(&before));
    let used_us = (instances + host.gateway_ns + host.worker_ns) as f64 / 1e3;
    Ok(Step {
        population,
        pss_bytes: after.pss_bytes(mode),
        p99_of_slo: percentile(&mut of_slo, 99.0).unwrap_or(f64::MAX),
        invocations: served.len(),
        failed,
        cpu_us_per_invocation: used_us / served.len().max(1) as f64,
    })
}

fn cpu_ns(state: &State) -> u64 {
    let usages = state.instances.iter().filter_map(|instance| instance.usage);
    usages.map(|usage| u64::try_from(usage.cpu.as_nanos()).unwrap_or(u64::MAX)).sum()
}

fn serve(
    callers: &mut [Caller],
    subjects: &[&Subject],
    mode: Mode,
    population: usize,
    schedule: &[(Duration, usize)],
) -> Vec<Served> {
    let next = AtomicUsize::new(0);
    let served: Mutex<Vec<Served>> = Mutex::default();
    // A moment for all callers to be there.
    let begin = Instant::now() + Duration::from_millis(50);
    let work = |caller: &mut Caller| loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some((at, which)) = schedule.get(number) else { return };
        let Some(subject) = subjects.get(*which) else { return };
        let due = begin + *at;
        let key = format!("load/{}/{population}/{number}", mode.name());
        let (event, names) = subject.event_for(&key);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let invoked = invoke(caller, &subject.function(mode), &event);
        let took = invoked.map(|_| due.elapsed().as_nanos() as f64 / 1e3);
        let took = took.map_err(|error| format!("{error:#}"));
        served.lock().unwrap_or_else(|it| it.into_inner()).push((number, took, names));
    };
    std::thread::scope(|scope| {
        for caller in callers {
            scope.spawn(|| work(caller));
        }
    });
    served.into_inner().unwrap_or_else(|it| it.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(population: usize, pss_bytes: u64, p99_of_slo: f64) -> Step {
        Step { population, pss_bytes, p99_of_slo, invocations: 1, ..Step::default() }
    }

    #[test]
    fn density_is_where_the_limit_is_crossed() {
        let steps = [step(10, 100, 0.1), step(20, 200, 0.5), step(30, 300, 1.5)];
        assert_eq!(density(&steps, 1000), (25.0, Some("slo")));
        assert_eq!(density(&steps, 250), (25.0, Some("memory")));
        assert_eq!(density(&steps[..2], 1000), (20.0, None), "it never broke");
        assert_eq!(density(&steps[2..], 1000), (0.0, Some("slo")));
        let failed = Step { failed: 1, ..step(30, 300, 0.6) };
        assert_eq!(density(&[step(20, 200, 0.5), failed], 1000), (20.0, Some("slo")));
        assert_eq!(density(&[], 1), (0.0, None));
    }

    #[test]
    fn populations_are_shared_out() {
        for population in 0..50 {
            let sum: usize = (0..12).map(|number| share(population, 12, number)).sum();
            assert_eq!(sum, population);
        }
        assert_eq!((share(25, 12, 0), share(25, 12, 1)), (3, 2));
    }

    #[test]
    fn a_schedule_has_the_rate_that_is_asked_for() {
        let growth = Growth {
            seed: 3,
            first: 24,
            last: 100,
            factor: 1.2,
            window: Duration::from_secs(20),
            window_max: Duration::from_secs(60),
            rate_per_s: 2.0,
            budget_bytes: 1,
            starting: 8,
        };
        let made = schedule(&growth, 50, 12).unwrap();
        let due = 50.0 * 2.0 * 20.0;
        assert!((made.len() as f64 - due).abs() < 0.15 * due, "{}", made.len());
        assert!(made.is_sorted_by_key(|(at, _)| *at));
        assert!(made.iter().all(|(at, which)| *at < growth.window && *which < 12));
        assert_eq!(made, schedule(&growth, 50, 12).unwrap(), "the same for every mode");
        let few = schedule(&growth, 6, 12).unwrap();
        assert!(few.last().unwrap().0 > growth.window, "few instances are watched for longer");
    }
}
