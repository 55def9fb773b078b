//! From windows to figures: medians over rounds, ratios, the mix. Pure.

use serde_json::{Map, Value, json};

use super::measure::Window;
use crate::bench::figures::median;

/// Of a function in a mode. Nothing where it was not seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub warm_p50_us: Option<f64>,
    pub warm_p99_us: Option<f64>,
    pub cold_p50_us: Option<f64>,
    pub start_p50_us: Option<f64>,
    pub handler_p50_us: Option<f64>,
    pub settled_p50_us: Option<f64>,
    pub private_bytes: Option<f64>,
    pub pss_bytes: Option<f64>,
    pub node_cpu_us: Option<f64>,
    pub instance_cpu_us: Option<f64>,
    pub worker_cpu_us: Option<f64>,
    pub gateway_cpu_us: Option<f64>,
    /// Of starts: from a prefetch's begin to its last byte, and how long it was waited for.
    pub prefetch_p50_us: Option<f64>,
    pub prefetch_waited_p50_us: Option<f64>,
    pub prefetch_hidden: Option<f64>,
    pub warm_invocations: usize,
    pub cold_invocations: usize,
}

/// The middle; nothing of nothing.
pub fn middle(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.into_iter().collect();
    (!values.is_empty()).then(|| median(&values))
}

/// The value below which so many of a hundred are (nearest rank).
pub fn percentile(values: &mut [f64], percent: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

fn warm_us(window: &Window) -> Option<f64> {
    middle(window.warm.iter().map(|invoked| invoked.took_us))
}

fn cold_us(window: &Window) -> Option<f64> {
    window.cold.as_ref().map(|invoked| invoked.took_us)
}

fn private_bytes(window: &Window) -> Option<f64> {
    window.usage.map(|usage| usage.private_bytes as f64)
}

fn pss_bytes(window: &Window) -> Option<f64> {
    window.usage.map(|usage| usage.pss_bytes as f64)
}

fn node_cpu_us(window: &Window) -> Option<f64> {
    window.cpu.map(|cpu| cpu.node_us())
}

fn instance_cpu_us(window: &Window) -> Option<f64> {
    window.cpu.map(|cpu| cpu.instance_us)
}

/// Share of the time of prefetches that no caller waited for; `None` where there was no prefetch.
pub fn prefetch_hidden(windows: &[Window]) -> Option<f64> {
    let sum = |name: &str| -> f64 {
        let colds = windows.iter().filter_map(|window| window.cold.as_ref());
        colds.filter_map(|invoked| invoked.timings.get(name)).sum()
    };
    let (took, waited) = (sum("prefetch_us"), sum("prefetch_waited_us"));
    (took > 0.0).then(|| 1.0 - (waited / took).min(1.0))
}

impl Figures {
    /// Medians over rounds; percentiles of all invocations.
    pub fn of(windows: &[Window]) -> Figures {
        let each = |figure: fn(&Window) -> Option<f64>| middle(windows.iter().filter_map(figure));
        let warm = || windows.iter().flat_map(|window| &window.warm);
        let timing = |name: &str| middle(warm().filter_map(|it| it.timings.get(name).copied()));
        let mut all: Vec<f64> = warm().map(|invoked| invoked.took_us).collect();
        let colds: Vec<_> = windows.iter().filter_map(|window| window.cold.as_ref()).collect();
        let cold = |name: &str| {
            let values = colds.iter().filter_map(|it| it.timings.get(name).copied());
            // A mode that does not prefetch says 0.
            middle(values).filter(|us| name == "start_us" || *us > 0.0)
        };
        let prefetch = cold("prefetch_us");
        Figures {
            warm_p50_us: each(warm_us),
            warm_p99_us: percentile(&mut all, 99.0),
            cold_p50_us: each(cold_us),
            start_p50_us: cold("start_us"),
            handler_p50_us: timing("handler_us"),
            settled_p50_us: timing("settled_us"),
            private_bytes: each(private_bytes),
            pss_bytes: each(pss_bytes),
            node_cpu_us: each(node_cpu_us),
            instance_cpu_us: each(instance_cpu_us),
            worker_cpu_us: each(|window| window.cpu.map(|cpu| cpu.worker_us)),
            gateway_cpu_us: each(|window| window.cpu.map(|cpu| cpu.gateway_us)),
            prefetch_p50_us: prefetch,
            prefetch_waited_p50_us: prefetch.map(|_| cold("prefetch_waited_us").unwrap_or(0.0)),
            prefetch_hidden: prefetch_hidden(windows),
            warm_invocations: all.len(),
            cold_invocations: colds.len(),
        }
    }

    pub fn metrics(&self) -> Map<String, Value> {
        let value = json!({
            "warm_latency_p50_us": self.warm_p50_us,
            "warm_latency_p99_us": self.warm_p99_us,
            "cold_latency_p50_us": self.cold_p50_us,
            "start_p50_us": self.start_p50_us,
            "handler_p50_us": self.handler_p50_us,
            "settled_p50_us": self.settled_p50_us,
            "private_bytes": self.private_bytes,
            "pss_bytes": self.pss_bytes,
            "node_cpu_us_per_invocation": self.node_cpu_us,
            "instance_cpu_us_per_invocation": self.instance_cpu_us,
            "worker_cpu_us_per_invocation": self.worker_cpu_us,
            "gateway_cpu_us_per_invocation": self.gateway_cpu_us,
            "prefetch_p50_us": self.prefetch_p50_us,
            "prefetch_waited_p50_us": self.prefetch_waited_p50_us,
            "prefetch_hidden_fraction": self.prefetch_hidden,
            "warm_invocations": self.warm_invocations,
            "cold_invocations": self.cold_invocations,
        });
        present(value)
    }
}

/// The members that have a value.
pub fn present(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else { return Map::new() };
    map.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Of one mode to another, of one function; below 1 the first is better.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    pub memory: Option<f64>,
    pub pss: Option<f64>,
    pub cpu: Option<f64>,
    /// The instance's own part of the processor time.
    pub instance_cpu: Option<f64>,
    pub warm: Option<f64>,
    pub warm_p99: Option<f64>,
    pub cold: Option<f64>,
}

impl Ratio {
    /// Medians over rounds of the rounds' own ratios, so that a machine that is slower for a while
    /// is so for both.
    pub fn of(ours: &[Window], theirs: &[Window]) -> Ratio {
        let paired = |figure: fn(&Window) -> Option<f64>| {
            let pairs = ours.iter().zip(theirs);
            middle(pairs.filter_map(|(ours, theirs)| {
                let (ours, theirs) = (figure(ours)?, figure(theirs)?);
                (theirs > 0.0).then_some(ours / theirs)
            }))
        };
        let p99 = |windows| Figures::of(windows).warm_p99_us.filter(|it| *it > 0.0);
        Ratio {
            memory: paired(private_bytes),
            pss: paired(pss_bytes),
            cpu: paired(node_cpu_us),
            instance_cpu: paired(instance_cpu_us),
            warm: paired(warm_us),
            warm_p99: p99(ours).zip(p99(theirs)).map(|(ours, theirs)| ours / theirs),
            cold: paired(cold_us),
        }
    }

    pub fn metrics(&self) -> Map<String, Value> {
        present(json!({
            "memory_ratio": self.memory,
            "pss_ratio": self.pss,
            "cpu_ratio": self.cpu,
            "instance_cpu_ratio": self.instance_cpu,
            "warm_latency_ratio": self.warm,
            "warm_latency_p99_ratio": self.warm_p99,
            "cold_latency_ratio": self.cold,
        }))
    }

    /// Geometric means over functions; a figure that one of them lacks is nothing.
    pub fn mean(ratios: &[Ratio]) -> Ratio {
        let mean = |figure: fn(&Ratio) -> Option<f64>| geometric(ratios.iter().map(figure));
        Ratio {
            memory: mean(|ratio| ratio.memory),
            pss: mean(|ratio| ratio.pss),
            cpu: mean(|ratio| ratio.cpu),
            instance_cpu: mean(|ratio| ratio.instance_cpu),
            warm: mean(|ratio| ratio.warm),
            warm_p99: mean(|ratio| ratio.warm_p99),
            cold: mean(|ratio| ratio.cold),
        }
    }

    /// The largest warm latency.
    pub fn worst_warm(ratios: &[Ratio]) -> Option<f64> {
        ratios.iter().filter_map(|ratio| ratio.warm).max_by(f64::total_cmp)
    }
}

/// The geometric mean, where all are there.
fn geometric(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logarithms: Vec<f64> = values.map(|value| Some(value?.ln())).collect::<Option<_>>()?;
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}

/// Usage of the mix: each function once. Of a sum, so that a function that uses more counts more.
pub fn sum_ratio(
    ours: &[Figures],
    theirs: &[Figures],
    figure: fn(&Figures) -> Option<f64>,
) -> Option<f64> {
    let sum = |all: &[Figures]| all.iter().map(figure).sum::<Option<f64>>();
    let (ours, theirs) = (sum(ours)?, sum(theirs)?);
    (theirs > 0.0).then_some(ours / theirs)
}

#[cfg(test)]
mod tests {
    use super::super::measure::Cpu;
    use super::super::node::Invoked;
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use unlade_fn_model::isolation::Usage;

    fn invoked(took_us: f64, timings: &[(&str, f64)]) -> Invoked {
        let timings = timings.iter().map(|(name, us)| ((*name).to_owned(), *us));
        Invoked { took_us, origin: "warm".into(), timings: timings.collect::<BTreeMap<_, _>>() }
    }

    fn window(scale: f64) -> Window {
        Window {
            cold: Some(invoked(
                100.0 * scale,
                &[("prefetch_us", 50.0), ("prefetch_waited_us", 5.0), ("start_us", 9.0)],
            )),
            warm: (1..=9).map(|n| invoked(f64::from(n) * scale, &[("handler_us", 2.0)])).collect(),
            usage: Some(Usage {
                pss_bytes: (200.0 * scale) as u64,
                private_bytes: (100.0 * scale) as u64,
                cpu: Duration::ZERO,
            }),
            cpu: Some(Cpu { instance_us: 3.0 * scale, worker_us: scale, gateway_us: 0.0 }),
        }
    }

    #[test]
    fn figures_are_medians() {
        let figures = Figures::of(&[window(1.0), window(3.0), window(2.0)]);
        assert_eq!(figures.warm_p50_us, Some(10.0));
        assert_eq!(figures.warm_p99_us, Some(27.0));
        assert_eq!(figures.cold_p50_us, Some(200.0));
        assert_eq!(figures.start_p50_us, Some(9.0));
        assert_eq!((figures.private_bytes, figures.node_cpu_us), (Some(200.0), Some(8.0)));
        assert_eq!(figures.prefetch_hidden, Some(0.9));
        assert_eq!(
            (figures.prefetch_p50_us, figures.prefetch_waited_p50_us),
            (Some(50.0), Some(5.0))
        );
        assert_eq!((figures.warm_invocations, figures.cold_invocations), (27, 3));
        assert_eq!(Figures::of(&[]).metrics().get("warm_latency_p50_us"), None);
    }

    #[test]
    fn ratios_are_of_rounds_and_means_of_functions() {
        // The machine was half as fast in the second round.
        let ours = [window(1.0), window(2.0)];
        let theirs = [window(2.0), window(4.0)];
        let ratio = Ratio::of(&ours, &theirs);
        assert_eq!((ratio.warm, ratio.cold, ratio.memory), (Some(0.5), Some(0.5), Some(0.5)));
        assert_eq!((ratio.cpu, ratio.instance_cpu), (Some(0.5), Some(0.5)));
        let worse = Ratio { warm: Some(2.0), ..ratio };
        let mean = Ratio::mean(&[ratio, worse]);
        assert!((mean.warm.unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(Ratio::worst_warm(&[ratio, worse]), Some(2.0));
        assert_eq!(Ratio::mean(&[ratio, Ratio::default()]).warm, None, "one is missing");
        assert_eq!(Ratio::mean(&[]).warm, None);
    }

    #[test]
    fn a_mix_is_a_sum() {
        let of = |us: f64| Figures { node_cpu_us: Some(us), ..Figures::default() };
        let ratio =
            |theirs: &[Figures]| sum_ratio(&[of(1.0), of(9.0)], theirs, |it| it.node_cpu_us);
        assert_eq!(ratio(&[of(10.0), of(10.0)]), Some(0.5));
        assert_eq!(ratio(&[of(10.0), Figures::default()]), None);
        assert_eq!(percentile(&mut [], 99.0), None);
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 50.0), Some(2.0));
    }
}
