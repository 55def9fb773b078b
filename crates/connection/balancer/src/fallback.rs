//! Fallbacks: requests that are proxied although their route offloads. Each is counted by its
//! reason, and logged with its cause, route and server.
//!
//! A broken server or an attack causes thousands of fallbacks a second, so each reason is logged
//! at most once a second. The line contains the number of suppressed lines.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use unlade_metrics::{Event, Fallback, Meter};

use crate::pool::Server;
use crate::route::Route;

/// Shortest time between two log lines of one reason, on one worker.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why a connection was not handed over, or came back unmoved.
#[derive(Debug)]
pub(crate) struct Declined {
    /// The counted reason.
    pub reason: Fallback,
    /// The underlying error, with its errno where the kernel returned one.
    pub cause: Option<String>,
}

impl Declined {
    /// Creates a reason with the error that caused it.
    pub(crate) fn because(reason: Fallback, cause: impl ToString) -> Declined {
        Declined { reason, cause: Some(cause.to_string()) }
    }
}

impl From<Fallback> for Declined {
    fn from(reason: Fallback) -> Declined {
        Declined { reason, cause: None }
    }
}

/// The request of a fallback.
pub(crate) struct FallbackContext<'p> {
    /// The route of the request, where the configuration still has it.
    pub route: Option<&'p Route>,
    /// The server that the connection was meant for.
    pub server: Option<&'p Server>,
    /// The client's address.
    pub client: SocketAddr,
}

/// One worker's log of fallbacks.
#[derive(Debug, Default)]
pub(crate) struct Fallbacks {
    /// By reason: time of the last line, and number of lines suppressed since.
    written: RefCell<HashMap<Fallback, (Instant, u64)>>,
}

impl Fallbacks {
    /// Counts a fallback, and logs it unless its reason was logged within [`LOG_INTERVAL`].
    pub(crate) fn report(&self, meter: &Meter, declined: &Declined, place: &FallbackContext<'_>) {
        meter.add(Event::Fallback(declined.reason));
        let Some(left_out) = self.due(declined.reason, Instant::now()) else { return };
        let reason = declined.reason.as_str();
        let cause = declined.cause.as_deref().unwrap_or("-");
        let host = place.route.and_then(|route| route.host.as_deref()).unwrap_or("*");
        let prefix = place.route.map_or("?", |route| route.prefix.as_str());
        let server = place.server.map(|server| server.address.to_string());
        let server = server.as_deref().unwrap_or("?");
        let client = place.client;
        // The level is part of a static call site, so each level needs its own macro.
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    reason, cause, host, prefix, server, %client, left_out,
                    "request proxied instead of handed over"
                )
            };
        }
        match severity(declined.reason) {
            Severity::Policy => line!(debug),
            Severity::Load => line!(info),
            Severity::Fault => line!(warn),
        }
    }

    /// Returns how many lines of this reason were suppressed before the one that is due now;
    /// `None` if none is due.
    fn due(&self, reason: Fallback, now: Instant) -> Option<u64> {
        let mut written = self.written.borrow_mut();
        match written.get_mut(&reason) {
            Some((last, left_out)) if now.saturating_duration_since(*last) < LOG_INTERVAL => {
                *left_out += 1;
                None
            }
            Some(entry) => Some(std::mem::replace(entry, (now, 0)).1),
            None => {
                written.insert(reason, (now, 0));
                Some(0)
            }
        }
    }
}

/// Relevance of a fallback for an operator.
enum Severity {
    /// Expected: the policy or the request requires it.
    Policy,
    /// A limit, a drain, or the state of one connection.
    Load,
    /// Something is broken or not configured.
    Fault,
}

fn severity(reason: Fallback) -> Severity {
    match reason {
        Fallback::PolicyAuto | Fallback::Request => Severity::Policy,
        Fallback::NotEstablished
        | Fallback::QueueTooLong
        | Fallback::TableFull
        | Fallback::Overloaded
        | Fallback::Draining
        | Fallback::TlsState => Severity::Load,
        Fallback::ChannelDown
        | Fallback::Deadline
        | Fallback::Snapshot
        | Fallback::RestoreFailed
        | Fallback::AddressNotLocal
        | Fallback::SteerFailed
        | Fallback::Unsupported => Severity::Fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_logged_once_an_interval_and_says_how_many_were_left_out() {
        let log = Fallbacks::default();
        let start = Instant::now();
        assert_eq!(log.due(Fallback::Deadline, start), Some(0));
        for _ in 0..41 {
            assert_eq!(log.due(Fallback::Deadline, start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(log.due(Fallback::Snapshot, start), Some(0), "another reason has its own line");
        assert_eq!(log.due(Fallback::Deadline, start + LOG_INTERVAL), Some(41));
        assert_eq!(log.due(Fallback::Deadline, start + LOG_INTERVAL * 2), Some(0));
    }
}
