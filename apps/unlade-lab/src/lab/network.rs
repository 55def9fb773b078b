//! Builds the lab's network: namespaces, one bridge, a veth pair for each node, addresses,
//! link rates. Nothing is created in the root namespace but the namespaces' names.

use super::namespace::write_sysctls;
use super::plan::{Node, Plan, Rate, Toggle};
use anyhow::{Context, Result};
use unlade_command::namespace::inside;
use unlade_command::tools::{ip_batch, run};

/// Bytes that may leave at once, at least: a segmentation-offloaded packet of 64 KiB must fit,
/// or tbf would cut it up in software.
const BURST_BYTES_MIN: u64 = 128 * 1024;
/// Queue in front of a shaped link, in time at the link's rate.
const QUEUE_MS: u64 = 20;

/// Debian's default; a kernel built with another default would make figures of
/// different machines incomparable.
const CONGESTION_CONTROL: &str = "cubic";

/// Creates everything.
///
/// # Errors
/// A tool is missing or fails; what was built until then stays for `down` to remove.
pub fn build(plan: &Plan) -> Result<()> {
    allow_congestion_control()?;
    for node in plan.nodes().chain([Node::Switch]) {
        run("ip", &["netns", "add", &plan.namespace(node)])?;
    }
    build_switch(plan)?;
    for node in plan.nodes() {
        attach(plan, node).with_context(|| format!("building node {node}"))?;
    }
    Ok(())
}

/// A network namespace may choose only among the algorithms that the machine allows to everyone;
/// the one that labs use is added to them where it is missing.
fn allow_congestion_control() -> Result<()> {
    const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = std::fs::read_to_string(ALLOWED).with_context(|| format!("reading {ALLOWED}"))?;
    if allowed.split_whitespace().any(|name| name == CONGESTION_CONTROL) {
        return Ok(());
    }
    let more = format!("{} {CONGESTION_CONTROL}", allowed.trim());
    std::fs::write(ALLOWED, more)
        .with_context(|| format!("allowing {CONGESTION_CONTROL} in {ALLOWED}"))
}

fn build_switch(plan: &Plan) -> Result<()> {
    let switch = plan.namespace(Node::Switch);
    let off = [("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")];
    inside(&switch, || write_sysctls(&off.map(|(key, value)| (key.to_owned(), value))))?;
    // A switch does not ask a firewall about every frame; where the kernel's bridge does by
    // default, that is switched off.
    let hooks = ["iptables", "ip6tables", "arptables"]
        .map(|table| (format!("bridge/bridge-nf-call-{table}"), "0"));
    if std::path::Path::new("/proc/sys/net/bridge").exists() {
        inside(&switch, || write_sysctls(&hooks))?;
    }
    // Learning and forwarding at once: no spanning tree, no multicast snooping to wait for.
    let lines = [
        "link set lo up",
        "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        "link set br0 up",
    ];
    ip_batch(&switch, &lines.map(str::to_owned))
}

/// A node's namespace, its link to the switch, its addresses.
fn attach(plan: &Plan, node: Node) -> Result<()> {
    let namespace = plan.namespace(node);
    let switch = plan.namespace(Node::Switch);
    let port = node.to_string();
    inside(&namespace, || write_sysctls(&before_links(node)))?;
    let mut lines = vec![
        format!("link add eth0 type veth peer name {port} netns {switch}"),
        "link set lo up".to_owned(),
    ];
    lines.extend(addresses(plan, node));
    lines.push("link set eth0 up".to_owned());
    ip_batch(&namespace, &lines)?;
    inside(&namespace, || write_sysctls(&after_links(node)))?;
    ip_batch(&switch, &[format!("link set {port} master br0 up")])?;
    if plan.spec.offloads == Toggle::Off {
        for (namespace, device) in [(&namespace, "eth0"), (&switch, port.as_str())] {
            run("ip", &["netns", "exec", namespace, "ethtool", "-K", device, "tx", "off"])?;
        }
    }
    let rate = match node {
        Node::Client => plan.spec.client_rate,
        _ => plan.spec.rate,
    };
    if let Some(rate) = rate {
        shape(&namespace, "eth0", rate)?;
        shape(&switch, &port, rate)?;
    }
    Ok(())
}

fn addresses(plan: &Plan, node: Node) -> Vec<String> {
    let mut lines = vec![
        format!("addr add {}/24 dev eth0", plan.address_v4(node)),
        format!("addr add {}/64 dev eth0 nodad", plan.address_v6(node)),
    ];
    let (v4, v6) = (plan.virtual_v4(), plan.virtual_v6());
    match node {
        // Second, narrower and (IPv6) deprecated: the balancer's own connections leave from
        // its own address. From the virtual one a server could not answer: it has it itself.
        Node::Lb => {
            lines.push(format!("addr add {v4}/32 dev eth0"));
            lines.push(format!("addr add {v6}/128 dev eth0 nodad preferred_lft 0"));
        }
        // Direct server return: a server answers from the virtual IP but never claims it.
        Node::Server(_) => {
            lines.push(format!("addr add {v4}/32 dev lo"));
            lines.push(format!("addr add {v6}/128 dev lo nodad preferred_lft 0"));
        }
        Node::Client | Node::Switch => {}
    }
    lines
}

/// Settings that interfaces created later take over.
fn before_links(node: Node) -> Vec<(String, &'static str)> {
    let mut settings = vec![("ipv4/tcp_congestion_control".to_owned(), CONGESTION_CONTROL)];
    for scope in ["all", "default"] {
        settings.push((format!("ipv4/conf/{scope}/rp_filter"), "0"));
        settings.push((format!("ipv6/conf/{scope}/accept_ra"), "0"));
        settings.push((format!("ipv6/conf/{scope}/accept_dad"), "0"));
        settings.extend(arp_silence(node, scope));
    }
    settings
}

fn after_links(node: Node) -> Vec<(String, &'static str)> {
    let mut settings = vec![("ipv4/conf/eth0/rp_filter".to_owned(), "0")];
    settings.extend(arp_silence(node, "eth0"));
    settings
}

/// A server holds the virtual IP on `lo`: it must neither answer ARP for it nor announce it.
fn arp_silence(node: Node, scope: &str) -> Vec<(String, &'static str)> {
    match node {
        Node::Server(_) => vec![
            (format!("ipv4/conf/{scope}/arp_ignore"), "1"),
            (format!("ipv4/conf/{scope}/arp_announce"), "2"),
        ],
        _ => Vec::new(),
    }
}

/// Bytes that a shaped link may send at once: what it carries in 2 ms.
fn burst_bytes(rate: Rate) -> u64 {
    (rate.bits_per_s / 8 / 500).clamp(BURST_BYTES_MIN, 4 << 20)
}

fn shape(namespace: &str, device: &str, rate: Rate) -> Result<()> {
    let (bits, burst) = (format!("{}bit", rate.bits_per_s), burst_bytes(rate).to_string());
    let latency = format!("{QUEUE_MS}ms");
    let tc = ["tc", "qdisc", "replace", "dev", device, "root", "tbf"];
    let limits = ["rate", &bits, "burst", &burst, "latency", &latency];
    let words: Vec<&str> =
        ["netns", "exec", namespace].into_iter().chain(tc).chain(limits).collect();
    run("ip", &words).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_packets_fit_the_burst() {
        for rate in ["64kbit", "100mbit", "1gbit", "40gbit"] {
            let burst = burst_bytes(rate.parse().unwrap());
            assert!(burst >= 65_536 + 14, "{rate}: {burst}");
        }
    }
}
