//! Asynchronous invocations: stored in files until they have ended, so that an accepted one is executed
//! at least once, even if the gateway ends (as Lambda's asynchronous ones). [`delivery`] sends their
//! ends to destinations.
//!
//! [`delivery`]: crate::delivery

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use unlade_fn_model::asynchronous::{self, Condition, Ended, Next, Response, Tried};
use unlade_fn_model::destination::Target;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{EventConfig, Qualifier, Version};
use unlade_fn_model::pool::Refused;
use unlade_metrics::{Event, EventEnd};

use crate::delivery;
use crate::deploy::{time_ms, time_utc};
use crate::event_file::{AcceptedEvent, EventState};
use crate::function::Function;
use crate::host::Host;
use crate::invoke::{Input, invoke, uuid};

/// Most accepted invocations that have not ended.
pub const EVENTS_MAX: usize = 10_000;

/// The queue of asynchronous invocations, in a directory.
pub struct Events {
    directory: PathBuf,
    count: std::cell::Cell<usize>,
}

impl Events {
    /// Opens the directory; [`Events::replay`] executes its invocations.
    ///
    /// # Errors
    /// The system call failed.
    pub fn open(state: &Path) -> io::Result<Rc<Events>> {
        let directory = state.join("events");
        fs::create_dir_all(&directory)?;
        Ok(Rc::new(Events { directory, count: std::cell::Cell::new(0) }))
    }

    /// Accepts an invocation, which is durable when this returns: its event and its trace. Returns its
    /// number, a UUID.
    ///
    /// # Errors
    /// The queue is full, or the system call failed.
    pub async fn accept(
        self: &Rc<Events>,
        host: &Rc<Host>,
        function: &Function,
        qualifier: Option<&Qualifier>,
        input: Input,
    ) -> Result<String, Refusal> {
        if self.count.get() >= EVENTS_MAX {
            return Err(Refusal::Throttled(Refused::Concurrency));
        }
        self.count.set(self.count.get() + 1);
        let state = EventState {
            tenant: Some(function.tenant.name.clone()),
            function: function.key(),
            qualifier: qualifier.map(ToString::to_string),
            accepted_ms: time_ms(SystemTime::now()),
            failures: 0,
            ended: None,
            pending: Vec::new(),
            trace: input.trace,
        };
        let path = self.directory.join(uuid());
        let accepted = AcceptedEvent { path, state, event: input.event };
        if let Err(error) = accepted.store().await {
            self.count.set(self.count.get() - 1);
            return Err(Refusal::Service(format!("the event cannot be kept: {error}")));
        }
        let number = accepted.number().to_owned();
        let (events, host) = (self.clone(), host.clone());
        tokio::task::spawn_local(async move { events.make(&host, accepted).await });
        Ok(number)
    }

    /// Executes invocations that a previous gateway had accepted.
    ///
    /// # Errors
    /// The system call failed.
    pub fn replay(self: &Rc<Events>, host: &Rc<Host>) -> io::Result<usize> {
        let mut replayed = 0;
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some() {
                // The file is incomplete: the invocation was never accepted, or has another file.
                fs::remove_file(&path)?;
                continue;
            }
            let accepted = match AcceptedEvent::read(&path) {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::error!(%error, path = %path.display(), "is no event, and left alone");
                    continue;
                }
            };
            self.count.set(self.count.get() + 1);
            replayed += 1;
            let (events, host) = (self.clone(), host.clone());
            tokio::task::spawn_local(async move { events.make(&host, accepted).await });
        }
        Ok(replayed)
    }

    /// Executes an event until it has ended, and sends its end to its destinations.
    async fn make(&self, host: &Rc<Host>, mut accepted: AcceptedEvent) {
        if accepted.state.ended.is_none() && execute(host, &mut accepted).await {
            accepted.keep().await;
        }
        if !accepted.state.pending.is_empty() {
            delivery::deliver(host, &mut accepted).await;
        }
        let path = &accepted.path;
        if let Err(error) = fs::remove_file(path) {
            tracing::error!(%error, path = %path.display(), "an event will be made again");
        }
        self.count.set(self.count.get() - 1);
    }
}

/// The configuration of an event, as it is now, and the dead-letter queue of its function.
fn configured(
    host: &Host,
    function: &Function,
    state: &EventState,
) -> (EventConfig, Option<Target>) {
    let Some(record) = host.registry.get(&function.name).filter(|_| function.is_deployed) else {
        return Default::default();
    };
    let latest = Version::Latest.to_string();
    let config = record.event_configs.get(state.qualifier.as_ref().unwrap_or(&latest));
    let edition = record.edition(function.version);
    let dead_letter = edition.and_then(|edition| edition.dead_letter.clone());
    (config.cloned().unwrap_or_default(), dead_letter)
}

/// The time since the acceptance of an event.
fn age(state: &EventState) -> Duration {
    Duration::from_millis(time_ms(SystemTime::now()).saturating_sub(state.accepted_ms))
}

/// Tries an event until it has ended; returns true if a destination is to be told.
async fn execute(host: &Rc<Host>, accepted: &mut AcceptedEvent) -> bool {
    let (mut throttled, mut response) = (0, None);
    loop {
        let Some(found) = delivery::function(host, &accepted.state) else {
            let function = &accepted.state.function;
            tracing::warn!(function, "an event's function is not there any more");
            host.meter.add(Event::FnEventEnded(EventEnd::Absent));
            return false;
        };
        let (config, _) = configured(host, &found, &accepted.state);
        if age(&accepted.state) > config.age_max() {
            return end(host, accepted, &found, Condition::EventAgeExceeded, response);
        }
        let (tried, own) = attempt(host, &found, accepted).await;
        match tried {
            Tried::Done => {}
            Tried::Failed => accepted.state.failures += 1,
            Tried::Throttled => throttled += 1,
        }
        response = Some(own);
        let counts = (accepted.state.failures, throttled);
        match asynchronous::next(&config, tried, counts, age(&accepted.state)) {
            Next::End(condition) => return end(host, accepted, &found, condition, response),
            Next::Again(pause) => {
                if tried == Tried::Failed {
                    accepted.keep().await;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

async fn attempt(
    host: &Rc<Host>,
    function: &Rc<Function>,
    accepted: &AcceptedEvent,
) -> (Tried, Response) {
    let trace = accepted.state.trace.clone();
    let input = Input { event: accepted.event.clone(), trace, ..Input::default() };
    match invoke(host, function, input).await {
        Ok(answer) => {
            let tried = if answer.is_error { Tried::Failed } else { Tried::Done };
            let text = String::from_utf8_lossy(&answer.result).into_owned();
            (tried, Response { status: 200, is_function_error: answer.is_error, text })
        }
        Err(refusal) => {
            let is_throttled = matches!(
                refusal,
                Refusal::Reserved(_)
                    | Refusal::Throttled(Refused::Concurrency | Refused::Waited | Refused::Memory)
            );
            let tried = if is_throttled { Tried::Throttled } else { Tried::Failed };
            let (status, text) = (refusal.status(), refusal.message());
            (tried, Response { status, is_function_error: false, text })
        }
    }
}

/// Ends an event; returns true if a destination is to be told.
fn end(
    host: &Host,
    accepted: &mut AcceptedEvent,
    function: &Function,
    condition: Condition,
    response: Option<Response>,
) -> bool {
    let (config, dead_letter) = configured(host, function, &accepted.state);
    host.meter.add(Event::FnEventEnded(match condition {
        Condition::Success => EventEnd::Success,
        Condition::RetriesExhausted => EventEnd::RetriesExhausted,
        Condition::EventAgeExceeded => EventEnd::AgeExceeded,
    }));
    let state = &mut accepted.state;
    state.pending = asynchronous::destinations(&config, dead_letter.as_ref(), condition);
    if condition != Condition::Success && state.pending.is_empty() {
        host.meter.add(Event::FnEventLost);
        let (function, path) = (&state.function, accepted.path.display());
        tracing::error!(function, %path, condition = condition.name(), "an event has failed for good");
    }
    let attempts = state.failures + u32::from(condition == Condition::Success);
    let timestamp = format!("{}Z", time_utc(OffsetDateTime::now_utc()));
    let version = function.version.to_string();
    state.ended = Some(Ended { condition, timestamp, attempts, version, response });
    !state.pending.is_empty()
}
