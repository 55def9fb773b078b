//! The kernel's TCP counters in a namespace (RFC 4022, and Linux' own), and its sockets.

use crate::lab::plan::{Node, Plan};
use anyhow::{Context, Result};
use std::fs;
use std::ops::{AddAssign, Sub};
use unlade_command::namespace;

/// States of `/proc/net/tcp` (linux/net/tcp_states.h).
const STATE_TIME_WAIT: u8 = 6;
const STATE_LISTEN: u8 = 10;

/// Counters of one namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub retransmitted_segments: u64,
    /// Those of them that were sent because an acknowledgement was late, before any time-out (RFC
    /// 8985, tail loss probe).
    pub tail_probes: u64,
    pub sent_resets: u64,
    pub checksum_errors: u64,
    pub sent_segments: u64,
}

impl Counters {
    /// Of a node's namespace, since it was made.
    ///
    /// # Errors
    /// The namespace is absent, or its kernel does not say.
    pub fn read(plan: &Plan, node: Node) -> Result<Counters> {
        namespace::inside(&plan.namespace(node), || {
            let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
            let netstat = fs::read_to_string("/proc/thread-self/net/netstat")?;
            Counters::parse(&snmp, &netstat).context("/proc/net/snmp has no TCP counters")
        })
    }

    fn parse(snmp: &str, netstat: &str) -> Option<Counters> {
        let value = |name| value_of(snmp, "Tcp: ", name);
        Some(Counters {
            retransmitted_segments: value("RetransSegs")?,
            tail_probes: value_of(netstat, "TcpExt: ", "TCPLossProbes")?,
            sent_resets: value("OutRsts")?,
            checksum_errors: value("InCsumErrors")?,
            sent_segments: value("OutSegs")?,
        })
    }
}

/// The value of a name in a table of two lines, names and values, that begin with `prefix`.
fn value_of(table: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(prefix));
    let (mut names, mut values) = (lines.next()?.split(' '), lines.next()?.split(' '));
    let at = names.position(|other| other == name)?;
    values.nth(at)?.parse().ok()
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        let less = u64::saturating_sub;
        Counters {
            retransmitted_segments: less(
                self.retransmitted_segments,
                earlier.retransmitted_segments,
            ),
            tail_probes: less(self.tail_probes, earlier.tail_probes),
            sent_resets: less(self.sent_resets, earlier.sent_resets),
            checksum_errors: less(self.checksum_errors, earlier.checksum_errors),
            sent_segments: less(self.sent_segments, earlier.sent_segments),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.retransmitted_segments += other.retransmitted_segments;
        self.tail_probes += other.tail_probes;
        self.sent_resets += other.sent_resets;
        self.checksum_errors += other.checksum_errors;
        self.sent_segments += other.sent_segments;
    }
}

/// Counters of every node, in the order of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census(pub Vec<(Node, Counters)>);

impl Census {
    /// Reads them all.
    ///
    /// # Errors
    /// As for [`Counters::read`].
    pub fn take(plan: &Plan) -> Result<Census> {
        let read = |node| Ok((node, Counters::read(plan, node)?));
        plan.nodes().map(read).collect::<Result<_>>().map(Census)
    }

    /// Counts made after `earlier`, a reading of the same lab.
    pub fn since(&self, earlier: &Census) -> Census {
        let both = self.0.iter().zip(&earlier.0);
        Census(both.map(|((node, now), (_, then))| (*node, *now - *then)).collect())
    }

    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        self.0.iter().for_each(|(_, counters)| total += *counters);
        total
    }
}

/// Connections of a node's own kernel on a local port, frozen ones included; those that only
/// wait for stray packets are not counted.
///
/// # Errors
/// The namespace is absent.
pub fn connections(plan: &Plan, node: Node, local_port: u16) -> Result<usize> {
    namespace::inside(&plan.namespace(node), || {
        let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        let texts = tables.map(|table| fs::read_to_string(table).unwrap_or_default());
        Ok(texts.iter().map(|text| count(text, local_port)).sum())
    })
}

/// `  sl  local_address rem_address   st …`, addresses as hexadecimal `address:port`.
fn count(table: &str, local_port: u16) -> usize {
    let is_wanted = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let port = fields.next().and_then(|local| local.rsplit_once(':'));
        let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        let state = fields.nth(1).and_then(|state| u8::from_str_radix(state, 16).ok());
        port == Some(local_port)
            && state.is_some_and(|state| state != STATE_LISTEN && state != STATE_TIME_WAIT)
    };
    table.lines().skip(1).filter(is_wanted).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNMP: &str = "\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm OutSegs RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 500 4 0 2 1
";
    const NETSTAT: &str = "\
TcpExt: SyncookiesSent TCPLossProbes TCPTimeouts
TcpExt: 7 3 1
";

    #[test]
    fn counters_are_found_by_name() {
        let counters = Counters::parse(SNMP, NETSTAT).unwrap();
        assert_eq!((counters.retransmitted_segments, counters.tail_probes), (4, 3));
        assert_eq!((counters.sent_resets, counters.checksum_errors), (2, 1));
        assert_eq!(counters.sent_segments, 500);
        assert_eq!(counters - counters, Counters::default());
        assert_eq!(Counters::parse("Tcp: OutSegs\nTcp: 1\n", NETSTAT), None);
        assert_eq!(Counters::parse(SNMP, "TcpExt: TCPLossProbes\n"), None);
    }

    #[test]
    fn a_census_adds_up() {
        let counters = Counters::parse(SNMP, NETSTAT).unwrap();
        let early = Census(vec![(Node::Client, Counters::default()), (Node::Lb, counters)]);
        let late = Census(vec![(Node::Client, counters), (Node::Lb, counters)]);
        let delta = late.since(&early);
        assert_eq!(delta.0[1].1, Counters::default());
        assert_eq!(delta.total(), counters);
        assert_eq!(late.total().sent_segments, 1000);
    }

    #[test]
    fn listeners_and_waiting_sockets_are_no_connections() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            0: 0100000A:0050 00000000:0000 0A 0:0\n\
            1: 0100000A:0050 0200000A:C001 01 0:0\n\
            2: 0100000A:0050 0200000A:C002 06 0:0\n\
            3: 0100000A:0051 0200000A:C003 01 0:0\n\
            4: 000000000000000000000000:0050 000000000000000000000000:C004 08 0:0\n";
        assert_eq!(count(table, 80), 2);
        assert_eq!(count(table, 81), 1);
        assert_eq!(count("", 80), 0);
    }

    #[test]
    fn this_kernel_counts() {
        let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        assert!(Counters::parse(&read("snmp").unwrap(), &read("netstat").unwrap()).is_some());
    }
}
