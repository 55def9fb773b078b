//! The admin endpoints of a lab's processes, asked from inside their namespaces.

use crate::lab::plan::{ADMIN_PORT, Node, Plan};
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr};
use unlade_command::http::{self, Bounds};
use unlade_command::namespace;

/// The response of the admin endpoint on `node` to a GET of `path`.
///
/// # Errors
/// No answer comes, or one with another status than 200.
pub fn get(plan: &Plan, node: Node, path: &str) -> Result<String> {
    get_from(plan, node, ADMIN_PORT, path)
}

/// The response of the admin endpoint at `port` of `node` to a GET of `path`.
///
/// # Errors
/// No answer comes, or one with another status than 200.
pub fn get_from(plan: &Plan, node: Node, port: u16, path: &str) -> Result<String> {
    let body = namespace::inside(&plan.namespace(node), || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(http::get(address, path, Bounds::default())?)
    });
    let body = body.with_context(|| format!("{path} of the admin endpoint of {node}"))?;
    String::from_utf8(body.into()).context("the answer is no text")
}

/// The sum of a family's samples in an OpenMetrics text, over all its labels; `name` is the
/// samples' name. 0 where there is none.
pub fn sum(metrics: &str, name: &str) -> u64 {
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let values = samples.filter_map(|rest| match rest.chars().next() {
        Some('{') => rest.split_once("} ").map(|(_, value)| value),
        Some(' ') => rest.get(1..),
        _ => None,
    });
    values.filter_map(|value| value.trim().parse::<f64>().ok()).map(|value| value as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_add_up_over_labels() {
        let text = "# TYPE a counter\na_total 7\nab_total 5\nb_total{x=\"1 2\"} 2\n\
                    b_total{x=\"} 9\"} 3\n# EOF\n";
        assert_eq!(sum(text, "a_total"), 7);
        assert_eq!(sum(text, "b_total"), 2);
        assert_eq!(sum("b_total{x=\"y\"} 2\nb_total{x=\"z\"} 3\n", "b_total"), 5);
        assert_eq!(sum(text, "c_total"), 0);
    }
}
