//! Denied requests: counted by reason, and logged. The log has a bounded number of lines of each
//! reason for each second, because anyone who reaches the gateway can cause them: a flood of one
//! reason hides no other. Denials without a line are counted.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use unlade_fn_model::lambda::{Denial, Refusal};
use unlade_metrics::{Event, FnDenial, Meter};

use crate::auth::Caller;

/// Most lines of a reason in a [`WINDOW`].
const LINES_MAX: u32 = 20;
/// Longest text of a caller in a line, in bytes.
const TEXT_BYTES_MAX: usize = 256;
const WINDOW: Duration = Duration::from_secs(1);

/// The lines of one reason.
#[derive(Debug, Default)]
struct Budget {
    begin: Cell<Option<Instant>>,
    lines: Cell<u32>,
    omitted: Cell<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Denials {
    /// One for each reason, in the order of [`FnDenial::ALL`].
    budgets: Vec<Budget>,
}

impl Default for Denials {
    fn default() -> Denials {
        Denials { budgets: FnDenial::ALL.iter().map(|_| Budget::default()).collect() }
    }
}

/// A denied request.
#[derive(Clone, Copy, Debug)]
pub struct Denied<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, as received.
    pub path: &'a str,
    /// The caller, if it is authenticated.
    pub caller: Option<&'a Caller>,
    /// The address that it came from.
    pub peer: SocketAddr,
}

/// The reason for which a refusal counts as a denial.
pub fn reason(refusal: &Refusal) -> Option<FnDenial> {
    match refusal {
        Refusal::Denied(denial, _) => Some(match denial {
            Denial::Missing => FnDenial::Missing,
            Denial::Incomplete => FnDenial::Incomplete,
            Denial::Unrecognised => FnDenial::Unrecognised,
            Denial::Expired => FnDenial::Expired,
            Denial::Signature => FnDenial::Signature,
            Denial::Access => FnDenial::Access,
        }),
        Refusal::Foreign(_) | Refusal::Taken(_) => Some(FnDenial::Tenant),
        _ => None,
    }
}

/// The start of a text that a caller has chosen.
fn start(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

impl Denials {
    /// Counts and logs a refusal, if it is a denial.
    pub fn note(&self, meter: &Meter, refusal: &Refusal, denied: Denied<'_>) {
        let Some(reason) = reason(refusal) else { return };
        meter.add(Event::FnDenied(reason));
        let Some(omitted) = self.may_log(reason, Instant::now()) else {
            meter.add(Event::FnDenialUnlogged(reason));
            return;
        };
        let (reason, why) = (reason.as_str(), refusal.message());
        let Denied { method, path, caller, peer } = denied;
        let (why, path) = (start(&why), start(path));
        let caller = caller.map(ToString::to_string);
        tracing::warn!(reason, %peer, caller, method, path, omitted, "request denied: {why}");
    }

    /// Returns the number of lines of a reason that were omitted before, if a line may be logged
    /// now.
    fn may_log(&self, reason: FnDenial, now: Instant) -> Option<u64> {
        let at = FnDenial::ALL.iter().position(|found| *found == reason)?;
        self.budgets.get(at)?.take(now)
    }
}

impl Budget {
    fn take(&self, now: Instant) -> Option<u64> {
        if self.begin.get().is_none_or(|begin| now.saturating_duration_since(begin) >= WINDOW) {
            self.begin.set(Some(now));
            self.lines.set(0);
        }
        if self.lines.get() >= LINES_MAX {
            self.omitted.set(self.omitted.get() + 1);
            return None;
        }
        self.lines.set(self.lines.get() + 1);
        Some(self.omitted.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two floods, and a single denial behind each of them.
    #[test]
    fn a_denial_without_a_line_is_counted_by_its_reason() {
        let (denials, meter, lines) = (Denials::default(), Meter::new(), Lines::default());
        let peer = "192.0.2.1:7".parse().unwrap();
        let denied = Denied { method: "GET", path: "/x", caller: None, peer };
        let of = |denial: Denial| Refusal::Denied(denial, "no".to_owned());
        // Long floods: however slow the machine is, most of their lines are of one window.
        let floods = [(Denial::Missing, FnDenial::Missing), (Denial::Expired, FnDenial::Expired)];
        let count = 10_000;
        tracing::subscriber::with_default(lines.clone(), || {
            for (denial, _) in floods {
                (0..count).for_each(|_| denials.note(&meter, &of(denial), denied));
            }
            denials.note(&meter, &of(Denial::Signature), denied);
        });
        let lines = lines.0.lock().unwrap();
        let of_reason = |reason: FnDenial| {
            let word = format!("reason={:?}", reason.as_str());
            lines.iter().filter(|line| line.contains(&word)).count() as u64
        };
        for (_, reason) in floods {
            let unlogged = meter.value(Event::FnDenialUnlogged(reason));
            assert!(unlogged > 0, "{reason:?}");
            assert_eq!(of_reason(reason) + unlogged, count, "{reason:?}");
            assert_eq!(meter.value(Event::FnDenied(reason)), count, "{reason:?}");
        }
        assert_eq!(of_reason(FnDenial::Signature), 1);
        assert_eq!(meter.value(Event::FnDenialUnlogged(FnDenial::Signature)), 0);
    }

    /// The text of events, for as long as it is the subscriber.
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            struct Text(String);
            impl tracing::field::Visit for Text {
                fn record_debug(
                    &mut self,
                    field: &tracing::field::Field,
                    value: &dyn std::fmt::Debug,
                ) {
                    self.0.push_str(&format!("{}={value:?} ", field.name()));
                }
            }
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push(text.0);
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_denial_is_counted_and_logged() {
        let (denials, meter, lines) = (Denials::default(), Meter::new(), Lines::default());
        let caller = Caller::Tenant("guest".to_owned());
        let peer = "192.0.2.1:7".parse().unwrap();
        let foreign = Refusal::Foreign("f".to_owned());
        let denied = Denied { method: "GET", path: "/x", caller: Some(&caller), peer };
        tracing::subscriber::with_default(lines.clone(), || {
            denials.note(&meter, &foreign, denied);
            denials.note(&meter, &Refusal::NotFound("f".to_owned()), denied);
        });
        let lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in ["reason=\"tenant\"", "tenant guest", "192.0.2.1:7", "path=\"/x\""] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        assert_eq!(meter.value(Event::FnDenied(FnDenial::Tenant)), 1);
        let all = FnDenial::ALL.iter().map(|reason| meter.value(Event::FnDenied(*reason)));
        assert_eq!(all.sum::<u64>(), 1);
        // A refusal for another tenant's function looks as one for none.
        let absent = Refusal::NotFound("f".to_owned());
        assert_eq!((foreign.status(), foreign.code()), (absent.status(), absent.code()));
        assert_eq!(foreign.body(), absent.body());
    }

    #[test]
    fn the_log_has_a_bounded_number_of_lines_a_second() {
        let (denials, begin) = (Denials::default(), Instant::now());
        let of = FnDenial::Missing;
        let count = |at| (0..100).filter(|_| denials.may_log(of, at).is_some()).count();
        assert_eq!(count(begin), LINES_MAX as usize);
        assert_eq!(count(begin + WINDOW / 2), 0);
        // A flood of one reason takes nothing from the others, and hides none of them.
        for other in FnDenial::ALL.iter().filter(|reason| **reason != of) {
            let lines = (0..30).filter_map(|_| denials.may_log(*other, begin + WINDOW / 2));
            assert_eq!(lines.collect::<Vec<_>>(), [0; LINES_MAX as usize], "{other:?}");
        }
        assert_eq!(denials.may_log(of, begin + WINDOW), Some(180));
        assert_eq!(denials.may_log(of, begin + WINDOW), Some(0));
        let other = denials.may_log(FnDenial::Tenant, begin + WINDOW * 2);
        assert_eq!(other, Some(10));
    }
}
