//! Runs a session against one front end and records the responses; compares two such records.

use crate::client::{Broken, Client, End, Pace, Response, Target};
use crate::session::{Batch, HOST, Leave, OWN, Object, Oracle, Request, Session};
use rustls::ClientConfig;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a client's wait. It exceeds the lease, after which lost connections are reset.
pub const PATIENCE: Duration = Duration::from_secs(25);
/// Maximum number of pauses of a slow reader, so that a session ends.
const SLOW_PAUSES_MAX: u32 = 64;

/// A front end under test.
#[derive(Debug, Clone)]
pub struct Side {
    /// Addresses: IPv4, IPv6.
    pub addresses: [IpAddr; 2],
    /// Ports: plain, TLS.
    pub ports: [u16; 2],
    /// Configurations: TLS 1.3 and 1.2, TLS 1.2 only.
    pub tls: [Arc<ClientConfig>; 2],
    /// Host of the requests.
    pub host: String,
    /// Prefix of names that are private to the session.
    pub own: String,
}

/// Record of a session.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Requests with their responses; the last response may be incomplete.
    pub exchanges: Vec<(Request, Response)>,
    /// End of the connection.
    pub end: End,
    /// The client's port; 0 if it did not connect.
    pub port: u16,
}

/// Runs a session.
pub fn play(session: &Session, side: &Side) -> Seen {
    let mut seen = Seen { exchanges: Vec::new(), end: End::Open, port: 0 };
    let target = Target {
        address: SocketAddr::new(
            side.addresses[usize::from(session.v6)],
            side.ports[usize::from(session.tls)],
        ),
        tls: session
            .tls
            .then(|| (side.tls[usize::from(session.tls12)].clone(), "objects.lab".to_owned())),
        receive_buffer_bytes: session.receive_buffer_bytes,
        patience: PATIENCE,
    };
    match Client::connect(&target) {
        Ok(client) => {
            seen.port = client.port();
            seen.end = run(session, side, client, &mut seen.exchanges);
        }
        Err(error) => seen.end = End::Failed(format!("connecting: {error}")),
    }
    seen
}

fn run(
    session: &Session,
    side: &Side,
    mut client: Client,
    exchanges: &mut Vec<(Request, Response)>,
) -> End {
    if let Some((chunk_bytes, pause)) = session.slow {
        client.set_pace(Pace { chunk_bytes, pause, pauses_max: SLOW_PAUSES_MAX });
    }
    let last = session.batches.len().saturating_sub(1);
    for (number, batch) in session.batches.iter().enumerate() {
        std::thread::sleep(batch.before);
        // If sending fails, reading returns the reason.
        let _ = send(&mut client, batch, side);
        if number == last {
            match session.leave {
                Leave::HalfClose => drop(client.finish_sending()),
                Leave::Abort(bytes) | Leave::Walk(bytes) => client.budget_bytes = Some(bytes),
                _ => {}
            }
        }
        for request in &batch.requests {
            match client.response(request.head_only) {
                Ok(response) => {
                    let over = response.closes();
                    exchanges.push((request.clone(), response));
                    if over {
                        return client.wait_end();
                    }
                }
                Err(Broken { partial, why }) => {
                    exchanges.extend(partial.map(|partial| (request.clone(), partial)));
                    if let Leave::Abort(_) = session.leave {
                        client.abort();
                    }
                    return why;
                }
            }
        }
    }
    match session.leave {
        Leave::Finish => {
            drop(client.finish_sending());
            client.wait_end()
        }
        Leave::HalfClose | Leave::Said | Leave::Bad => client.wait_end(),
        Leave::Abort(_) => {
            client.abort();
            End::Enough
        }
        Leave::Walk(_) => End::Enough,
        Leave::Drop => End::Open,
    }
}

/// Renders a request.
fn render(request: &Request, side: &Side) -> Vec<u8> {
    let mut bytes = request.head.replace(HOST, &side.host).replace(OWN, &side.own).into_bytes();
    bytes.extend(&request.body);
    bytes
}

fn send(client: &mut Client, batch: &Batch, side: &Side) -> std::io::Result<()> {
    let bytes: Vec<u8> = batch.requests.iter().flat_map(|request| render(request, side)).collect();
    let mut splits: Vec<(usize, u64)> =
        batch.splits.iter().map(|(part, ms)| (bytes.len() * part / 1000, *ms)).collect();
    splits.sort_unstable();
    let mut sent = 0;
    for (at, pause_ms) in splits {
        if at > sent {
            client.send(&bytes[sent..at])?;
            sent = at;
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    client.send(&bytes[sent..])
}

/// Returns the headers of a response that must be equal for both front ends, in sorted order.
///
/// Only these may differ:
/// - the order of headers: the proxy moves Content-Length;
/// - `Date`, because the second differs;
/// - for a session's own names, `Last-Modified` and `ETag`, because the file differs;
/// - for refusals (see [`is_refusal`]), the text of the reason with its length and type, `Allow`
///   and `Retry-After`: balancer and server have different texts.
fn comparable(request: &Request, response: &Response) -> Vec<(String, String)> {
    let refusal = is_refusal(request, response);
    let kept = |name: &str| match name {
        "date" => false,
        "last-modified" | "etag" => !request.own,
        "content-length" | "content-type" | "allow" | "retry-after" => !refusal,
        _ => true,
    };
    let mut headers: Vec<_> =
        response.headers.iter().filter(|(name, _)| kept(name)).cloned().collect();
    headers.sort();
    headers
}

/// Returns true for the refusal of an invalid request, by the balancer or by the owning server.
fn is_refusal(request: &Request, response: &Response) -> bool {
    request.bad && response.status() >= 400
}

/// Compares a record with the objects; returns the first error.
pub fn check(seen: &Seen, objects: &[Object]) -> Option<String> {
    if seen.end == End::TimedOut {
        return Some(format!("hangs after {} responses", seen.exchanges.len()));
    }
    seen.exchanges.iter().enumerate().find_map(|(number, (request, response))| {
        let expected: (u16, &[u8]) = match &request.oracle {
            Oracle::Any => return None,
            Oracle::Status(status) => (*status, &[]),
            Oracle::Whole(object) => (200, &objects[*object].bytes),
            Oracle::Content(content) => (200, content),
            Oracle::Part(object, part) => (206, &objects[*object].bytes[part.clone()]),
        };
        let title = request.title();
        if request.bad {
            return None;
        }
        if response.status() != expected.0 {
            return Some(format!("response {number} to {title}: {response:?}, not {}", expected.0));
        }
        if matches!(request.oracle, Oracle::Status(_)) {
            return None;
        }
        let right = match response.whole {
            true => response.body == expected.1,
            false => expected.1.starts_with(&response.body),
        };
        let at = response.body.iter().zip(expected.1).position(|(a, b)| a != b);
        (!right).then(|| format!("response {number} to {title}: wrong bytes from {at:?} on"))
    })
}

/// Returns the first difference between two records of a session.
pub fn difference(session: &Session, one: &Seen, other: &Seen) -> Option<String> {
    // The progress of a client that leaves early does not depend on the front end.
    let leaves = matches!(session.leave, Leave::Abort(_) | Leave::Walk(_));
    let counts = (one.exchanges.len(), other.exchanges.len());
    for (number, (first, second)) in one.exchanges.iter().zip(&other.exchanges).enumerate() {
        if let Some(what) = differ(&first.0, &first.1, &second.1) {
            let title = first.0.title();
            return Some(format!("response {number} to {title}: {what}"));
        }
    }
    if !leaves && (counts.0 != counts.1 || one.end != other.end) {
        return Some(format!(
            "{} responses and {:?}, against {} responses and {:?}",
            counts.0, one.end, counts.1, other.end
        ));
    }
    let ends = [&one.end, &other.end];
    let expected = |end: &End| matches!(end, End::Enough | End::Open | End::Closed);
    match leaves && ends.iter().any(|end| !expected(end)) && one.end != other.end {
        true => Some(format!("{:?} against {:?}", one.end, other.end)),
        false => None,
    }
}

fn differ(request: &Request, one: &Response, other: &Response) -> Option<String> {
    if one.status_line != other.status_line {
        return Some(format!("{one:?} against {other:?}"));
    }
    let headers = (comparable(request, one), comparable(request, other));
    if headers.0 != headers.1 {
        return Some(format!("headers {:?} against {:?}", headers.0, headers.1));
    }
    if is_refusal(request, one) {
        return None;
    }
    let common = one.body.len().min(other.body.len());
    if one.whole && other.whole && one.body.len() != other.body.len() {
        let (a, b) = (one.body.len(), other.body.len());
        return Some(format!("bodies of {a} against {b} bytes"));
    }
    let at = one.body[..common].iter().zip(&other.body[..common]).position(|(a, b)| a != b)?;
    Some(format!("bodies differ from byte {at} on"))
}
