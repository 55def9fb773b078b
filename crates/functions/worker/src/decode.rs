//! The decoding of a submission: its text and its body, copied out of the region and checked.

use unlade_guest_protocol::{Operation, RequestHead, Submission};
use unlade_metrics::CutRefusal;
use unlade_s3::Call;
use unlade_s3::failure::HostCode;

use crate::answer::Rejection;
use crate::caller::Caller;
use crate::complete;
use crate::cut;
use crate::perform::Failed;
use crate::region::ProtocolViolation;
use crate::session_epoch::{CallPermit, CallState};
use crate::stage::{StageError, Staged, Text, Upload};
use crate::stream::{self, Streamed};
use crate::stream_input::StreamInput;

/// A submission that can be executed.
pub enum Work {
    /// A READ of at most `wanted` bytes, unless that is zero.
    Read {
        /// The token of the body.
        token: u64,
        /// The limit.
        wanted: u32,
        /// The permit of the submission.
        permit: CallPermit,
    },
    /// A call with its complete body.
    Call {
        /// The call.
        staged: Box<Staged>,
        /// Its permit.
        permit: CallPermit,
    },
    /// A call whose body is streamed.
    Stream {
        /// The call.
        streamed: Box<Streamed>,
        /// Its permit.
        permit: CallPermit,
    },
}

/// Decodes a submission. Returns `None` if nothing is to be executed: a part of a body has
/// arrived, or something was released.
///
/// # Errors
/// The reason why it is not executed.
pub async fn decode(caller: &Caller, submission: &Submission) -> Result<Option<Work>, Rejection> {
    match submission.operation {
        Operation::Call => call(caller, submission).await,
        Operation::Request => request(caller, submission).await,
        Operation::Body => body(caller, submission).await,
        Operation::Read => {
            let permit = caller.permit().ok_or(Rejection::Refused)?;
            let (token, wanted) = (submission.token, submission.body.bytes);
            Ok(Some(Work::Read { token, wanted, permit }))
        }
        Operation::Release => {
            let released = caller.session_epoch.tokens.borrow_mut().remove(&submission.token);
            drop(released);
            Ok(None)
        }
        Operation::Cancel => cancel(caller, submission.call),
    }
}

async fn call(caller: &Caller, submission: &Submission) -> Result<Option<Work>, Rejection> {
    let (session_epoch, number) = (&caller.session_epoch, submission.call);
    if session_epoch.calls.borrow().contains_key(&number) {
        return Err(ProtocolViolation::Number(number).into());
    }
    let meta = (submission.meta_offset, submission.meta_bytes);
    let text = session_epoch.region().borrow().guest_meta(meta.0, meta.1)?;
    let (call, inline) =
        Call::decode(&text).map_err(|error| Failed::host(HostCode::Invalid, error))?;
    let before = session_epoch.retry_table.look(call.again);
    let streams = stream::streams(caller, &call, before);
    let limits = &caller.tenant.limits;
    let most = if streams { limits.body_bytes_max } else { limits.staged_bytes_max };
    let most = most.min(limits.body_bytes_max);
    if call.body_bytes > most {
        let why = format!("a body of {} bytes, {most} at most", call.body_bytes);
        return Err(Failed::host(HostCode::TooLarge, why).into());
    }
    let body_bytes = if streams { stream::HELD_BYTES } else { call.body_bytes };
    let quota = &caller.tenant.quota;
    let (Some(room), Some(held), Some(permit)) =
        (quota.call(), quota.hold_call(text.len(), body_bytes), caller.permit())
    else {
        return Err(Rejection::Refused);
    };
    session_epoch.retry_table.forget(call.again);
    if streams {
        let stream_input = StreamInput::new(call.body_bytes, &session_epoch.region().borrow());
        stream_input.push(&session_epoch.region().borrow(), submission, submission.more)?;
        let streamed = Streamed { call, stream_input, attempts: before.attempts, room, held };
        return Ok(Some(Work::Stream { streamed: Box::new(streamed), permit }));
    }
    let upload = Upload::new(Text::Call(call), inline, room, held);
    stage(caller, submission, Box::new(upload), permit).await
}

/// A request to a service other than S3: its body is buffered as a whole, because its signature
/// covers the body.
async fn request(caller: &Caller, submission: &Submission) -> Result<Option<Work>, Rejection> {
    let (session_epoch, number) = (&caller.session_epoch, submission.call);
    if session_epoch.calls.borrow().contains_key(&number) {
        return Err(ProtocolViolation::Number(number).into());
    }
    let meta = (submission.meta_offset, submission.meta_bytes);
    let text = session_epoch.region().borrow().guest_meta(meta.0, meta.1)?;
    let (head, inline) = RequestHead::decode(&text).map_err(|error| {
        cut::execute::refused(caller, cut::Refusal::new(CutRefusal::Head, error.to_string()))
    })?;
    let limits = &caller.tenant.limits;
    let most = limits.staged_bytes_max.min(limits.body_bytes_max);
    if head.body_bytes > most {
        let why = format!("a body of {} bytes, {most} at most", head.body_bytes);
        return Err(Failed::host(HostCode::TooLarge, why).into());
    }
    let quota = &caller.tenant.quota;
    let (Some(room), Some(held), Some(permit)) =
        (quota.call(), quota.hold_call(text.len(), head.body_bytes), caller.permit())
    else {
        return Err(Rejection::Refused);
    };
    let upload = Upload::new(Text::Request(head), inline, room, held);
    stage(caller, submission, Box::new(upload), permit).await
}

async fn body(caller: &Caller, submission: &Submission) -> Result<Option<Work>, Rejection> {
    let (session_epoch, number) = (&caller.session_epoch, submission.call);
    if let Some(CallState::Streaming(stream_input, _)) = session_epoch.calls.borrow().get(&number) {
        stream_input.push(&session_epoch.region().borrow(), submission, true)?;
        return Ok(None);
    }
    let call_state = {
        let mut calls = session_epoch.calls.borrow_mut();
        match calls.get(&number) {
            Some(CallState::Uploading(..)) => calls.remove(&number),
            // The call has ended already, or its body has.
            _ => None,
        }
    };
    let Some(CallState::Uploading(upload, permit)) = call_state else { return Ok(None) };
    stage(caller, submission, upload, permit).await
}

/// Copies the slots of a descriptor; other tasks run meanwhile. Returns the call once its body is
/// complete.
async fn stage(
    caller: &Caller,
    submission: &Submission,
    mut upload: Box<Upload>,
    permit: CallPermit,
) -> Result<Option<Work>, Rejection> {
    let (session_epoch, number) = (&caller.session_epoch, submission.call);
    let invalid = |error: StageError| Failed::host(HostCode::Invalid, error);
    let place = session_epoch.region().borrow().guest_range(submission.body)?;
    upload.take(&caller.tenant.copies, place).await.map_err(invalid)?;
    if submission.more || submission.operation == Operation::Body {
        complete::part(session_epoch, number);
    }
    if submission.more {
        let call_state = CallState::Uploading(upload, permit);
        session_epoch.calls.borrow_mut().insert(number, call_state);
        return Ok(None);
    }
    let staged = Box::new(upload.finish().map_err(invalid)?);
    Ok(Some(Work::Call { staged, permit }))
}

fn cancel(caller: &Caller, number: u64) -> Result<Option<Work>, Rejection> {
    let call_state = caller.session_epoch.calls.borrow_mut().remove(&number);
    match call_state {
        // The call was completed, or never existed.
        None => return Ok(None),
        Some(CallState::Running(task) | CallState::Streaming(_, task)) => task.abort(),
        Some(CallState::Uploading(upload, permit)) => drop((upload, permit)),
    }
    Err(Failed::host(HostCode::Ending, "cancelled; it may have happened").into())
}
