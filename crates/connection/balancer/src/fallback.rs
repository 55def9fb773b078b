//! Fallbacks: requests that are proxied although their route offloads. Each is counted by its
//! reason, and logged with its cause, route and server.
//!
//! A broken server or an attack causes thousands of fallbacks a second, so each reason is logged
//! at most once a second. The line contains the number of suppressed lines.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use unlade_handoff_protocol::frame::RefuseReason;
use unlade_metrics::{Event, Fallback, Meter};
use unlade_migration::exporter::MigrationFailure;
use unlade_steering::SteerError;
use unlade_sys::repair::RepairError;

use crate::route::Route;
use crate::server::Server;

/// Shortest time between two log lines of one reason, on one worker.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why a connection was not handed over, or came back unmoved. The constructors are all
/// causes of a fallback, in the order in which a request meets them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declined {
    /// The counted reason.
    pub reason: Fallback,
    /// The cause: the underlying error, with its errno where the kernel returned one.
    pub cause: Cow<'static, str>,
}

impl Declined {
    fn new(reason: Fallback, cause: impl Into<Cow<'static, str>>) -> Declined {
        Declined { reason, cause: cause.into() }
    }

    /// Only a proxy can serve the request.
    pub(crate) fn request() -> Declined {
        Declined::new(Fallback::Request, "the request has Upgrade or Expect")
    }

    /// This balancer drains.
    pub(crate) fn draining() -> Declined {
        Declined::new(Fallback::Draining, "this balancer drains")
    }

    /// This process cannot move connections.
    pub(crate) fn unsupported() -> Declined {
        let cause = "this process moves no connections; the log of its start has the reason";
        Declined::new(Fallback::Unsupported, cause)
    }

    /// No control channel to the server is up.
    pub(crate) fn channel_down() -> Declined {
        Declined::new(Fallback::ChannelDown, "no control channel to the server is up")
    }

    /// `auto` expects that proxying is cheaper.
    pub(crate) fn policy() -> Declined {
        Declined::new(Fallback::PolicyAuto, "proxying is expected to be cheaper")
    }

    /// Too many bytes wait for the control channel.
    pub(crate) fn outbox_full() -> Declined {
        Declined::new(Fallback::Overloaded, "the control channel has too many bytes to send")
    }

    /// Responses of the connection went to the client directly.
    pub(crate) fn direct_return() -> Declined {
        let cause = "responses of this connection went to the client directly";
        Declined::new(Fallback::DirectReturn, cause)
    }

    /// The client has closed its direction.
    pub(crate) fn half_closed() -> Declined {
        Declined::new(Fallback::NotEstablished, "the client has closed its direction")
    }

    /// More input waits than a snapshot carries.
    pub(crate) fn unread(read_bytes: usize, queued_bytes: usize) -> Declined {
        let cause = format!("{read_bytes} bytes are read and {queued_bytes} wait in the socket");
        Declined::new(Fallback::QueueTooLong, cause)
    }

    /// The record layer owes bytes to the client, is closed, or has failed.
    pub(crate) fn record_layer() -> Declined {
        Declined::new(Fallback::TlsState, "the record layer has output, is closed, or has failed")
    }

    /// The client has not acknowledged earlier responses.
    pub(crate) fn unacknowledged() -> Declined {
        let cause = "the client has not acknowledged earlier responses";
        Declined::new(Fallback::QueueTooLong, cause)
    }

    /// The flow has no place in the steering.
    pub(crate) fn steering(error: &SteerError) -> Declined {
        let reason = match error {
            SteerError::TableFull => Fallback::TableFull,
            _ => Fallback::SteerFailed,
        };
        Declined::new(reason, error.to_string())
    }

    /// The socket could not be frozen or read.
    pub(crate) fn socket(error: &RepairError) -> Declined {
        let reason = match error {
            RepairError::Refused(_) => Fallback::Unsupported,
            RepairError::NotEstablished(_) => Fallback::NotEstablished,
            RepairError::QueueTooLong { .. } | RepairError::Unsent(_) => Fallback::QueueTooLong,
            RepairError::AddressNotLocal(_)
            | RepairError::FlowInUse(_)
            | RepairError::Call { .. } => Fallback::Snapshot,
        };
        Declined::new(reason, error.to_string())
    }

    /// The server refused the offer, or did not answer it.
    pub(crate) fn failed(failure: MigrationFailure) -> Declined {
        match failure {
            MigrationFailure::Refused(RefuseReason::Overloaded) => {
                Declined::new(Fallback::Overloaded, "the server has adopted as many as it may")
            }
            MigrationFailure::Refused(RefuseReason::Draining) => {
                Declined::new(Fallback::Draining, "the server drains")
            }
            MigrationFailure::Refused(RefuseReason::AddressNotLocal) => {
                let cause = "the virtual IP is not configured on the server; add it there to lo";
                Declined::new(Fallback::AddressNotLocal, cause)
            }
            MigrationFailure::Refused(other) => {
                let cause = format!("the server refused: {other:?}; its log has the error");
                Declined::new(Fallback::RestoreFailed, cause)
            }
            MigrationFailure::ChannelDown => {
                Declined::new(Fallback::ChannelDown, "the control channel broke during the offer")
            }
            MigrationFailure::Deadline => {
                Declined::new(Fallback::Deadline, "the server did not answer the offer in time")
            }
        }
    }

    /// A returned connection has more unread input than an offer carries.
    pub(crate) fn returned_unread(unread_bytes: usize) -> Declined {
        let cause = format!("{unread_bytes} bytes follow those of an offer");
        Declined::new(Fallback::QueueTooLong, cause)
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
        let cause = &*declined.cause;
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
        Fallback::PolicyAuto | Fallback::Request | Fallback::DirectReturn => Severity::Policy,
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
