//! One invocation: hint, instance, handler, pending writes, answer.

use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use unlade_fn_model::isolation::{Origin, Runtime};
use unlade_fn_model::lambda::{Failure, Refusal};
use unlade_fn_model::pool::Refused;
use unlade_guest_protocol::HandlerStatus;
use unlade_guest_protocol::control::{ControlHead, FailedWrite, ObjectName};
use unlade_metrics::{Event, FnRuntime};

use crate::attached_instance::Ended;
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
    /// The end of its output.
    pub log_tail: String,
    /// The kind of instance.
    pub served: Served,
    /// The durations of its phases.
    pub timings: Timings,
}

/// A random UUID (RFC 9562 §5.4).
pub fn uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Invokes a function with a JSON event. Must not be cancelled: an assigned instance must be used.
///
/// # Errors
/// The function was not invoked, or its end is unknown.
pub async fn invoke(
    host: &Rc<Host>,
    function: &Rc<Function>,
    event: Vec<u8>,
    objects: Vec<ObjectName>,
) -> Result<Answer, Refusal> {
    let invocation = uuid();
    let answered = match host.enter(function) {
        Ok(entered) => {
            let answered = attempt(host, function, &invocation, event, objects).await;
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
    host.meter.add(match &answered {
        Ok(answer) if !answer.is_error => Event::FnInvoked,
        Ok(_) => Event::FnFailed,
        Err(_) => Event::FnUnanswered,
    });
    answered
}

async fn attempt(
    host: &Rc<Host>,
    function: &Rc<Function>,
    invocation: &str,
    event: Vec<u8>,
    objects: Vec<ObjectName>,
) -> Result<Answer, Refusal> {
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
    let (ended, handler) = run(&assigned, &function, invocation, event).await;
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
            return Ok(answer(invocation, reply, settled, served, timings));
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
    let served = if is_first { Served::Fresh(attached_instance.origin) } else { Served::Warm };
    let timings = Timings { queued, handler, ..Timings::default() };
    let (invocation, log_tail) = (invocation.to_owned(), String::new());
    Ok(Answer { invocation, result, is_error: true, log_tail, served, timings })
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
) -> (Option<Ended>, Duration) {
    let (attached_instance, begin) = (&assigned.attached_instance, Instant::now());
    let timeout = function.manifest.timeout;
    let deadline = SystemTime::now() + timeout;
    let deadline = deadline.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ended = attached_instance.begin();
    let said = ControlHead::Invoke {
        instance: attached_instance.id,
        invocation: invocation.to_owned(),
        handler: function.manifest.handler.clone(),
        function: function.name.clone(),
        deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        memory_mib: u32::try_from(function.manifest.memory.0 >> 20).unwrap_or(u32::MAX),
        writes: function.manifest.write_mode(),
    };
    attached_instance.link.say_with(said, event, Vec::new());
    let ended = tokio::time::timeout(timeout, ended).await.ok();
    let ended = ended.map(|end| end.unwrap_or_else(|_| Ended::Gone("it has ended".to_owned())));
    (ended, begin.elapsed())
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

fn answer(
    invocation: &str,
    reply: Reply,
    settled: Settled,
    served: Served,
    timings: Timings,
) -> Answer {
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
    if let (false, Some(failure)) = (is_error, failure) {
        (is_error, result) = (true, failure.result(invocation));
    }
    let (invocation, log_tail) = (invocation.to_owned(), reply.log_tail);
    Answer { invocation, result, is_error, log_tail, served, timings }
}

/// The log in the format of Lambda: the end of the output, between its markers.
pub fn log(answer: &Answer, function: &Function) -> String {
    let id = &answer.invocation;
    let handler_ms = answer.timings.handler.as_secs_f64() * 1e3;
    let mut tail = answer.log_tail.clone();
    if !tail.is_empty() && !tail.ends_with('\n') {
        tail.push('\n');
    }
    format!(
        "START RequestId: {id} Version: {}\n{tail}END RequestId: {id}\nREPORT RequestId: \
         {id}\tDuration: {handler_ms:.2} ms\tBilled Duration: {:.0} ms\tMemory Size: {} MB\n",
        function.version,
        handler_ms.ceil(),
        function.manifest.memory.0 >> 20,
    )
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
