//! The admin endpoints of a lab's processes, asked from inside their namespaces.

use crate::lab::plan::{ADMIN_PORT, Node, Plan};
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;
use unlade_command::namespace;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

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
    let answer = namespace::inside(&plan.namespace(node), || {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    });
    let answer = answer.with_context(|| format!("asking the admin endpoint of {node}"))?;
    body(&answer).with_context(|| format!("{path} of the admin endpoint of {node}"))
}

fn body(answer: &str) -> Result<String> {
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no head")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("answered `{status}`");
    }
    Ok(body.to_owned())
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

    #[test]
    fn only_a_good_answer_is_one() {
        assert_eq!(body("HTTP/1.1 200 OK\r\nA: b\r\n\r\nx\r\n\r\ny").unwrap(), "x\r\n\r\ny");
        assert!(body("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err().to_string().contains("404"));
        assert!(body("").is_err());
    }
}
