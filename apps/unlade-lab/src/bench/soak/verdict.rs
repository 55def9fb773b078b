//! Results of a soak, and the faults in them. Pure.

use super::super::drive::{example, number};
use super::super::tcp::Census;
use super::leftovers::Leftovers;
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// A number of actions of the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    Migrations(u64),
    /// Direct ones.
    Responses(u64),
}

impl Goal {
    pub fn count(self) -> u64 {
        match self {
            Goal::Migrations(count) | Goal::Responses(count) => count,
        }
    }

    /// The balancer's metric.
    pub fn counter(self) -> &'static str {
        match self {
            Goal::Migrations(_) => "unlade_lb_migrations_completed_total",
            Goal::Responses(_) => "unlade_lb_direct_returns_total",
        }
    }

    /// The field of results.
    fn field(self) -> &'static str {
        match self {
            Goal::Migrations(_) => "migrations",
            Goal::Responses(_) => "direct_responses",
        }
    }
}

/// Prints the actions without their number.
impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Goal::Migrations(_) => "migrations",
            Goal::Responses(_) => "direct responses",
        })
    }
}

/// Results of one run of a lab.
#[derive(Debug)]
pub struct Outcome {
    pub goal: Goal,
    /// The number of them that the balancer counted.
    pub done: u64,
    /// There was none for too long.
    pub stalled: bool,
    pub elapsed: Duration,
    /// The load's figures.
    pub load: Value,
    /// TCP counters from the beginning until just before the load's end.
    pub counted: Census,
    /// The bad link's counters; null without one.
    pub link: Value,
    pub leftovers: Leftovers,
}

impl Outcome {
    /// Everything that should not have been; a good link may show less than a bad one.
    pub fn problems(&self, lossless: bool) -> Vec<String> {
        let mut problems = Vec::new();
        let load = |name: &str| number(&self.load, name);
        if load("mismatches") > 0 {
            problems.push(format!("{} wrong bodies: {}", load("mismatches"), self.example()));
        }
        if load("timeouts") > 0 {
            problems.push(format!("{} connections hung", load("timeouts")));
        }
        let others = load("errors").saturating_sub(load("mismatches") + load("timeouts"));
        if others > 0 {
            problems.push(format!("{others} requests failed: {}", self.example()));
        }
        if load("verified") < load("requests") {
            let unchecked = load("requests") - load("verified");
            problems.push(format!("{unchecked} bodies were not checked"));
        }
        if self.stalled {
            problems.push(format!("{} stopped", self.goal));
        }
        let (done, wanted) = (self.done, self.goal.count());
        if done < wanted {
            problems.push(format!("{done} of {wanted} {}", self.goal));
        }
        self.link_problems(lossless, &mut problems);
        let left = self.leftovers;
        for (count, what) in
            [(left.flows, "flows"), (left.connections, "connections"), (left.sockets, "sockets")]
        {
            if count > 0 {
                problems.push(format!("{count} {what} are left over"));
            }
        }
        problems
    }

    fn link_problems(&self, lossless: bool, problems: &mut Vec<String>) {
        for (node, counters) in &self.counted.0 {
            if counters.checksum_errors > 0 {
                problems.push(format!("{} wrong checksums at {node}", counters.checksum_errors));
            }
            if lossless && counters.retransmitted_segments > 0 {
                let (segments, probes) = (counters.retransmitted_segments, counters.tail_probes);
                problems.push(format!(
                    "{segments} segments retransmitted by {node}, {probes} of them because an \
                     acknowledgement was late"
                ));
            }
            if lossless && counters.sent_resets > 0 {
                problems.push(format!("{} resets sent by {node}", counters.sent_resets));
            }
        }
        if number(&self.link, "overflowed_packets") > 0 {
            let lost = number(&self.link, "overflowed_packets");
            problems.push(format!("the bad link lost {lost} packets without being meant to"));
        }
    }

    fn example(&self) -> &str {
        example(&self.load)
    }

    pub fn metrics(&self, problems: &[String]) -> Map<String, Value> {
        let total = self.counted.total();
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let field = self.goal.field();
        let value = serde_json::json!({
            field: self.done,
            format!("{field}_per_s"): self.done as f64 / seconds,
            "elapsed_s": seconds,
            "requests": number(&self.load, "requests"),
            "verified": number(&self.load, "verified"),
            "mismatches": number(&self.load, "mismatches"),
            "errors": number(&self.load, "errors"),
            "hung_connections": number(&self.load, "timeouts"),
            "connections": number(&self.load, "connections"),
            "latency_p999_us": self.load["latency_p999_us"],
            "retransmitted_segments": total.retransmitted_segments,
            "tail_probes": total.tail_probes,
            "sent_resets": total.sent_resets,
            "checksum_errors": total.checksum_errors,
            "sent_segments": total.sent_segments,
            "leftover_flows": self.leftovers.flows,
            "leftover_connections": self.leftovers.connections,
            "leftover_sockets": self.leftovers.sockets,
            "link": self.link,
            "problems": problems,
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// For a reader.
    pub fn rows(&self) -> Vec<String> {
        let load = |name: &str| number(&self.load, name);
        let mut rows = vec![
            format!(
                "  {} {} in {:.1} s ({:.0}/s)",
                self.done,
                self.goal,
                self.elapsed.as_secs_f64(),
                self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
            ),
            format!(
                "  {} requests on {} connections, {} bodies checked: {} mismatches, {} errors, \
                 {} hung",
                load("requests"),
                load("connections"),
                load("verified"),
                load("mismatches"),
                load("errors"),
                load("timeouts")
            ),
            format!(
                "  {:<8}{:>12}{:>12}{:>12}{:>12}{:>12}",
                "", "OutSegs", "Retrans", "Probes", "OutRsts", "Csum"
            ),
        ];
        for (node, counters) in &self.counted.0 {
            rows.push(format!(
                "  {:<8}{:>12}{:>12}{:>12}{:>12}{:>12}",
                node.to_string(),
                counters.sent_segments,
                counters.retransmitted_segments,
                counters.tail_probes,
                counters.sent_resets,
                counters.checksum_errors
            ));
        }
        if !self.link.is_null() {
            let link = |name: &str| number(&self.link, name);
            rows.push(format!(
                "  the client's link: {} packets, {} lost, {} late, {} doubled",
                link("seen_packets"),
                link("lost_packets"),
                link("delayed_packets"),
                link("duplicated_packets")
            ));
        }
        rows.push(format!(
            "  left over: {} flows, {} connections, {} sockets",
            self.leftovers.flows, self.leftovers.connections, self.leftovers.sockets
        ));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tcp::Counters;
    use super::*;
    use crate::lab::plan::Node;

    fn outcome() -> Outcome {
        Outcome {
            goal: Goal::Migrations(1000),
            done: 1000,
            stalled: false,
            elapsed: Duration::from_secs(2),
            load: serde_json::json!({
                "requests": 1200, "verified": 1200, "mismatches": 0, "errors": 0, "timeouts": 0,
                "connections": 20, "latency_p999_us": 900, "example_error": null,
            }),
            counted: Census(vec![
                (Node::Client, Counters { sent_segments: 10, ..Counters::default() }),
                (Node::Server(1), Counters::default()),
            ]),
            link: Value::Null,
            leftovers: Leftovers::default(),
        }
    }

    #[test]
    fn a_good_run_has_no_problems() {
        let outcome = outcome();
        assert_eq!(outcome.problems(true), Vec::<String>::new());
        let metrics = outcome.metrics(&[]);
        assert_eq!(metrics["migrations_per_s"], 500.0);
        assert_eq!(metrics["sent_segments"], 10);
        assert_eq!(outcome.rows().len(), 6);
        let outcome = Outcome { goal: Goal::Responses(1001), ..outcome };
        assert_eq!(outcome.problems(true), ["1000 of 1001 direct responses"]);
        assert_eq!(outcome.metrics(&[])["direct_responses"], 1000);
    }

    #[test]
    fn a_retransmission_is_wrong_on_a_good_link_only() {
        let mut outcome = outcome();
        outcome.counted.0[1].1.retransmitted_segments = 3;
        outcome.counted.0[1].1.tail_probes = 2;
        outcome.counted.0[0].1.sent_resets = 1;
        let problems = outcome.problems(true);
        let retransmitted =
            "3 segments retransmitted by s1, 2 of them because an acknowledgement was late";
        assert_eq!(problems, ["1 resets sent by client", retransmitted]);
        assert!(outcome.problems(false).is_empty());
    }

    #[test]
    fn everything_else_is_wrong_always() {
        let wrong: [fn(&mut Outcome); 10] = [
            |o| o.done = 999,
            |o| o.stalled = true,
            |o| o.load["mismatches"] = 1.into(),
            |o| o.load["timeouts"] = 1.into(),
            |o| o.load["errors"] = 1.into(),
            |o| o.load["verified"] = 1199.into(),
            |o| o.counted.0[1].1.checksum_errors = 1,
            |o| o.leftovers.flows = 1,
            |o| o.leftovers.connections = 1,
            |o| o.link = serde_json::json!({ "overflowed_packets": 1 }),
        ];
        for (number, spoil) in wrong.into_iter().enumerate() {
            let mut outcome = outcome();
            spoil(&mut outcome);
            assert_eq!(outcome.problems(false).len(), 1, "{number}: {outcome:?}");
        }
    }

    #[test]
    fn a_mismatch_is_not_told_twice() {
        let mut outcome = outcome();
        outcome.load["mismatches"] = 2.into();
        outcome.load["errors"] = 2.into();
        outcome.load["example_error"] = "wrong SHA-256 of the body of /x".into();
        let problems = outcome.problems(false);
        assert_eq!(problems, ["2 wrong bodies: wrong SHA-256 of the body of /x"]);
    }
}
