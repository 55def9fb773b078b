//! Leftovers after all clients have gone: flows that still have an owner, connections that a
//! kernel still has, sockets that a process still holds.

use super::super::tcp;
use crate::lab::plan::{Front, Node};
use crate::lab::process::session_members;
use crate::lab::state::State;
use crate::scrape;
use anyhow::Result;
use std::fs;
use std::time::{Duration, Instant};

/// How long what is on its way out may take: lingering flows, delayed closes, health checks.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(200);

/// The leftovers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// In the balancer's table and the servers'.
    pub flows: u64,
    /// On the service's port, in the kernels of balancer and servers, frozen ones included.
    pub connections: u64,
    /// More than before in any process, without those between balancer and servers.
    pub sockets: u64,
}

/// Sockets of each process that holds connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets(Vec<u64>);

impl Sockets {
    /// As it is now.
    ///
    /// # Errors
    /// A process does not answer.
    pub fn count(state: &State) -> Result<Sockets> {
        let plan = state.plan();
        let nodes = [(Node::Lb, Front::Offload.process().to_owned())].into_iter();
        let nodes = nodes.chain(plan.servers().map(|node| (node, node.to_string())));
        let counts = nodes.map(|(node, process)| {
            let metrics = scrape::get(&plan, node, "/metrics")?;
            let pid = state.process(&process).map(|process| process.identity.pid);
            let members = pid.map(session_members).unwrap_or_default();
            let held: u64 = members.into_iter().map(sockets_of).sum();
            Ok(held.saturating_sub(ordinary(&metrics)))
        });
        counts.collect::<Result<_>>().map(Sockets)
    }

    fn more_than(&self, earlier: &Sockets) -> u64 {
        let both = self.0.iter().zip(&earlier.0);
        both.map(|(now, then)| now.saturating_sub(*then)).sum()
    }
}

/// Pooled and ordinary connections between balancer and servers come and go as they are needed.
fn ordinary(metrics: &str) -> u64 {
    [
        "unlade_lb_upstream_idle_connections",
        "unlade_lb_upstream_busy_connections",
        "unlade_backend_open_connections",
    ]
    .iter()
    .map(|name| scrape::sum(metrics, name))
    .sum()
}

fn sockets_of(pid: u32) -> u64 {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count() as u64
}

impl Leftovers {
    fn look(state: &State, before: Option<&Sockets>) -> Result<Leftovers> {
        let plan = state.plan();
        let port = Front::Offload.port(plan.spec.tls);
        let mut left = Leftovers::default();
        for node in [Node::Lb].into_iter().chain(plan.servers()) {
            let metrics = scrape::get(&plan, node, "/metrics")?;
            left.flows += scrape::sum(&metrics, "unlade_flow_entries");
            left.flows += scrape::sum(&metrics, "unlade_backend_adopted_connections");
            left.connections += tcp::connections(&plan, node, port)? as u64;
        }
        if let Some(before) = before {
            left.sockets = Sockets::count(state)?.more_than(before);
        }
        Ok(left)
    }

    pub fn is_clean(&self) -> bool {
        *self == Leftovers::default()
    }
}

/// Waits until nothing is left, or for as long as that may take. Sockets are compared with
/// `before`, where that is given.
///
/// # Errors
/// A process does not answer.
pub fn settle(state: &State, before: Option<&Sockets>) -> Result<Leftovers> {
    let deadline = Instant::now() + SETTLE_MAX;
    loop {
        let left = Leftovers::look(state, before)?;
        if left.is_clean() || Instant::now() >= deadline {
            return Ok(left);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_process_are_counted() {
        let before = sockets_of(std::process::id());
        let held: Vec<_> =
            (0..20).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        // Tests beside this one hold sockets as well.
        assert!(sockets_of(std::process::id()) + 10 >= before + held.len() as u64);
        assert_eq!(sockets_of(u32::MAX), 0);
    }

    #[test]
    fn only_more_is_left_over() {
        let before = Sockets(vec![5, 7]);
        assert_eq!(Sockets(vec![5, 7]).more_than(&before), 0);
        assert_eq!(Sockets(vec![3, 9]).more_than(&before), 2);
        assert!(!Leftovers { connections: 1, ..Leftovers::default() }.is_clean());
    }

    #[test]
    fn ordinary_connections_are_known() {
        let text = "unlade_lb_upstream_idle_connections 3\nunlade_lb_upstream_busy_connections 1\n";
        assert_eq!(ordinary(text), 4);
        assert_eq!(ordinary("unlade_backend_open_connections 2\n"), 2);
    }
}
