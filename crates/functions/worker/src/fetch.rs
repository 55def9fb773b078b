//! The transfer of an object to the guest in runs of slots: one run is lent while the next is
//! filled.

use std::rc::Rc;

use unlade_s3::failure::HostCode;

use crate::answer::Answer;
use crate::flow::{Chunk, Filled, Flow, Rest};
use crate::perform::Failed;
use crate::session_epoch::SessionEpoch;
use crate::store::TransportError;

/// Reads the first chunk. A failure here may be retried from the start.
///
/// # Errors
/// Outer: the connection broke. Inner `None`: the guest holds all slots and releases none.
pub async fn first(
    session_epoch: &Rc<SessionEpoch>,
    mut flow: Flow,
) -> Result<Option<Filled>, TransportError> {
    if flow.left_bytes() == Some(0) {
        return Ok(Some(Filled { flow, chunk: None }));
    }
    let Some(slots) = session_epoch.lender.slots(flow.slots_due()).await else { return Ok(None) };
    let chunk = flow.fill(&session_epoch.lender, slots, usize::MAX).await?;
    Ok(Some(Filled { flow, chunk }))
}

/// Executes a READ: the next chunk under the same token, of at most `wanted` bytes unless that is
/// zero.
///
/// # Errors
/// Nothing is left to read, or the connection broke.
pub async fn read(
    session_epoch: &Rc<SessionEpoch>,
    token: u64,
    wanted: u32,
) -> Result<Answer, Failed> {
    let invalid = |why: &str| Failed::host(HostCode::Invalid, why);
    let taken = session_epoch.tokens.borrow_mut().get_mut(&token).and_then(|held| {
        // The previous chunk's slots are released to the host.
        (held.meta, held.slots) = (None, None);
        held.rest.take()
    });
    let rest = taken.ok_or_else(|| invalid("nothing is left to read"))?;
    let limit = if wanted == 0 { usize::MAX } else { wanted as usize };
    let (flow, chunk) = next(session_epoch, rest, limit).await;
    if !session_epoch.tokens.borrow().get(&token).is_some_and(|held| held.is_body) {
        return Err(invalid("the body was released"));
    }
    match chunk? {
        Some(chunk) => Ok(Answer::Chunk { token, filled: Filled { flow: *flow, chunk } }),
        None => {
            // The guest retries after it has released something.
            if let Some(held) = session_epoch.tokens.borrow_mut().get_mut(&token) {
                held.rest = Some(Rest::Here(flow));
            }
            Ok(Answer::Refused)
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
