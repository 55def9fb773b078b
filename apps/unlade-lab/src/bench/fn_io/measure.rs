//! Rounds: every function in every mode, once after the other. A window is a start from the
//! template, and warm invocations of that instance.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use unlade_fn_model::isolation::Usage;

use super::catalogue::{Mode, Subject};
use super::http::Caller;
use super::node::{HostTime, Invoked, Node, State, invoke};
use super::objects::{Expected, Name, Objects};

/// How long instances that are not used may take to go.
const GONE_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked whether they have.
const GONE_PAUSE: Duration = Duration::from_millis(40);
/// Functions that are first invoked at a time: an import is a processor's.
const SETTLING: usize = 2;

/// Processor time of one invocation, by whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    pub instance_us: f64,
    pub worker_us: f64,
    pub gateway_us: f64,
}

impl Cpu {
    /// All of the node's, but the store's.
    pub fn node_us(&self) -> f64 {
        self.instance_us + self.worker_us + self.gateway_us
    }
}

/// Measurements of one instance.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Its first invocation, where it was started from a template for it.
    pub cold: Option<Invoked>,
    /// Those after it.
    pub warm: Vec<Invoked>,
    /// Its final reading.
    pub usage: Option<Usage>,
    /// Of the warm ones, on average.
    pub cpu: Option<Cpu>,
}

/// The measurements and their places.
pub struct Field<'a> {
    pub node: &'a Node,
    pub objects: &'a Objects,
    pub expected: &'a mut Expected,
}

/// A function that does not work here, and why.
pub type Unusable = (String, String);
/// A subject in a mode.
pub type Wanted<'s> = (&'s Subject, Mode);

/// The outputs of a first invocation, or why there are none.
type First = Result<Vec<Name>, String>;

/// Invokes every function once: what does not work is told, what was written is checked, and taken
/// as what is due from now on. Stock comes first: the others are compared with it.
///
/// # Errors
/// An output is wrong.
pub fn settle<'s>(
    field: &mut Field<'_>,
    place: &super::place::Place,
    wanted: &[Wanted<'s>],
) -> Result<(Vec<Wanted<'s>>, Vec<Unusable>)> {
    let firsts = first_invocations(field.node, wanted);
    let (mut usable, mut unusable, mut made) = (Vec::new(), Vec::new(), Vec::new());
    let mut others: Vec<(&Subject, Vec<Name>)> = Vec::new();
    for ((subject, mode), first) in wanted.iter().zip(firsts) {
        match first {
            Err(why) => unusable.push((subject.function(*mode), why)),
            Ok(names) => {
                usable.push((*subject, *mode));
                let known =
                    made.iter().any(|(other, _): &(&Subject, _)| other.name == subject.name);
                if known { others.push((subject, names)) } else { made.push((subject, names)) }
            }
        }
    }
    field.expected.learn(field.objects, place, &place.directory("outputs")?, &made)?;
    for (subject, names) in others.iter().chain(&made) {
        field.expected.compare(field.objects, subject, names)?;
    }
    Ok((usable, unusable))
}

fn first_invocations(node: &Node, wanted: &[(&Subject, Mode)]) -> Vec<First> {
    let next = AtomicUsize::new(0);
    let firsts: Mutex<BTreeMap<usize, First>> = Mutex::default();
    let work = || {
        let mut caller = node.caller();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((subject, mode)) = wanted.get(number) else { return };
            let (event, names) = subject.event_for(&format!("first/{}", subject.function(*mode)));
            let invoked = invoke(&mut caller, &subject.function(*mode), &event);
            let first = invoked.map(|_| names).map_err(|error| format!("{error:#}"));
            firsts.lock().unwrap_or_else(|it| it.into_inner()).insert(number, first);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..SETTLING {
            scope.spawn(work);
        }
    });
    firsts.into_inner().unwrap_or_else(|it| it.into_inner()).into_values().collect()
}

/// Windows by function and mode, one a round.
pub type Windows = BTreeMap<(String, Mode), Vec<Window>>;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    pub rounds: usize,
    /// Warm invocations of a window.
    pub warm: usize,
}

/// A bar of progress.
pub fn bar(length: usize) -> ProgressBar {
    let progress = ProgressBar::new(length as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:40} [{bar:30}] {pos}/{len}") {
        progress.set_style(style);
    }
    progress
}

/// Measures: rounds of windows, the modes of a subject one after the other in an order that rotates.
///
/// # Errors
/// An invocation fails, or has another output than the stock function's.
pub fn rounds(
    field: &mut Field<'_>,
    usable: &[(&Subject, Mode)],
    effort: Rounds,
    progress: &ProgressBar,
) -> Result<Windows> {
    let mut windows = Windows::new();
    let mut caller = field.node.caller();
    for round in 0..effort.rounds {
        for group in usable.chunk_by(|(a, _), (b, _)| a.name == b.name) {
            for step in 0..group.len() {
                let Some((subject, mode)) = group.get((step + round) % group.len()) else {
                    continue;
                };
                let warm = if subject.is_sized { 0 } else { effort.warm };
                progress.set_message(subject.function(*mode));
                let window = window(field, &mut caller, subject, *mode, warm, round)
                    .with_context(|| subject.function(*mode))?;
                windows.entry((subject.name.clone(), *mode)).or_default().push(window);
                progress.inc(1);
            }
        }
    }
    Ok(windows)
}

/// One window of a function in a mode.
///
/// # Errors
/// An invocation fails, or an output is wrong.
pub fn window(
    field: &mut Field<'_>,
    caller: &mut Caller,
    subject: &Subject,
    mode: Mode,
    warm: usize,
    round: usize,
) -> Result<Window> {
    let function = subject.function(mode);
    without_instances(field.node, caller, &function)?;
    let mut written = Vec::new();
    let mut call = |caller: &mut Caller| {
        let key = format!("rounds/{function}/{round}/{}", written.len());
        let (event, names) = subject.event_for(&key);
        written.push(names);
        invoke(caller, &function, &event)
    };
    let cold = call(caller)?;
    let mut window =
        Window { cold: (cold.origin == "restored").then_some(cold), ..Window::default() };
    if warm > 0 {
        // The first after a start still grows what the others reuse.
        call(caller)?;
        let before = field.node.state(caller)?;
        let host = HostTime::now(&before, mode);
        for _ in 0..warm {
            window.warm.push(call(caller)?);
        }
        let host = HostTime::now(&before, mode).since(host);
        let after = field.node.state(caller)?;
        window.usage = usage(&after, &function).map(|(_, usage)| usage);
        window.cpu = cpu(&before, &after, &function, host, warm);
        window.warm.retain(|invoked| invoked.origin == "warm");
    }
    for names in &written {
        field.expected.compare(field.objects, subject, names)?;
    }
    Ok(window)
}

/// Waits until a function has no instance: its next one is started from the template.
///
/// # Errors
/// An idle instance does not go in time.
pub(super) fn without_instances(node: &Node, caller: &mut Caller, function: &str) -> Result<()> {
    let begin = Instant::now();
    while node.state(caller)?.instances_of(function).next().is_some() {
        if begin.elapsed() > GONE_WAIT {
            bail!("its idle instance does not go");
        }
        std::thread::sleep(GONE_PAUSE);
    }
    Ok(())
}

/// The one instance of a function, and what it uses; `None` of none or several.
pub(super) fn usage(state: &State, function: &str) -> Option<(u64, Usage)> {
    let mut found = state.instances_of(function);
    let instance = found.next()?;
    match found.next() {
        None => Some((instance.id, instance.usage?)),
        // Which one was used is not known.
        Some(_) => None,
    }
}

/// Processor time of an invocation between two states; `None` if the instance was not the same.
pub(super) fn cpu(
    before: &State,
    after: &State,
    function: &str,
    host: HostTime,
    invocations: usize,
) -> Option<Cpu> {
    let (first, used_before) = usage(before, function)?;
    let (last, used_after) = usage(after, function)?;
    if first != last {
        return None;
    }
    let each_us = |ns: f64| ns / 1e3 / invocations as f64;
    let instance = used_after.cpu.saturating_sub(used_before.cpu);
    Some(Cpu {
        instance_us: each_us(instance.as_nanos() as f64),
        worker_us: each_us(host.worker_ns as f64),
        gateway_us: each_us(host.gateway_ns as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(instances: &[(u64, u64)]) -> State {
        let instances: Vec<_> = instances
            .iter()
            .map(|(id, ns)| {
                json!({"id": id, "function": "f", "state": "idle", "usage":
                {"pss_bytes": 1, "private_bytes": 1, "cpu": {"secs": 0, "nanos": ns}}})
            })
            .collect();
        let whole = json!({"gateway_pid": 0, "workers": [], "templates": [],
            "instances": instances});
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn processor_time_is_that_of_one_instance_all_along() {
        let host = HostTime { gateway_ns: 4000, worker_ns: 8000 };
        let of = |before: &[(u64, u64)], after: &[(u64, u64)]| {
            cpu(&state(before), &state(after), "f", host, 2)
        };
        let found = of(&[(1, 1000)], &[(1, 5000)]).unwrap();
        assert_eq!(found, Cpu { instance_us: 2.0, worker_us: 4.0, gateway_us: 2.0 });
        assert_eq!(found.node_us(), 8.0);
        assert_eq!(of(&[(1, 1000)], &[(2, 5000)]), None);
        assert_eq!(of(&[(1, 1000)], &[(1, 1000), (2, 5000)]), None);
    }
}
