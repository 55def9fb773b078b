//! What the machine and our programs count: MIBs of the namespaces, `/metrics`, descriptors.

use crate::{Lab, text};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counters of TCP that do not move on a network that loses nothing.
pub const TCP_FAULTS: [&str; 3] = ["RetransSegs", "OutRsts", "InCsumErrors"];

/// Values of [`TCP_FAULTS`], by node and name.
pub type TcpFaults = BTreeMap<(String, &'static str), u64>;

/// What [`TCP_FAULTS`] say in every namespace of a lab, IPv4 and IPv6 together.
///
/// # Panics
/// A namespace has no such counters.
pub fn tcp_faults(lab: &Lab) -> TcpFaults {
    let mut all = TcpFaults::new();
    for node in lab.nodes() {
        let snmp = lab.exec_text(&node, &["cat", "/proc/net/snmp"]);
        let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let pairs: Vec<(&str, &str)> = names.split(' ').zip(values.split(' ')).collect();
        for name in TCP_FAULTS {
            let value = pairs.iter().find(|(known, _)| *known == name).unwrap().1;
            all.insert((node.clone(), name), value.parse().unwrap());
        }
    }
    all
}

/// The counters that moved, with by how much.
pub fn moved(before: &TcpFaults, after: &TcpFaults) -> Vec<String> {
    let by = |key| after.get(key).unwrap_or(&0) - before.get(key).unwrap_or(&0);
    before
        .keys()
        .filter(|key| by(key) != 0)
        .map(|key| format!("{} {} +{}", key.0, key.1, by(key)))
        .collect()
}

/// What else TCP counts at a node that hints at a cause: for messages.
pub fn tcp_hints(lab: &Lab, node: &str) -> String {
    let text = lab.exec_text(node, &["cat", "/proc/net/netstat"]);
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let wanted = ["Abort", "Loss", "Spurious", "Timeouts", "DSACK", "Retrans", "Reno", "Sack"];
    let pairs = names.split(' ').zip(values.split(' '));
    let chosen =
        pairs.filter(|(name, v)| *v != "0" && wanted.iter().any(|wanted| name.contains(wanted)));
    chosen.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// The samples of one `/metrics`, by name and labels as rendered.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// What a process of a lab says: `lb`, `lb-proxy`, `s1`, … Empty when it does not answer.
    pub fn read(lab: &Lab, process: &str) -> Metrics {
        let (node, port) = match process {
            "lb-proxy" => ("lb", 9901),
            other => (other, 9900),
        };
        let url = format!("http://127.0.0.1:{port}/metrics");
        let output = lab.exec(node, &["curl", "-s", "--max-time", "5", &url]);
        let samples = text(&output)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        Metrics { samples }
    }

    /// It answered.
    pub fn is_there(&self) -> bool {
        !self.samples.is_empty()
    }

    /// A sample by its full name, or the sum over all labels; 0 where there is none.
    pub fn get(&self, name: &str) -> u64 {
        let of_family = |sample: &str| {
            sample == name || sample.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
        };
        self.samples.iter().filter(|(sample, _)| of_family(sample)).map(|(_, v)| *v as u64).sum()
    }

    /// Every sample of `names` that is not 0, as text.
    pub fn not_zero(&self, names: &[&str]) -> Vec<String> {
        let values = names.iter().map(|name| (name, self.get(name)));
        values.filter(|(_, value)| *value != 0).map(|(name, v)| format!("{name} {v}")).collect()
    }

    /// Counters of faults that moved, and what was not handed over and why: for messages.
    pub fn noteworthy(&self) -> String {
        let wanted =
            ["fallbacks", "migrations_", "lost", "refused", "expired", "resets", "returns", "rel"];
        let chosen = self.samples.iter().filter(|(name, value)| {
            **value != 0.0 && !name.contains("_bucket") && wanted.iter().any(|w| name.contains(w))
        });
        chosen.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Open descriptors of a process by kind, objects that a server keeps open left out.
pub fn descriptors(pid: u64) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    for target in entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
        let target = target.display().to_string();
        if target.contains("/objects/") {
            continue;
        }
        // `socket:[123]`: the number is its own.
        let kind = target.split(":[").next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Waits until `condition` holds, at most so long; whether it does.
pub fn wait_for(most: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + most;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
