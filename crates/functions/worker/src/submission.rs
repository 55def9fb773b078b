//! The way of a submission: decoded, authorised, executed, completed. Each stage returns its errors
//! to this file, which passes them to [`complete()`].

use std::rc::Rc;

use unlade_guest_protocol::Submission;
use unlade_metrics::Event;
use unlade_s3::Call;
use unlade_s3::retry::Attempts;

use crate::answer::{Answer, Rejection};
use crate::authorise::{authorise, request};
use crate::call;
use crate::caller::Caller;
use crate::complete::{self, Subject, complete};
use crate::cut;
use crate::decode::{Work, decode};
use crate::fetch;
use crate::perform::Failed;
use crate::quota::HeldBytes;
use crate::region::ProtocolViolation;
use crate::session_epoch::CallState;
use crate::stage::{Staged, Text};
use crate::store::Body;
use crate::stream::{self, Streamed};
use crate::stream_input::StreamInput;

/// Takes a submission through its stages. Its execution continues in a task of the epoch.
///
/// # Errors
/// The guest violated the protocol.
pub async fn submit(caller: &Caller, submission: &Submission) -> Result<(), ProtocolViolation> {
    match decode(caller, submission).await {
        Ok(None) => {}
        Ok(Some(work)) => start(caller, submission.call, work),
        Err(Rejection::Violation(violation)) => return Err(violation),
        Err(Rejection::Refused) => complete::refuse(caller, submission.call),
        Err(Rejection::Failed(failed)) => complete::fail(caller, submission.call, &failed),
    }
    Ok(())
}

/// Starts the task that executes a submission and completes it.
fn start(caller: &Caller, number: u64, work: Work) {
    let (session_epoch, caller) = (&caller.session_epoch, caller.clone());
    let call_state = match work {
        Work::Read { token, wanted, permit } => {
            session_epoch.spawn(async move {
                let _flying = permit;
                let read = fetch::read(&caller.session_epoch, token, wanted).await;
                let subject = Subject { number, operation: "", retries: 0 };
                complete(&caller, subject, read.unwrap_or_else(Answer::Failed)).await;
            });
            return;
        }
        Work::Call { staged, permit } => CallState::Running(session_epoch.spawn(async move {
            let _flying = permit;
            run(&caller, number, *staged).await;
        })),
        Work::Stream { streamed, permit } => {
            let stream_input = streamed.stream_input.clone();
            let task = session_epoch.spawn(async move {
                let _flying = permit;
                run_stream(&caller, number, *streamed).await;
            });
            CallState::Streaming(stream_input, task)
        }
    };
    session_epoch.calls.borrow_mut().insert(number, call_state);
}

/// Executes a call and completes it. What it holds is released after its completion.
async fn run(caller: &Caller, number: u64, staged: Staged) {
    let Staged { text, room: _room, held, bytes } = staged;
    let (mut held, mut attempts) = (Some(held), Attempts::default());
    let body = Rc::new(Body::from(bytes));
    let call = match text {
        Text::Call(call) => call,
        Text::Request(head) => {
            let answer = cut::execute::act(caller, &head, &body).await;
            return finish(caller, number, &head.operation, attempts, answer).await;
        }
    };
    let answer = answer(caller, &call, &body, &mut held, &mut attempts).await;
    finish(caller, number, &call.operation, attempts, answer).await;
}

async fn answer(
    caller: &Caller,
    call: &Call,
    body: &Rc<Body>,
    held: &mut Option<HeldBytes>,
    attempts: &mut Attempts,
) -> Result<Answer, Failed> {
    let authorised = authorise(&caller.policy(), call, caller.environment(call))?;
    call::act(caller, call, authorised, body, held, attempts).await
}

/// As [`run`], for a call whose body is streamed.
async fn run_stream(caller: &Caller, number: u64, streamed: Streamed) {
    let Streamed { call, stream_input, mut attempts, room: _room, held: _held } = streamed;
    let answer = answer_stream(caller, number, &call, &stream_input, &mut attempts).await;
    finish(caller, number, &call.operation, attempts, answer).await;
}

async fn answer_stream(
    caller: &Caller,
    number: u64,
    call: &Call,
    stream_input: &StreamInput,
    attempts: &mut Attempts,
) -> Result<Answer, Failed> {
    let request = request(&caller.policy(), call, &caller.environment(call))?;
    stream::act(caller, number, call, &request, stream_input, attempts).await
}

async fn finish(
    caller: &Caller,
    number: u64,
    operation: &str,
    attempts: Attempts,
    answer: Result<Answer, Failed>,
) {
    caller.session_epoch.calls.borrow_mut().remove(&number);
    let answer = answer.unwrap_or_else(Answer::Failed);
    let (end, retries) = (answer.call_end(), attempts.retries());
    complete(caller, Subject { number, operation, retries }, answer).await;
    if let Some(end) = end {
        caller.tenant.meter.add(Event::HostioCall(end));
    }
}
