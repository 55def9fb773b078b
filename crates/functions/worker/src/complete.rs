//! The completion of submissions: every answer to the guest is written here.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use unlade_guest_protocol::descriptor::{AGAIN, LEFT_UNKNOWN, MORE, PART};
use unlade_guest_protocol::{Completion, Extent, Status};
use unlade_metrics::{CallEnd, Event};
use unlade_s3::failure::host_meta;
use unlade_s3::response::{done_meta, error_meta};

use crate::answer::Answer;
use crate::caller::Caller;
use crate::flow::{Abort, Filled, Flow, LentBody, Rest};
use crate::lending::Meta;
use crate::perform::Failed;
use crate::session_epoch::SessionEpoch;
use crate::store::checked;
use crate::tenant::Tenant;

/// The submission that is completed.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its number.
    pub number: u64,
    /// The operation; empty if it is no call.
    pub operation: &'a str,
    /// Its retries.
    pub retries: u32,
}

/// Completes a submission that was executed. Waits for the guest to make room for the text.
pub async fn complete(caller: &Caller, subject: Subject<'_>, answer: Answer) {
    let (session_epoch, number) = (&caller.session_epoch, subject.number);
    match answer {
        Answer::Result { result, head, flags } => {
            let text = done_meta(&result, &head, subject.retries, None);
            say(session_epoch, number, Status::Done, &text, flags).await;
        }
        Answer::Object { result, head, filled, flags } => {
            let algorithm = checked::stated(&head).map(|(algorithm, _)| algorithm);
            let text = done_meta(&result, &head, subject.retries, algorithm);
            let Some(meta) = session_epoch.lender.meta(&text).await else {
                return post(session_epoch, bare(session_epoch, number, Status::Refused));
            };
            let token = session_epoch.next_token();
            lend(&caller.tenant, session_epoch, number, token, Some(meta), filled, flags);
        }
        Answer::Http { head, filled, .. } => {
            let Some(meta) = session_epoch.lender.meta(&head.to_json()).await else {
                return post(session_epoch, bare(session_epoch, number, Status::HostError));
            };
            let token = session_epoch.next_token();
            lend(&caller.tenant, session_epoch, number, token, Some(meta), filled, 0);
        }
        Answer::Chunk { token, filled } => {
            lend(&caller.tenant, session_epoch, number, token, None, filled, 0);
        }
        Answer::Refused => post(session_epoch, bare(session_epoch, number, Status::Refused)),
        Answer::Failed(failed) => {
            let (status, text) = failure(subject, &failed);
            say(session_epoch, number, status, &text, 0).await;
        }
        Answer::Again { failed, wait } => {
            let (status, text) = failure(subject, &failed);
            say(session_epoch, number, status, &with_wait(&text, wait), AGAIN).await;
        }
    }
}

/// Completes a submission that is not executed, because a limit is reached.
pub fn refuse(caller: &Caller, number: u64) {
    caller.tenant.meter.add(Event::HostioCall(CallEnd::Refused));
    post(&caller.session_epoch, bare(&caller.session_epoch, number, Status::Refused));
}

/// Completes a submission that is not executed, because of a failure. If the guest leaves no room
/// for the text, it waits like a call. The text is omitted when the limit of waiting calls is
/// reached.
pub fn fail(caller: &Caller, number: u64, failed: &Failed) {
    let session_epoch = &caller.session_epoch;
    let (status, text) = failure(Subject { number, operation: "", retries: 0 }, failed);
    if let Some(meta) = session_epoch.lender.try_meta(&text) {
        return tell(session_epoch, bare(session_epoch, number, status), meta, 0);
    }
    let Some(permit) = caller.permit() else {
        return post(session_epoch, bare(session_epoch, number, status));
    };
    let own = session_epoch.clone();
    session_epoch.spawn(async move {
        let _flying = permit;
        say(&own, number, status, &text, 0).await;
    });
}

/// Returns the slots of a part of a body to the guest.
pub fn part(session_epoch: &SessionEpoch, number: u64) {
    let bare = bare(session_epoch, number, Status::Done);
    post(session_epoch, Completion { flags: PART, ..bare });
}

fn post(session_epoch: &SessionEpoch, completion: Completion) {
    session_epoch.complete(&completion);
}

fn bare(session_epoch: &SessionEpoch, number: u64, status: Status) -> Completion {
    Completion::bare(number, status, session_epoch.epoch_low())
}

/// Lends a chunk to the guest, and starts to read ahead.
fn lend(
    tenant: &Tenant,
    session_epoch: &Rc<SessionEpoch>,
    number: u64,
    token: u64,
    meta: Option<Meta>,
    filled: Filled,
    flags: u16,
) {
    let Filled { flow, chunk } = filled;
    let left = match (&chunk, flow.left_bytes()) {
        (None, _) => 0,
        (Some(_), left) => left.unwrap_or(LEFT_UNKNOWN),
    };
    let (slots, bytes) = match chunk {
        Some(chunk) => (Some(chunk.slots), chunk.bytes),
        None => (None, 0),
    };
    tenant.meter.add_n(Event::HostioBytesIn, bytes as u64);
    tenant.turn.spend(0, bytes as u64);
    let body = slots.as_ref().map_or(Extent { first_slot: 0, bytes: 0 }, |s| s.extent(bytes));
    let (meta_offset, meta_bytes) = meta.as_ref().map_or((0, 0), |meta| (meta.offset, meta.bytes));
    let rest = (left > 0).then(|| read_ahead(session_epoch, flow));
    let held = LentBody { meta, slots, rest, is_body: true };
    session_epoch.tokens.borrow_mut().insert(token, held);
    let completion = Completion {
        flags: flags | if left > 0 { MORE } else { 0 },
        meta_offset,
        meta_bytes,
        body,
        token,
        body_left_bytes: left,
        ..bare(session_epoch, number, Status::Done)
    };
    post(session_epoch, completion);
}

/// Starts to fill the next chunk, if slots are free.
fn read_ahead(session_epoch: &Rc<SessionEpoch>, mut flow: Flow) -> Rest {
    let Some(slots) = session_epoch.lender.try_slots(flow.slots_due()) else {
        return Rest::Here(Box::new(flow));
    };
    let (give, given) = oneshot::channel();
    let own = session_epoch.clone();
    let task = session_epoch.spawn(async move {
        let chunk = flow.fill(&own.lender, slots, usize::MAX).await;
        // The receiver is gone if the body was dropped.
        let _ = give.send((Box::new(flow), chunk));
    });
    Rest::Ahead(Abort(task, given))
}

/// Completes a submission with text only.
async fn say(
    session_epoch: &Rc<SessionEpoch>,
    number: u64,
    status: Status,
    text: &[u8],
    flags: u16,
) {
    let Some(meta) = session_epoch.lender.meta(text).await else {
        // The call may have been executed, so it must not be reported as refused.
        return post(session_epoch, bare(session_epoch, number, Status::HostError));
    };
    tell(session_epoch, bare(session_epoch, number, status), meta, flags);
}

fn tell(session_epoch: &SessionEpoch, bare: Completion, meta: Meta, flags: u16) {
    let token = session_epoch.next_token();
    let (meta_offset, meta_bytes) = (meta.offset, meta.bytes);
    let held = LentBody { meta: Some(meta), slots: None, rest: None, is_body: false };
    session_epoch.tokens.borrow_mut().insert(token, held);
    post(session_epoch, Completion { flags, meta_offset, meta_bytes, token, ..bare });
}

fn failure(subject: Subject<'_>, failed: &Failed) -> (Status, Vec<u8>) {
    match failed {
        Failed::Service { error, head } => {
            let text = error_meta(subject.operation, error, head, subject.retries);
            (Status::ServiceError, text)
        }
        Failed::Host { code, message, .. } => (Status::HostError, host_meta(code.name(), message)),
    }
}

/// Adds the wait before the next attempt to an error.
fn with_wait(text: &[u8], wait: Duration) -> Vec<u8> {
    let mut said: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    if let Some(members) = said.as_object_mut() {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        members.insert("again_after_ms".to_owned(), wait_ms.into());
    }
    said.to_string().into_bytes()
}
