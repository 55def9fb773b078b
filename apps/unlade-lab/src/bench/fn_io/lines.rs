//! Output: lines of results, tables for readers.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::catalogue::{Half, Mode, Subject};
use super::density::{Growth, Step, density};
use super::figures::{Figures, Ratio, present, sum_ratio};
use super::measure::Windows;
use super::wasm::Seen;
use crate::bench::record::Sink;
use unlade_command::output::line;

const NAME_CHARS: usize = 26;
const CELL_CHARS: usize = 11;

/// The fields of every line.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    pub isolation: &'a str,
}

impl About<'_> {
    fn case(&self, scope: &str, more: Value) -> Map<String, Value> {
        let mut map = present(more);
        map.insert("scope".to_owned(), scope.into());
        map.insert("isolation".to_owned(), self.isolation.into());
        map
    }

    fn of_subject(&self, subject: &Subject, more: Value) -> Map<String, Value> {
        let mut map = self.case("instance", more);
        map.insert("function".to_owned(), subject.workload.name.into());
        map.insert("half".to_owned(), subject.workload.half.name().into());
        map.insert("input_bytes".to_owned(), subject.input_bytes.into());
        map
    }
}

/// The head of a table.
pub(super) fn head(columns: &[&str]) -> String {
    let cells: String = columns.iter().map(|text| format!("{text:>CELL_CHARS$}")).collect();
    format!("\n{:<NAME_CHARS$}{cells}", "")
}

/// A line of a table: `-` where a figure is absent.
pub(super) fn row(name: &str, cells: impl IntoIterator<Item = Option<f64>>) -> String {
    let cells = cells.into_iter().map(|cell| cell.map_or_else(|| "-".to_owned(), short));
    let cells: String = cells.map(|text| format!("{text:>CELL_CHARS$}")).collect();
    format!("{name:<NAME_CHARS$}{cells}")
}

/// Three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Each function in each mode.
///
/// # Errors
/// Results cannot be written.
pub fn instances(
    about: About<'_>,
    subjects: &[Subject],
    windows: &Windows,
    sink: &mut Sink,
) -> Result<()> {
    let columns = ["warm p50", "p99 ms", "cold p50", "private", "PSS MiB", "CPU ms"];
    line(head(&columns))?;
    for subject in subjects.iter().filter(|subject| !subject.is_sized) {
        for mode in Mode::ALL {
            let Some(seen) = windows.get(&(subject.name.clone(), mode)) else { continue };
            let figures = Figures::of(seen);
            sink.write(about.of_subject(subject, json!({})), mode.name(), figures.metrics())?;
            let cells = [
                figures.warm_p50_us.map(|us| us / 1e3),
                figures.warm_p99_us.map(|us| us / 1e3),
                figures.cold_p50_us.map(|us| us / 1e3),
                figures.private_bytes.map(|bytes| bytes / 1_048_576.0),
                figures.pss_bytes.map(|bytes| bytes / 1_048_576.0),
                figures.node_cpu_us.map(|us| us / 1e3),
            ];
            // Names of functions are long: the modes stand below the first one.
            let first = mode == Mode::Stock;
            let name = if first { subject.name.as_str() } else { "" };
            line(row(&format!("{name:<15.15}{:.11}", mode.name()), cells))?;
        }
    }
    Ok(())
}

/// The ratios of one mode to a baseline: of each function, and what they are together.
struct Together {
    of_functions: Vec<(Half, Ratio)>,
    ours: Vec<Figures>,
    theirs: Vec<Figures>,
}

impl Together {
    fn of(subjects: &[Subject], windows: &Windows, mode: Mode, baseline: Mode) -> Together {
        let (mut of_functions, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for subject in subjects.iter().filter(|subject| !subject.is_sized) {
            let of = |mode| windows.get(&(subject.name.clone(), mode));
            if let (Some(own), Some(base)) = (of(mode), of(baseline)) {
                of_functions.push((subject.workload.half, Ratio::of(own, base)));
                ours.push(Figures::of(own));
                theirs.push(Figures::of(base));
            }
        }
        Together { of_functions, ours, theirs }
    }

    fn half(&self, half: Option<Half>) -> Vec<Ratio> {
        let wanted = |of: &&(Half, Ratio)| half.is_none_or(|half| half == of.0);
        self.of_functions.iter().filter(wanted).map(|(_, ratio)| *ratio).collect()
    }

    /// Processor time of the mix, each function once.
    fn cpu(&self) -> Option<f64> {
        sum_ratio(&self.ours, &self.theirs, |figures| figures.node_cpu_us)
    }
}

/// Ratios: of each function, of each half, of the mix; and the table of what each part brings.
///
/// # Errors
/// Results cannot be written.
pub fn ratios(
    about: About<'_>,
    subjects: &[Subject],
    windows: &Windows,
    sink: &mut Sink,
) -> Result<()> {
    for baseline in Mode::BASELINES {
        let columns = ["warm io", "compute", "worst", "cold", "memory io", "CPU mix", "CPU mean"];
        line(format_args!("{}", head(&columns)))?;
        for mode in Mode::ALL.into_iter().filter(|mode| !mode.is_stock()) {
            for subject in subjects.iter().filter(|subject| !subject.is_sized) {
                let of = |mode| windows.get(&(subject.name.clone(), mode));
                let (Some(own), Some(base)) = (of(mode), of(baseline)) else { continue };
                let fields = json!({"baseline": baseline.name(), "compared": mode.name()});
                let metrics = Ratio::of(own, base).metrics();
                sink.write(about.of_subject(subject, fields), "ratio", metrics)?;
            }
            let together = Together::of(subjects, windows, mode, baseline);
            if together.of_functions.is_empty() {
                continue;
            }
            of_halves(about, &together, mode, baseline, sink)?;
            let (io, compute) = (
                Ratio::mean(&together.half(Some(Half::Io))),
                Ratio::mean(&together.half(Some(Half::Compute))),
            );
            let all = together.half(None);
            let mean = Ratio::mean(&all);
            let cells = [
                io.warm,
                compute.warm,
                Ratio::worst_warm(&all),
                mean.cold,
                io.memory,
                together.cpu(),
                mean.cpu,
            ];
            line(row(&format!("{} / {}", mode.name(), baseline.name()), cells))?;
        }
    }
    Ok(())
}

fn of_halves(
    about: About<'_>,
    together: &Together,
    mode: Mode,
    baseline: Mode,
    sink: &mut Sink,
) -> Result<()> {
    for half in [Some(Half::Io), Some(Half::Compute), None] {
        let ratios = together.half(half);
        let mut metrics = Ratio::mean(&ratios).metrics();
        if let Some(worst) = Ratio::worst_warm(&ratios) {
            metrics.insert("warm_latency_ratio_worst".to_owned(), worst.into());
        }
        metrics.insert("functions".to_owned(), ratios.len().into());
        let half = half.map_or("all", Half::name);
        let fields = json!({"half": half, "baseline": baseline.name(), "compared": mode.name()});
        sink.write(about.case("instance", fields), "ratio", metrics)?;
    }
    if let Some(cpu) = together.cpu() {
        let mean = Ratio::mean(&together.half(None)).cpu;
        let metrics = json!({"cpu_ratio": cpu, "cpu_ratio_mean": mean,
            "functions": together.ours.len()});
        let fields = json!({"baseline": baseline.name(), "compared": mode.name()});
        sink.write(about.case("node", fields), "ratio", present(metrics))?;
    }
    Ok(())
}

/// One function as WebAssembly, and ours beside it.
///
/// # Errors
/// Results cannot be written.
pub fn wasm(about: About<'_>, subject: &Subject, seen: &Seen, sink: &mut Sink) -> Result<()> {
    let other = About { isolation: "wasmtime" };
    let metrics = json!({
        "warm_latency_p50_us": seen.latency_p50_us,
        "node_cpu_us_per_invocation": seen.cpu_us,
        "private_bytes": seen.instance_bytes,
    });
    sink.write(other.of_subject(subject, json!({})), "wasm", present(metrics))?;
    let metrics = json!({"warm_latency_ratio": seen.latency_ratio, "cpu_ratio": seen.cpu_ratio});
    let fields = json!({"baseline": "wasm", "compared": "offload"});
    sink.write(about.of_subject(subject, fields), "ratio", present(metrics))?;
    line(head(&["warm p50", "CPU ms", "MiB each", "ours: warm", "ours: CPU"]))?;
    let cells = [
        seen.latency_p50_us.map(|us| us / 1e3),
        seen.cpu_us.map(|us| us / 1e3),
        seen.instance_bytes.map(|bytes| bytes / 1_048_576.0),
        seen.latency_ratio,
        seen.cpu_ratio,
    ];
    line(row(&format!("{} as wasm", subject.name), cells))
}

/// Starts with inputs of several sizes.
///
/// # Errors
/// Results cannot be written.
pub fn sizes(
    about: About<'_>,
    subjects: &[Subject],
    windows: &Windows,
    sink: &mut Sink,
) -> Result<()> {
    line(head(&["cold ms", "no fetch", "fetch ms", "waited ms", "hidden"]))?;
    for subject in subjects.iter().filter(|subject| subject.is_sized) {
        let of = |mode| windows.get(&(subject.name.clone(), mode)).map(|seen| Figures::of(seen));
        for mode in [Mode::Sdk, Mode::Offload] {
            let Some(figures) = of(mode) else { continue };
            sink.write(about.of_subject(subject, json!({})), mode.name(), figures.metrics())?;
        }
        let cold = |mode| of(mode).and_then(|it| it.cold_p50_us).map(|us| us / 1e3);
        let hidden = of(Mode::Offload).and_then(|it| it.prefetch_hidden);
        if let Some(hidden) = hidden {
            let fields = json!({"baseline": "sdk", "compared": "offload"});
            let metrics = json!({"prefetch_hidden_fraction": hidden});
            sink.write(about.of_subject(subject, fields), "ratio", present(metrics))?;
        }
        let name = format!("input {} KiB", subject.input_bytes >> 10);
        let own = of(Mode::Offload).unwrap_or_default();
        let [fetch, waited] =
            [own.prefetch_p50_us, own.prefetch_waited_p50_us].map(|us| us.map(|us| us / 1e3));
        line(row(&name, [cold(Mode::Offload), cold(Mode::Sdk), fetch, waited, hidden]))?;
    }
    Ok(())
}

/// A population, while it grows.
///
/// # Errors
/// Results cannot be written.
pub fn step(
    about: About<'_>,
    mode: Mode,
    step: &Step,
    growth: &Growth,
    sink: &mut Sink,
) -> Result<()> {
    sink.write(about.case("node", json!({})), mode.name(), step.metrics(growth))?;
    let cells = [
        Some(step.population as f64),
        Some(step.pss_bytes as f64 / 1_048_576.0),
        Some(step.p99_of_slo),
        Some(step.cpu_us_per_invocation / 1e3),
        Some(step.failed as f64),
    ];
    line(row(mode.name(), cells))
}

/// The head of [`step`]'s rows.
///
/// # Errors
/// Standard output cannot be written.
pub fn step_head() -> Result<()> {
    line(head(&["instances", "node MiB", "p99/SLO", "CPU ms", "failed"]))
}

/// Results of populations: memory at the same size, and the largest size.
///
/// # Errors
/// Results cannot be written.
pub fn populations(
    about: About<'_>,
    grown: &BTreeMap<Mode, Vec<Step>>,
    growth: &Growth,
    sink: &mut Sink,
) -> Result<()> {
    let Some(own) = grown.get(&Mode::Offload) else { return Ok(()) };
    let budget = growth.budget_bytes;
    for baseline in Mode::BASELINES {
        let Some(base) = grown.get(&baseline) else { continue };
        let (Some(first), Some(base_first)) = (own.first(), base.first()) else { continue };
        let mut metrics = Map::new();
        // Of the same population only.
        if first.population == base_first.population && base_first.pss_bytes > 0 {
            let ratio = first.pss_bytes as f64 / base_first.pss_bytes as f64;
            metrics.insert("memory_ratio".to_owned(), ratio.into());
            metrics.insert("population".to_owned(), first.population.into());
            line(row(&format!("node memory / {}", baseline.name()), [Some(ratio)]))?;
        }
        let (ours, own_limit) = density(own, budget);
        let (theirs, base_limit) = density(base, budget);
        // One that does not carry the first population carries fewer: its ratio is a lower bound.
        let is_bound = theirs == 0.0 && base_first.limit(budget).is_some();
        let theirs = if is_bound { base_first.population as f64 } else { theirs };
        // A baseline that was not grown has no density.
        if base.len() > 1 || is_bound {
            let value = json!({
                "density_ratio": ours / theirs,
                "density_instances": ours,
                "baseline_density_instances": theirs,
                "baseline_density_is_upper_bound": is_bound.then_some(true),
                // Where ours has none, it could have grown further.
                "limit": own_limit,
                "baseline_limit": base_limit,
                "memory_budget_bytes": budget,
                "rate_per_instance_per_s": growth.rate_per_s,
            });
            metrics.extend(present(value));
            line(format_args!(
                "density: {} instances ({}), {} {} ({}): {}",
                short(ours),
                own_limit.unwrap_or("no limit"),
                baseline.name(),
                short(theirs),
                base_limit.unwrap_or("no limit"),
                short(ours / theirs),
            ))?;
        }
        let fields = json!({"baseline": baseline.name(), "compared": "offload"});
        sink.write(about.case("node", fields), "ratio", metrics)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::workload;
    use super::super::measure::Window;
    use super::super::node::Invoked;
    use super::*;
    use crate::bench::record;
    use std::time::Duration;

    fn subject() -> Subject {
        Subject {
            name: "aes".into(),
            workload: workload("aes").unwrap(),
            input_bytes: 5,
            event: Value::Null,
            objects: Vec::new(),
            outputs: Vec::new(),
            is_sized: false,
        }
    }

    fn window(took_us: f64) -> Window {
        let warm = Invoked { took_us, origin: "warm".into(), timings: BTreeMap::new() };
        Window { cold: Some(warm.clone()), warm: vec![warm], usage: None, cpu: None }
    }

    #[test]
    fn lines_have_the_promised_fields() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.jsonl");
        let mut sink = Sink::new("fn", Some(&file), 1).unwrap();
        let about = About { isolation: "process" };
        let mut windows = Windows::new();
        for (mode, us) in [(Mode::Stock, 100.0), (Mode::Offload, 50.0)] {
            windows.insert(("aes".into(), mode), vec![window(us)]);
        }
        instances(about, &[subject()], &windows, &mut sink).unwrap();
        ratios(about, &[subject()], &windows, &mut sink).unwrap();
        let growth = Growth {
            seed: 1,
            first: 10,
            last: 20,
            factor: 2.0,
            window: Duration::from_secs(1),
            window_max: Duration::from_secs(1),
            rate_per_s: 1.0,
            budget_bytes: 1000,
            starting: 8,
        };
        let of =
            |population: usize, pss_bytes: u64| Step { population, pss_bytes, ..Step::default() };
        let grown = BTreeMap::from([
            (Mode::Stock, vec![of(10, 500), of(20, 1500)]),
            (Mode::Offload, vec![of(10, 250), of(20, 500)]),
            (Mode::StockPreimported, vec![of(10, 500)]),
        ]);
        populations(about, &grown, &growth, &mut sink).unwrap();
        let late = Step { p99_of_slo: 2.0, ..of(10, 500) };
        let overloaded = BTreeMap::from([
            (Mode::StockPreimported, vec![late]),
            (Mode::Offload, grown[&Mode::Offload].clone()),
        ]);
        populations(about, &overloaded, &growth, &mut sink).unwrap();
        let lines = record::read(std::slice::from_ref(&file)).unwrap();
        let ratio = |scope: &str, key: &str, baseline: &str| {
            lines.iter().find_map(|line| {
                let case = &line["case"];
                let is_it = line["mode"] == "ratio" && case["scope"] == scope;
                let is_it = is_it && case["baseline"] == baseline && case["isolation"] == "process";
                if is_it { line["metrics"][key].as_f64() } else { None }
            })
        };
        assert_eq!(ratio("instance", "warm_latency_ratio", "stock"), Some(0.5));
        assert_eq!(ratio("node", "memory_ratio", "stock"), Some(0.5));
        assert_eq!(ratio("node", "memory_ratio", "stock-preimported"), Some(0.5));
        assert!((ratio("node", "density_ratio", "stock").unwrap() - 20.0 / 15.0).abs() < 1e-9);
        // It was not grown at first; then it did not carry ten, and ours did carry twenty.
        assert_eq!(ratio("node", "density_ratio", "stock-preimported"), Some(2.0));
        let bounds =
            lines.iter().filter(|line| line["metrics"]["baseline_density_is_upper_bound"] == true);
        assert_eq!(bounds.count(), 1);
        let own = lines.iter().find(|line| line["mode"] == "offload").unwrap();
        assert_eq!((own["case"]["half"].as_str(), own["bench"].as_str()), (Some("io"), Some("fn")));
        assert!(own["metrics"].get("private_bytes").is_none(), "what was not seen is left out");
    }
}
