//! Times of stages between two readings of `/stages`. Pure.

use super::figures::median;
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Stages in the order in which they happen.
pub const ORDER: [&str; 10] = [
    "hold",
    "serialize_tls",
    "serialize_tcp",
    "ship",
    "adopt",
    "restore_tcp",
    "restore_tls",
    "redirect",
    "reclaim",
    TOTAL,
];
/// From the beginning of a migration to the new owner's having it.
pub const TOTAL: &str = "total";

/// Times of one stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    sum_ns: u64,
    /// Middle of a bucket, nanoseconds, to how many times fell into it.
    buckets: BTreeMap<u64, u64>,
}

impl Times {
    /// The times themselves, where they are known.
    pub fn of(all_ns: impl IntoIterator<Item = u64>) -> Times {
        let mut times = Times::default();
        for ns in all_ns {
            *times.buckets.entry(ns).or_default() += 1;
            times.sum_ns = times.sum_ns.saturating_add(ns);
        }
        times
    }

    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// The `q`-quantile (0 to 1), microseconds; 0 of none.
    pub fn quantile_us(&self, q: f64) -> f64 {
        let rank = ((q.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        found.map_or(0.0, |(ns, _)| *ns as f64 / 1e3)
    }

    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.count().max(1) as f64 / 1e3
    }

    fn since(&self, earlier: Option<&Times>) -> Times {
        let Some(earlier) = earlier else { return self.clone() };
        let left = |(ns, count): (&u64, &u64)| {
            let before = earlier.buckets.get(ns).copied().unwrap_or(0);
            (count.saturating_sub(before) > 0).then(|| (*ns, count.saturating_sub(before)))
        };
        Times {
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets: self.buckets.iter().filter_map(left).collect(),
        }
    }

    pub fn add(&mut self, other: &Times) {
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for (ns, count) in &other.buckets {
            *self.buckets.entry(*ns).or_default() += count;
        }
    }

    /// `<name>_p50_us` and the like.
    pub fn metrics(&self, name: &str, into: &mut Map<String, Value>) {
        for (figure, value) in [
            ("p50_us", self.quantile_us(0.5)),
            ("p99_us", self.quantile_us(0.99)),
            ("p999_us", self.quantile_us(0.999)),
            ("mean_us", self.mean_us()),
        ] {
            into.insert(format!("{name}_{figure}"), value.into());
        }
    }
}

/// Times of every stage that happened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages(BTreeMap<String, Times>);

impl Stages {
    /// Reads what `/stages` answers.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Stages> {
        let all: BTreeMap<String, Value> = serde_json::from_str(text).context("/stages")?;
        let parsed = all.into_iter().map(|(name, value)| {
            let times = times(&value).with_context(|| format!("/stages: `{name}` has no times"))?;
            Ok((name, times))
        });
        parsed.collect::<Result<_>>().map(Stages)
    }

    /// Records made after `earlier`.
    pub fn since(&self, earlier: &Stages) -> Stages {
        let stages = self.0.iter().map(|(name, times)| {
            let times = times.since(earlier.0.get(name));
            (name.clone(), times)
        });
        Stages(stages.filter(|(_, times)| times.count() > 0).collect())
    }

    pub fn add(&mut self, other: &Stages) {
        for (name, times) in &other.0 {
            self.0.entry(name.clone()).or_default().add(times);
        }
    }

    /// Takes over the stages that only `other` has.
    pub fn complete(&mut self, other: Stages) {
        for (name, times) in other.0 {
            self.0.entry(name).or_insert(times);
        }
    }

    pub fn get(&self, name: &str) -> Times {
        self.0.get(name).cloned().unwrap_or_default()
    }

    /// Those that happened, in order.
    pub fn in_order(&self) -> impl Iterator<Item = (&'static str, &Times)> {
        ORDER.into_iter().filter_map(|name| Some((name, self.0.get(name)?)))
    }
}

fn times(value: &Value) -> Option<Times> {
    let pairs = value["buckets_ns"].as_array()?;
    let pair = |pair: &Value| Some((pair[0].as_u64()?, pair[1].as_u64()?));
    Some(Times {
        sum_ns: value["sum_ns"].as_u64()?,
        buckets: pairs.iter().map(pair).collect::<Option<_>>()?,
    })
}

/// The median over rounds of a round's own ratio of medians; `None` where a round lacks either.
/// A machine that is slower for a while then affects both sides alike.
pub fn paired_ratio(rounds: &[(Times, Times)]) -> Option<f64> {
    let ratio = |(ours, floor): &(Times, Times)| {
        (ours.count() > 0 && floor.count() > 0)
            .then(|| ours.quantile_us(0.5) / floor.quantile_us(0.5).max(1e-3))
    };
    let ratios = rounds.iter().map(ratio).collect::<Option<Vec<f64>>>()?;
    (!ratios.is_empty()).then(|| median(ratios))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = r#"{
"hold":{"count":2,"sum_ns":3000,"buckets_ns":[[1000,1],[2000,1]]},
"total":{"count":1,"sum_ns":9000,"buckets_ns":[[9000,1]]}
}"#;
    const LATE: &str = r#"{
"hold":{"count":5,"sum_ns":33000,"buckets_ns":[[1000,1],[2000,2],[14000,2]]},
"total":{"count":1,"sum_ns":9000,"buckets_ns":[[9000,1]]},
"reclaim":{"count":1,"sum_ns":5000,"buckets_ns":[[5000,1]]}
}"#;

    #[test]
    fn readings_are_subtracted() {
        let delta = Stages::parse(LATE).unwrap().since(&Stages::parse(EARLY).unwrap());
        let hold = delta.get("hold");
        assert_eq!((hold.count(), hold.sum_ns), (3, 30_000));
        assert_eq!((hold.quantile_us(0.0), hold.quantile_us(0.5)), (2.0, 14.0));
        assert_eq!(hold.mean_us(), 10.0);
        // What did not happen between the two is not there.
        assert_eq!(delta.in_order().map(|(name, _)| name).collect::<Vec<_>>(), ["hold", "reclaim"]);
        assert_eq!(delta.get("total").quantile_us(0.5), 0.0);
    }

    #[test]
    fn merged_times_are_those_of_both() {
        let mut all = Stages::parse(EARLY).unwrap();
        all.add(&Stages::parse(LATE).unwrap());
        assert_eq!(all.get("hold").count(), 7);
        assert_eq!(all.get("reclaim").count(), 1);
        let mut own = Stages::parse(EARLY).unwrap();
        own.complete(Stages::parse(LATE).unwrap());
        assert_eq!((own.get("hold").count(), own.get("reclaim").count()), (2, 1));
    }

    #[test]
    fn something_else_is_refused() {
        assert!(Stages::parse("not json").is_err());
        let error = Stages::parse(r#"{"hold":{"count":1}}"#).unwrap_err().to_string();
        assert!(error.contains("hold"), "{error}");
    }

    #[test]
    fn quantiles_are_named_with_their_unit() {
        let times = Times::of((1..=1000).map(|us| us * 1000));
        let mut map = Map::new();
        times.metrics("ship", &mut map);
        assert_eq!(map["ship_p50_us"], 500.0);
        assert_eq!(map["ship_p99_us"], 990.0);
        assert_eq!(map["ship_p999_us"], 999.0);
        assert_eq!(map["ship_mean_us"], 500.5);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let of = |us: u64| Times::of([us * 1000]);
        // The second round was slow for both.
        let rounds = [(of(20), of(10)), (of(200), of(100)), (of(30), of(10))];
        assert_eq!(paired_ratio(&rounds), Some(2.0));
        assert_eq!(paired_ratio(&[]), None);
        assert_eq!(paired_ratio(&[(of(1), Times::default())]), None);
    }
}
