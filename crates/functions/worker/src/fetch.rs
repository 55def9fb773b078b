//! The transfer of an object to the guest in runs of slots: one run is lent while the next is
//! filled.

use std::rc::Rc;

use tokio::sync::oneshot;
use unlade_guest_protocol::descriptor::{LEFT_UNKNOWN, MORE};
use unlade_guest_protocol::{Completion, Extent, Status};
use unlade_metrics::Event;
use unlade_s3::failure::{HostCode, host_meta};

use crate::flow::{Abort, Chunk, Flow, LentBody, Rest};
use crate::lending::Meta;
use crate::perform::Failed;
use crate::session_epoch::SessionEpoch;
use crate::store::TransportError;
use crate::tenant::Tenant;

/// The first chunk of a body, before the guest was answered.
pub struct First {
    flow: Flow,
    chunk: Option<Chunk>,
}

/// Reads the first chunk. A failure here may be retried from the start.
///
/// # Errors
/// Outer: the connection broke. Inner `None`: the guest holds all slots and releases none.
pub async fn first(
    session_epoch: &Rc<SessionEpoch>,
    mut flow: Flow,
) -> Result<Option<First>, TransportError> {
    if flow.left_bytes() == Some(0) {
        return Ok(Some(First { flow, chunk: None }));
    }
    let Some(slots) = session_epoch.lender.slots(flow.slots_due()).await else { return Ok(None) };
    let chunk = flow.fill(&session_epoch.lender, slots, usize::MAX).await?;
    Ok(Some(First { flow, chunk }))
}

/// Completes a call with the first chunk of its body.
pub async fn deliver(
    tenant: &Tenant,
    session_epoch: &Rc<SessionEpoch>,
    call: u64,
    text: &[u8],
    first: First,
    flags: u16,
) {
    let Some(meta) = session_epoch.lender.meta(text).await else {
        return session_epoch.complete(&Completion::bare(
            call,
            Status::Refused,
            session_epoch.epoch_low(),
        ));
    };
    let place = (meta.offset, meta.bytes);
    let token = session_epoch.next_token();
    give(tenant, session_epoch, call, token, Some((meta, place)), first.flow, first.chunk, flags);
}

#[allow(clippy::too_many_arguments, reason = "what a completion has")]
fn give(
    tenant: &Tenant,
    session_epoch: &Rc<SessionEpoch>,
    call: u64,
    token: u64,
    meta: Option<(Meta, (u32, u32))>,
    flow: Flow,
    chunk: Option<Chunk>,
    flags: u16,
) {
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
    let place = meta.as_ref().map_or((0, 0), |(_, place)| *place);
    let rest = (left > 0).then(|| read_ahead(session_epoch, flow));
    let held = LentBody { meta: meta.map(|(meta, _)| meta), slots, rest, is_body: true };
    session_epoch.tokens.borrow_mut().insert(token, held);
    session_epoch.complete(&Completion {
        flags: flags | if left > 0 { MORE } else { 0 },
        meta_offset: place.0,
        meta_bytes: place.1,
        body,
        token,
        body_left_bytes: left,
        ..Completion::bare(call, Status::Done, session_epoch.epoch_low())
    });
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

/// Executes a READ: completes it with the next chunk under the same token.
pub async fn read(
    tenant: &Tenant,
    session_epoch: &Rc<SessionEpoch>,
    call: u64,
    token: u64,
    wanted: u32,
) {
    let taken = session_epoch.tokens.borrow_mut().get_mut(&token).and_then(|held| {
        // The previous chunk's slots are released to the host.
        (held.meta, held.slots) = (None, None);
        held.rest.take()
    });
    let Some(rest) = taken else {
        return complain(session_epoch, call, HostCode::Invalid, "nothing is left to read").await;
    };
    let limit = if wanted == 0 { usize::MAX } else { wanted as usize };
    let (flow, chunk) = next(session_epoch, rest, limit).await;
    if !session_epoch.tokens.borrow().get(&token).is_some_and(|held| held.is_body) {
        return complain(session_epoch, call, HostCode::Invalid, "the body was released").await;
    }
    match chunk {
        Ok(Some(chunk)) => give(tenant, session_epoch, call, token, None, *flow, chunk, 0),
        Ok(None) => {
            // The guest retries after it has released something.
            if let Some(held) = session_epoch.tokens.borrow_mut().get_mut(&token) {
                held.rest = Some(Rest::Here(flow));
            }
            session_epoch.complete(&Completion::bare(
                call,
                Status::Refused,
                session_epoch.epoch_low(),
            ));
        }
        Err(error) => {
            let failed = Failed::from(error);
            let (code, message) = failed.said();
            say(session_epoch, call, Status::HostError, &host_meta(code, message), 0).await;
        }
    }
}

type Next = (Box<Flow>, Result<Option<Option<Chunk>>, TransportError>);

/// The result of the next chunk: an inner `None` is the end, an outer `None` means that no slot is
/// free.
async fn next(session_epoch: &Rc<SessionEpoch>, rest: Rest, limit: usize) -> Next {
    let mut flow = match rest {
        Rest::Here(flow) => flow,
        Rest::Ahead(mut ahead) => match (&mut ahead.1).await {
            Ok((flow, Ok(Some(chunk)))) => {
                return (flow, Ok(Some(Some(chunk)))).cut(session_epoch, limit);
            }
            Ok((flow, other)) => return (flow, other.map(Some)),
            // The task is aborted only through its handle.
            Err(_) => {
                let broken = TransportError::broken("the store", "dropped");
                let none = Box::new(crate::prefetch::Empty);
                return (Box::new(Flow::new(none, 1)), Err(broken));
            }
        },
    };
    let Some(slots) = session_epoch.lender.slots(flow.slots_due()).await else {
        return (flow, Ok(None));
    };
    let chunk = flow.fill(&session_epoch.lender, slots, limit).await;
    (flow, chunk.map(Some))
}

trait Cut {
    fn cut(self, session_epoch: &Rc<SessionEpoch>, limit: usize) -> Self;
}

impl Cut for Next {
    /// Keeps the bytes beyond the limit for the next READ.
    fn cut(mut self, session_epoch: &Rc<SessionEpoch>, limit: usize) -> Next {
        let Ok(Some(Some(chunk))) = &mut self.1 else { return self };
        if chunk.bytes > limit {
            let (at, more) = (chunk.slots.offset() + limit, chunk.bytes - limit);
            // The chunk was filled before the bytes that are still carried.
            let mut carry = Vec::with_capacity(more + self.0.carry.len());
            // The range lies within the chunk's own slots.
            let _ = session_epoch.arena().append_to(at, more, &mut carry);
            carry.append(&mut self.0.carry);
            self.0.carry = carry;
            chunk.bytes = limit;
        }
        self
    }
}

/// Completes a call with text only.
pub async fn say(
    session_epoch: &Rc<SessionEpoch>,
    call: u64,
    status: Status,
    text: &[u8],
    flags: u16,
) {
    let bare = Completion::bare(call, status, session_epoch.epoch_low());
    let Some(meta) = session_epoch.lender.meta(text).await else {
        // The call may have been executed, so it must not be reported as refused.
        let status = if status == Status::Refused { status } else { Status::HostError };
        return session_epoch.complete(&Completion { status, ..bare });
    };
    tell(session_epoch, bare, meta, flags);
}

fn tell(session_epoch: &SessionEpoch, bare: Completion, meta: Meta, flags: u16) {
    let token = session_epoch.next_token();
    let (meta_offset, meta_bytes) = (meta.offset, meta.bytes);
    let held = LentBody { meta: Some(meta), slots: None, rest: None, is_body: false };
    session_epoch.tokens.borrow_mut().insert(token, held);
    session_epoch.complete(&Completion { flags, meta_offset, meta_bytes, token, ..bare });
}

/// Completes a call with an error of the host.
pub async fn complain(session_epoch: &Rc<SessionEpoch>, call: u64, code: HostCode, message: &str) {
    say(session_epoch, call, Status::HostError, &host_meta(code.name(), message), 0).await;
}

/// Completes a call with an error of the host, if there is room for its text now.
pub fn try_complain(
    session_epoch: &Rc<SessionEpoch>,
    call: u64,
    code: HostCode,
    message: &str,
) -> bool {
    let Some(meta) = session_epoch.lender.try_meta(&host_meta(code.name(), message)) else {
        return false;
    };
    tell(
        session_epoch,
        Completion::bare(call, Status::HostError, session_epoch.epoch_low()),
        meta,
        0,
    );
    true
}
