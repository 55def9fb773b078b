//! One invocation: hint, instance, handler, pending writes, answer.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use unlade_fn_model::isolation::{Origin, Runtime};
use unlade_fn_model::lambda::{Failure, Refusal};
use unlade_fn_model::pool::Refused;
use unlade_guest_protocol::control::{ControlHead, FailedWrite, ObjectName};
use unlade_guest_protocol::{CallContext, HandlerStatus};
use unlade_metrics::{Event, FnRuntime};

use crate::attached_instance::{AttachedInstance, Ended};
use crate::call_context;
use crate::function::Function;
use crate::host::{Assigned, Host};
use crate::link::{Link, Reply};

/// The kind of instance that served an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// An instance that had run before.
    Warm,
    /// An instance that was started for it, or had not run yet.
    Fresh(Origin),
}

impl Served {
    /// The value of `X-Unlade-Origin`.
    pub fn name(self) -> &'static str {
        match self {
            Served::Warm => "warm",
            Served::Fresh(Origin::Cold) => "cold",
            Served::Fresh(Origin::Restored) => "restored",
        }
    }
}

/// The durations of an invocation's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Wait for an instance, including its start.
    pub queued: Duration,
    /// The part of `queued` that is the start of its instance.
    pub start: Duration,
    /// The handler, including the transfer to it and back.
    pub handler: Duration,
    /// Wait until its writes were durable.
    pub settled: Duration,
    /// Duration of its prefetches.
    pub prefetch: Duration,
    /// The part of `prefetch` that its GETs waited for.
    pub prefetch_waited: Duration,
}

/// The answer to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the invocation, a UUID.
    pub invocation: String,
    /// The result, or the error as JSON.
    pub result: Vec<u8>,
    /// True if it failed.
    pub is_error: bool,
    /// The end of its log.
    pub log_tail: String,
    /// The kind of instance.
    pub served: Served,
    /// The durations of its phases.
    pub timings: Timings,
    /// Bytes of texts and bodies that its calls have brought, and of those in its calls.
    pub carried_bytes: (u64, u64),
}

/// Interval of the looks at the memory of an instance that runs an invocation.
const LOOK: Duration = Duration::from_millis(20);
/// The status of an invocation without an instance.
const THROTTLED: u16 = 429;

/// A random UUID (RFC 9562 §5.4).
pub fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The input of an invocation.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// The event, as JSON.
    pub event: Vec<u8>,
    /// Objects that it will read, in addition to those of the event.
    pub objects: Vec<ObjectName>,
    /// The client context: JSON in ASCII, on one line.
    pub client_context: Option<String>,
    /// The trace of the caller.
    pub trace: Option<String>,
    /// The identifier of the invocation, a UUID; a new one if absent.
    pub invocation: Option<String>,
}

impl From<Vec<u8>> for Input {
    fn from(event: Vec<u8>) -> Input {
        Input { event, ..Input::default() }
    }
}

/// Invokes a function with a JSON event. Must not be cancelled: an assigned instance must be used.
///
/// # Errors
/// The function was not invoked, or its end is unknown.
pub async fn invoke(
    host: &Rc<Host>,
    function: &Rc<Function>,
    input: Input,
) -> Result<Answer, Refusal> {
    let invocation = input.invocation.clone().unwrap_or_else(uuid);
    let event_bytes = input.event.len() as u64;
    let answered = match host.enter(function) {
        Ok(entered) => {
            let answered = attempt(host, function, &invocation, input).await;
            drop(entered);
            answered
        }
        Err(refusal) => {
            host.meter.add(Event::FnRefused);
            Err(refusal)
        }
    };
    if answered.is_ok() {
        host.meter.add(Event::FnAnswered(match function.manifest.runtime {
            Runtime::Python => FnRuntime::Python,
            Runtime::Provided => FnRuntime::Provided,
            Runtime::Node => FnRuntime::Node,
        }));
    }
    observe(function, &answered, event_bytes);
    host.meter.add(match &answered {
        Ok(answer) if !answer.is_error => Event::FnInvoked,
        Ok(_) => Event::FnFailed,
        Err(_) => Event::FnUnanswered,
    });
    answered
}

/// Counts an invocation in the metrics of its function.
fn observe(function: &Function, answered: &Result<Answer, Refusal>, event_bytes: u64) {
    let (observed, meter) = (&function.observed, &function.observed.meter);
    match answered {
        Ok(answer) => {
            observed.answered(answer.timings.handler, answer.is_error);
            let (received_bytes, sent_bytes) = answer.carried_bytes;
            meter.received_bytes.fetch_add(event_bytes + received_bytes, Relaxed);
            meter.sent_bytes.fetch_add(answer.result.len() as u64 + sent_bytes, Relaxed);
        }
        // Clients and the pool decide by this status, too.
        Err(refusal) if refusal.status() == THROTTLED => {
            meter.throttles.fetch_add(1, Relaxed);
        }
        Err(_) => {
            meter.errors.fetch_add(1, Relaxed);
        }
    }
}

async fn attempt(
    host: &Rc<Host>,
    function: &Rc<Function>,
    invocation: &str,
    input: Input,
) -> Result<Answer, Refusal> {
    let Input { event, objects, client_context, trace, .. } = input;
    let trace = call_context::trace(trace.as_deref(), invocation);
    let context = CallContext { trace, client_context };
    let begin = Instant::now();
    // The prefetches start while the instance is being restored.
    let hinted = hint(function, invocation, &event, objects);
    let mut function = function.clone();
    let assigned = match assign(host, &mut function).await {
        Ok(assigned) => assigned,
        Err(why) => {
            if let Some(link) = hinted {
                forget(&link, invocation);
            }
            return Err(Refusal::Throttled(why));
        }
    };
    // The function may belong to another tenant meanwhile.
    if let Some(link) = hinted.filter(|link| !Rc::ptr_eq(link, &assigned.attached_instance.link)) {
        forget(&link, invocation);
    }
    let queued = begin.elapsed();
    let (ended, handler) = run(&assigned, &function, invocation, event, context).await;
    let Assigned { attached_instance, is_first } = assigned;
    let failure = match ended {
        Some(Ended::Replied(mut reply)) => {
            let begin = Instant::now();
            let settled = settle(host, reply.settled.take()).await;
            let start = if is_first { attached_instance.start } else { Duration::ZERO };
            let settled_in = begin.elapsed();
            let (prefetch, prefetch_waited) = reply.prefetch_us;
            let timings = Timings {
                queued,
                start,
                handler,
                settled: settled_in,
                prefetch: Duration::from_micros(prefetch),
                prefetch_waited: Duration::from_micros(prefetch_waited),
            };
            let served =
                if is_first { Served::Fresh(attached_instance.origin) } else { Served::Warm };
            let (mut answer, failure) = answer(invocation, reply, settled, served, timings);
            if let Some(failure) = failure {
                // The log of the invocation has ended already.
                answer.log_tail = attached_instance.log.add(invocation, answer.log_tail, &failure);
            }
            return Ok(answer);
        }
        Some(Ended::Refused(why)) => {
            forget(&attached_instance.link, invocation);
            return Err(Refusal::Service(why));
        }
        Some(Ended::Gone(_)) if attached_instance.link.is_lost() => Failure::WorkerLost,
        Some(Ended::Gone(why)) => Failure::Exited { why },
        None => {
            attached_instance.stop.notify_one();
            Failure::TimedOut { after: function.manifest.timeout }
        }
    };
    forget(&attached_instance.link, invocation);
    let result = failure.result(invocation);
    let log_tail = attached_instance.report("", Some(&message(&result)));
    let served = if is_first { Served::Fresh(attached_instance.origin) } else { Served::Warm };
    let timings = Timings { queued, handler, ..Timings::default() };
    let (invocation, carried_bytes) = (invocation.to_owned(), (0, 0));
    Ok(Answer { invocation, result, is_error: true, log_tail, served, timings, carried_bytes })
}

/// The message of a failed invocation's result.
fn message(result: &[u8]) -> String {
    let result: serde_json::Value = serde_json::from_slice(result).unwrap_or_default();
    result["errorMessage"].as_str().unwrap_or_default().to_owned()
}

/// Forgets an invocation whose result has no receiver: the worker drops its prefetched objects and
/// the results of its writes.
fn forget(link: &Link, invocation: &str) {
    link.say(ControlHead::Settle { invocation: invocation.to_owned() });
}

/// Assigns an instance of a function, or of the revision that has replaced it meanwhile.
async fn assign(host: &Rc<Host>, function: &mut Rc<Function>) -> Result<Assigned, Refused> {
    loop {
        let why = match host.assign(function).await {
            Err(Refused::Removed) => Refused::Removed,
            assigned => return assigned,
        };
        match host.function(&function.key()).filter(|found| found.id != function.id) {
            Some(found) => *function = found,
            None => return Err(why),
        }
    }
}

fn hint(
    function: &Function,
    invocation: &str,
    event: &[u8],
    mut objects: Vec<ObjectName>,
) -> Option<Rc<Link>> {
    if !function.manifest.mode.prefetches() {
        return None;
    }
    objects.extend(Host::hints(function, event));
    let may_be_notification = event.windows(2).any(|two| two == b"s3");
    if objects.is_empty() && !may_be_notification {
        return None;
    }
    let link = function.tenant.try_link()?;
    let bytes = if may_be_notification { event.to_vec() } else { Vec::new() };
    let invocation = invocation.to_owned();
    link.say_with(
        ControlHead::Hint { invocation, role: function.role, objects },
        bytes,
        Vec::new(),
    );
    Some(link)
}

/// Runs the handler; returns its end, `None` on timeout, and the duration.
async fn run(
    assigned: &Assigned,
    function: &Function,
    invocation: &str,
    event: Vec<u8>,
    context: CallContext,
) -> (Option<Ended>, Duration) {
    let (attached_instance, begin) = (&assigned.attached_instance, Instant::now());
    let timeout = function.manifest.timeout;
    let deadline = SystemTime::now() + timeout;
    let deadline = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ended = attached_instance.begin(invocation);
    let said = ControlHead::Invoke {
        instance: attached_instance.id,
        invocation: invocation.to_owned(),
        handler: function.manifest.handler.clone(),
        function: function.name.clone(),
        deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        memory_mib: u32::try_from(function.manifest.memory.0 >> 20).unwrap_or(u32::MAX),
        writes: function.manifest.write_mode(),
        context,
    };
    attached_instance.link.say_with(said, event, Vec::new());
    let ended = tokio::time::timeout(timeout, end(attached_instance, ended)).await.ok();
    (ended, begin.elapsed())
}

/// Waits for the end of an invocation, and limits the memory of its instance meanwhile.
async fn end(attached_instance: &AttachedInstance, mut ended: oneshot::Receiver<Ended>) -> Ended {
    loop {
        match tokio::time::timeout(LOOK, &mut ended).await {
            Ok(end) => return end.unwrap_or_else(|_| Ended::Gone("it has ended".to_owned())),
            Err(_) => {
                attached_instance.instance.limit_memory();
            }
        }
    }
}

/// The result of writes that were acknowledged early.
enum Settled {
    /// All are durable.
    Durable,
    /// Some failed.
    Failed(Vec<FailedWrite>),
    /// Unknown.
    Lost,
    /// Some are not durable within the timeout.
    Late(Duration),
}

async fn settle(host: &Host, pending: Option<oneshot::Receiver<Vec<FailedWrite>>>) -> Settled {
    let Some(settled) = pending else { return Settled::Durable };
    let patience = host.config.settle_timeout;
    match tokio::time::timeout(patience, settled).await {
        Ok(Ok(failed)) if failed.is_empty() => Settled::Durable,
        Ok(Ok(failed)) => Settled::Failed(failed),
        Ok(Err(_)) => Settled::Lost,
        Err(_) => Settled::Late(patience),
    }
}

/// The answer, and the reason for which it failed after its handler had returned.
fn answer(
    invocation: &str,
    reply: Reply,
    settled: Settled,
    served: Served,
    timings: Timings,
) -> (Answer, Option<String>) {
    let mut is_error = reply.status == HandlerStatus::Error;
    let mut result = reply.result;
    let failure = match settled {
        Settled::Durable => None,
        Settled::Lost => Some(Failure::WorkerLost),
        Settled::Late(patience) => {
            let what = format!("some are not durable after {} s", patience.as_secs_f64());
            Some(Failure::WriteFailed { what: vec![what] })
        }
        Settled::Failed(failed) => {
            let text = |write: &FailedWrite| {
                let FailedWrite { operation, bucket, key, code, message } = write;
                format!("{operation} {bucket}/{key}: {code}: {message}")
            };
            Some(Failure::WriteFailed { what: failed.iter().map(text).collect() })
        }
    };
    // An error of the function is more informative than its failed writes.
    let mut late_failure = None;
    if let (false, Some(failure)) = (is_error, failure) {
        (is_error, result) = (true, failure.result(invocation));
        late_failure = Some(message(&result));
    }
    let Reply { log_tail, carried_bytes, .. } = reply;
    let invocation = invocation.to_owned();
    let answer = Answer { invocation, result, is_error, log_tail, served, timings, carried_bytes };
    (answer, late_failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_uuids_and_differ() {
        let (a, b) = (uuid(), uuid());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!(&a[14..15], "4");
    }
}
