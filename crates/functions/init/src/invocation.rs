//! The states of an instance: what `bootstrap` may ask next, and what an invocation gets. No I/O.

use bytes::Bytes;
use serde_json::json;
use unlade_guest_protocol::{HandlerStatus, InvokeHead};

/// Most bytes of a response, as Lambda's.
pub const RESPONSE_BYTES_MAX: usize = 6 * 1024 * 1024;
/// The handler of a trial before a deployment (`docs/functions/runtimes.md`): `bootstrap` has to
/// ask for an event, and gets none.
const TRIAL: &str = "unlade_guest.check.handler";

/// The end of an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The invocation.
    pub id: String,
    /// Its status.
    pub status: HandlerStatus,
    /// The result, or the error as JSON.
    pub result: Bytes,
}

/// The step after the end of `bootstrap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The instance stays, and a trial has this outcome.
    Stay(Option<Outcome>),
    /// The instance ends, and the host answers its invocation.
    Leave,
}

/// A request of `bootstrap` that is refused, as Lambda refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The state of the runtime does not allow the request: 403.
    State,
    /// No invocation with this id waits for a response: 400.
    Id,
}

/// The state of `bootstrap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runtime {
    /// It has not asked for an event yet.
    Starting,
    /// It waits for an event.
    Asking,
    /// It has an event.
    Working,
    /// It has responded.
    Idle,
    /// It has reported that it cannot start, or has ended; it is started again with the next
    /// invocation.
    Failed,
}

/// An invocation that has no outcome yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Current {
    head: InvokeHead,
    event: Bytes,
    is_delivered: bool,
}

/// The states.
#[derive(Debug)]
pub struct Invocations {
    runtime: Runtime,
    current: Option<Current>,
}

impl Invocations {
    /// `bootstrap` was started.
    pub fn new() -> Invocations {
        Invocations { runtime: Runtime::Starting, current: None }
    }

    /// An invocation has arrived; the host sends one at a time. Returns true if `bootstrap` has to
    /// be started again for it.
    pub fn invoked(&mut self, head: InvokeHead, event: Bytes) -> bool {
        self.current = Some(Current { head, event, is_delivered: false });
        self.runtime == Runtime::Failed
    }

    /// `bootstrap` was started again.
    pub fn restarted(&mut self) {
        self.runtime = Runtime::Starting;
    }

    /// `bootstrap` asks for an event.
    ///
    /// # Errors
    /// It has one, or it has failed.
    pub fn ask(&mut self) -> Result<(), Refusal> {
        match self.runtime {
            Runtime::Starting | Runtime::Asking | Runtime::Idle => {
                self.runtime = Runtime::Asking;
                Ok(())
            }
            Runtime::Working | Runtime::Failed => Err(Refusal::State),
        }
    }

    /// The event for a `bootstrap` that asks, once.
    pub fn deliver(&mut self) -> Option<(InvokeHead, Bytes)> {
        if self.runtime != Runtime::Asking {
            return None;
        }
        let current = self.current.as_mut().filter(|current| !current.is_delivered)?;
        if current.head.handler == TRIAL {
            return None;
        }
        current.is_delivered = true;
        self.runtime = Runtime::Working;
        Some((current.head.clone(), current.event.clone()))
    }

    /// The outcome of a trial, if one waits and `bootstrap` asks for an event.
    pub fn tried(&mut self) -> Option<Outcome> {
        let waits = self.current.as_ref().is_some_and(|current| current.head.handler == TRIAL);
        if self.runtime != Runtime::Asking || !waits {
            return None;
        }
        self.end(HandlerStatus::Done, Bytes::from_static(b"null"))
    }

    /// Checks that an invocation waits for a response.
    ///
    /// # Errors
    /// It does not.
    pub fn expects(&self, id: &str) -> Result<(), Refusal> {
        match &self.current {
            Some(current) if current.is_delivered && current.head.id == id => Ok(()),
            // Of an invocation that has its outcome, or that never was.
            _ => Err(Refusal::Id),
        }
    }

    /// `bootstrap` responds.
    ///
    /// # Errors
    /// No invocation with this id waits.
    pub fn respond(&mut self, id: &str, response: Response) -> Result<Option<Outcome>, Refusal> {
        self.expects(id)?;
        self.runtime = Runtime::Idle;
        Ok(match response {
            Response::Result(result) => self.end(HandlerStatus::Done, result),
            Response::Error(error) => self.end(HandlerStatus::Error, error),
            Response::TooLarge => self.end(HandlerStatus::Error, too_large()),
        })
    }

    /// `bootstrap` reports that it cannot start.
    ///
    /// # Errors
    /// It has started already.
    pub fn fail(&mut self, error: Bytes) -> Result<Option<Outcome>, Refusal> {
        if self.runtime != Runtime::Starting {
            return Err(Refusal::State);
        }
        self.runtime = Runtime::Failed;
        Ok(self.end(HandlerStatus::Error, error))
    }

    /// `bootstrap` has ended; `why` says how. Without an invocation it is started again with the
    /// next one; a trial gets the reason; any other invocation ends with the instance.
    pub fn ended(&mut self, why: &str) -> End {
        let is_trial = self.current.as_ref().map(|current| current.head.handler == TRIAL);
        match is_trial {
            Some(false) if self.runtime != Runtime::Failed => End::Leave,
            _ => {
                self.runtime = Runtime::Failed;
                End::Stay(self.end(HandlerStatus::Error, error("Runtime.ExitError", why)))
            }
        }
    }

    fn end(&mut self, status: HandlerStatus, result: Bytes) -> Option<Outcome> {
        let current = self.current.take()?;
        Some(Outcome { id: current.head.id, status, result })
    }
}

/// The response to an invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The result.
    Result(Bytes),
    /// An error of the function: JSON.
    Error(Bytes),
    /// More than [`RESPONSE_BYTES_MAX`].
    TooLarge,
}

fn too_large() -> Bytes {
    let message = format!(
        "Response payload size exceeded maximum allowed payload size ({RESPONSE_BYTES_MAX} bytes)."
    );
    error("Function.ResponseSizeTooLarge", &message)
}

/// An error as Lambda's callers get it.
pub fn error(kind: &str, message: &str) -> Bytes {
    json!({"errorType": kind, "errorMessage": message}).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_guest_protocol::CallContext;
    use unlade_testkit::cases;

    fn head(id: &str, handler: &str) -> InvokeHead {
        InvokeHead {
            id: id.to_owned(),
            handler: handler.to_owned(),
            function: "f".to_owned(),
            deadline_ms: 0,
            memory_mib: 128,
            event_bytes: 0,
            event_slot: None,
            context: CallContext::default(),
        }
    }

    /// The state of the invocation, as the host and `bootstrap` have seen it.
    #[derive(Clone, Debug, PartialEq)]
    enum Seen {
        Invoked(String),
        Asked,
        Delivered(String),
        Ended(String),
        Failed,
        Restarted,
    }

    /// The answers that are due, by a search through all that has happened.
    struct Oracle(Vec<Seen>);

    impl Oracle {
        fn last(&self, found: impl Fn(&Seen) -> bool) -> Option<usize> {
            self.0.iter().rposition(found)
        }

        /// The invocation without an outcome.
        fn waiting(&self) -> Option<String> {
            let ended = |id: &String| self.0.contains(&Seen::Ended(id.clone()));
            self.0.iter().find_map(|seen| match seen {
                Seen::Invoked(id) if !ended(id) => Some(id.clone()),
                _ => None,
            })
        }

        fn is_delivered(&self, id: &str) -> bool {
            self.0.contains(&Seen::Delivered(id.to_owned()))
        }

        fn is_working(&self) -> bool {
            self.waiting().is_some_and(|id| self.is_delivered(&id))
        }

        fn has_failed(&self) -> bool {
            self.last(|s| *s == Seen::Failed) > self.last(|s| *s == Seen::Restarted)
        }

        /// It has asked since it was started.
        fn has_begun(&self) -> bool {
            self.last(|s| *s == Seen::Asked) > self.last(|s| *s == Seen::Restarted)
        }

        /// It has asked since its last event.
        fn is_asking(&self) -> bool {
            let event = self.last(|s| matches!(s, Seen::Delivered(_) | Seen::Restarted));
            self.last(|s| *s == Seen::Asked) > event
        }
    }

    #[test]
    fn requests_are_answered_as_their_history_demands() {
        cases(500, |random| {
            let (mut states, mut seen) = (Invocations::new(), Oracle(Vec::new()));
            for number in 0..60 {
                let known = seen.waiting().unwrap_or_else(|| "none".to_owned());
                let id = random.pick(&[known, "other".to_owned()]);
                match random.below(7) {
                    0 if seen.waiting().is_none() => {
                        let id = format!("i{number}");
                        let restarts = states.invoked(head(&id, "bootstrap"), Bytes::new());
                        assert_eq!(restarts, seen.has_failed());
                        seen.0.push(Seen::Invoked(id));
                        if restarts {
                            states.restarted();
                            seen.0.push(Seen::Restarted);
                        }
                    }
                    1 => {
                        let due = !seen.is_working() && !seen.has_failed();
                        assert_eq!(states.ask().is_ok(), due);
                        if due {
                            seen.0.push(Seen::Asked);
                        }
                    }
                    2 => {
                        let due = seen.waiting().filter(|id| {
                            seen.is_asking() && !seen.is_delivered(id) && !seen.has_failed()
                        });
                        let found = states.deliver().map(|(head, _)| head.id);
                        assert_eq!(found, due);
                        seen.0.extend(found.map(Seen::Delivered));
                    }
                    3 | 4 => {
                        let due = seen.waiting() == Some(id.clone()) && seen.is_delivered(&id);
                        let ended = states.respond(&id, Response::TooLarge);
                        assert_eq!(ended.is_ok(), due, "{id} {:?}", seen.0);
                        if let Ok(Some(outcome)) = ended {
                            assert_eq!((&outcome.id, outcome.status), (&id, HandlerStatus::Error));
                            seen.0.push(Seen::Ended(id));
                        }
                    }
                    5 => {
                        let ended = states.ended("why");
                        if seen.waiting().is_some() {
                            assert_eq!(ended, End::Leave);
                            break;
                        }
                        assert_eq!(ended, End::Stay(None));
                        seen.0.push(Seen::Failed);
                    }
                    _ => {
                        let due = !seen.has_begun() && !seen.has_failed();
                        let ended = states.fail(Bytes::from_static(b"{}"));
                        assert_eq!(ended.is_ok(), due, "{:?}", seen.0);
                        if let Ok(ended) = ended {
                            assert_eq!(ended.as_ref().map(|e| &e.id), seen.waiting().as_ref());
                            seen.0.push(Seen::Failed);
                            seen.0.extend(ended.map(|outcome| Seen::Ended(outcome.id)));
                        }
                    }
                }
            }
        });
    }

    #[test]
    fn a_trial_ends_when_the_runtime_asks_and_gives_no_event() {
        let mut states = Invocations::new();
        states.invoked(head("t", TRIAL), Bytes::new());
        assert_eq!(states.tried(), None);
        states.ask().unwrap();
        assert_eq!(states.deliver(), None);
        let outcome = states.tried().unwrap();
        assert_eq!((outcome.id.as_str(), outcome.status), ("t", HandlerStatus::Done));
        states.invoked(head("i", "bootstrap"), Bytes::from_static(b"1"));
        assert_eq!(states.deliver().unwrap().1, Bytes::from_static(b"1"), "it still asks");
    }

    #[test]
    fn a_trial_gets_the_reason_of_an_end() {
        let mut states = Invocations::new();
        states.invoked(head("t", TRIAL), Bytes::new());
        let End::Stay(Some(outcome)) = states.ended("status 3") else { panic!() };
        assert_eq!(outcome.status, HandlerStatus::Error);
        assert!(String::from_utf8_lossy(&outcome.result).contains("status 3"));
        assert!(states.invoked(head("i", "bootstrap"), Bytes::new()), "it is started again");
    }
}
