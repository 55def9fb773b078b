//! Counters of the kernel and of the programs: MIBs of the namespaces, `/metrics`, descriptors.

use crate::{Lab, said, text};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// TCP counters that do not change on a lossless network.
pub const TCP_FAULTS: [&str; 3] = ["RetransSegs", "OutRsts", "InCsumErrors"];

/// Values of [`TCP_FAULTS`] by node and name.
pub type TcpFaults = BTreeMap<(String, &'static str), u64>;

/// Reads [`TCP_FAULTS`] in every namespace of a lab, for IPv4 and IPv6 together.
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

/// Returns the counters that changed and their differences.
pub fn moved(before: &TcpFaults, after: &TcpFaults) -> Vec<String> {
    let by = |key| after.get(key).unwrap_or(&0) - before.get(key).unwrap_or(&0);
    before
        .keys()
        .filter(|key| by(key) != 0)
        .map(|key| format!("{} {} +{}", key.0, key.1, by(key)))
        .collect()
}

/// Initial retransmission timer of a quietened lab: longer than a pause of a busy machine, and shorter
/// than a session's deadline: a retransmission then repairs a real loss.
const RETRANSMISSION_TIMER: &str = "5s";

/// Stops the health checks of `balancers`, and restarts these: a check ends its connection with RST, or
/// the kernels do where its FIN overtakes its ACK between two processors.
///
/// # Panics
/// A balancer does not start again.
pub fn without_checks(lab: &Lab, balancers: &[&str]) {
    for balancer in balancers {
        let file = lab.dir().join("config").join(format!("{balancer}.toml"));
        let text = std::fs::read_to_string(&file).expect("a balancer has a configuration");
        let pool = "\nhttp_port = ";
        let changed = text.replace(pool, &format!("\nhealth = {{ interval = \"1day\" }}{pool}"));
        assert_ne!(changed, text, "{balancer} has no pool");
        std::fs::write(&file, changed).expect("the configuration is written");
        let restarted = lab.run("restart", &[balancer]);
        assert!(restarted.status.success(), "{balancer}: {}", said(&restarted));
    }
}

/// Disables harmless causes of [`TCP_FAULTS`]: health checks of `balancers`, which are restarted; a tail
/// loss probe retransmits data whose acknowledgement the peer delays; a timer of 200 ms expires while a
/// busy machine pauses; reordering between two processors looks like a loss. A segment that is really
/// lost is repaired late.
///
/// # Panics
/// As [`without_checks`], or a node does not take the settings.
pub fn quieten(lab: &Lab, balancers: &[&str]) {
    without_checks(lab, balancers);
    let settings = "cd /proc/sys/net/ipv4 && echo 0 > tcp_early_retrans && \
                    echo 0 > tcp_recovery && echo 300 > tcp_reordering";
    let timers = format!(
        "for family in -4 -6; do ip $family route show | while read -r route; do \
         ip $family route change $route rto_min {RETRANSMISSION_TIMER} || exit 1; done; done"
    );
    for node in lab.nodes() {
        for script in [settings, &timers] {
            lab.exec_text(&node, &["sh", "-ec", script]);
        }
    }
}

/// Returns further TCP counters of a node that may indicate a cause, for messages.
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

/// Samples of one `/metrics`, by name and rendered labels.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Reads the metrics of a process of a lab: `lb`, `lb-proxy`, `s1`, … Empty without an answer.
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

    /// Returns true if the process answered.
    pub fn is_there(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Returns a sample by its full name, or the sum over all labels; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        let of_family = |sample: &str| {
            sample == name || sample.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
        };
        self.samples.iter().filter(|(sample, _)| of_family(sample)).map(|(_, v)| *v as u64).sum()
    }

    /// Returns every nonzero sample of `names` as text.
    pub fn not_zero(&self, names: &[&str]) -> Vec<String> {
        let values = names.iter().map(|name| (name, self.get(name)));
        values.filter(|(_, value)| *value != 0).map(|(name, v)| format!("{name} {v}")).collect()
    }

    /// Returns nonzero counters of faults and of fallbacks with their reasons, for messages.
    pub fn noteworthy(&self) -> String {
        let wanted =
            ["fallbacks", "migrations_", "lost", "refused", "expired", "resets", "returns", "rel"];
        let chosen = self.samples.iter().filter(|(name, value)| {
            **value != 0.0 && !name.contains("_bucket") && wanted.iter().any(|w| name.contains(w))
        });
        chosen.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Counts the open descriptors of a process by kind, without objects that a server keeps open.
pub fn descriptors(pid: u64) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    for target in entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
        let target = target.display().to_string();
        if target.contains("/objects/") {
            continue;
        }
        // The number in `socket:[123]` differs for each socket.
        let kind = target.split(":[").next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Waits until `condition` holds, at most for `most`. Returns true if it holds.
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
