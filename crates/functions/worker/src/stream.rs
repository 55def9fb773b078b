//! A body that is streamed from the guest's slots to the store while the guest still sends it.
//!
//! No part of it is kept: bytes that the store has taken cannot be sent again from here. If
//! another attempt may help, the guest is asked to repeat the call ([`Answer::Again`]), and that call
//! counts as the next attempt of the same one. Slots are released once their bytes have been
//! copied, so a slow store slows the guest down.

use std::rc::Rc;
use std::time::Duration;

use unlade_metrics::{CallEnd, Event, Meter};
use unlade_s3::operation::find;
use unlade_s3::retry::Attempts;
use unlade_s3::{Call, Request};

use crate::answer::Answer;
use crate::caller::Caller;
use crate::complete;
use crate::copies::Copies;
use crate::invalidation::CacheInvalidation;
use crate::perform::{Failed, Performed, answered, next_wait};
use crate::quota::{CallRoom, HeldBytes};
use crate::region::GuestRange;
use crate::session_epoch::SessionEpoch;
use crate::store::chunked::CHUNK_BYTES;
use crate::store::{Local, Outgoing, TransportError};
use crate::stream_input::{RetryState, StreamInput};
use crate::tenant::Tenant;

/// Bytes that a stream reserves of the quota: one chunk, and the transport's copy of it.
pub const HELD_BYTES: u64 = 2 * CHUNK_BYTES as u64;
/// The smallest body that is streamed if it cannot be acknowledged early: one that a guest sends
/// in several descriptors.
pub const SYNC_BYTES_MIN: u64 = 1 << 20;

/// The body, as the transport pulls it.
struct Pull<'a> {
    stream_input: &'a StreamInput,
    session_epoch: &'a Rc<SessionEpoch>,
    meter: &'a Meter,
    copies: &'a Rc<Copies>,
    call: u64,
    /// Longest silence of the guest.
    silence_max: Duration,
}

impl Pull<'_> {
    /// Moves bytes of the first chunk; returns their number, `None` if there is no chunk. On
    /// cancellation the bytes in `out` are lost.
    async fn take(
        &self,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<usize>, TransportError> {
        let first = self.stream_input.first();
        let Some(GuestRange { arena, offset, bytes }) = first else { return Ok(None) };
        let bytes = bytes.min(bytes_max);
        let copied = self.copies.append(&arena, offset, bytes, std::mem::take(out)).await;
        // The range was checked when it arrived.
        let gone = || TransportError::Withheld("its memory is gone".to_owned());
        *out = copied.ok().and_then(Result::ok).ok_or_else(gone)?;
        self.meter.add_n(Event::HostioBytesOut, bytes as u64);
        self.taken(bytes);
        Ok(Some(bytes))
    }

    /// Consumes bytes of the first chunk, which have been copied; after the last byte the slots
    /// return to the guest.
    fn taken(&self, bytes: usize) {
        if self.stream_input.taken(bytes) {
            complete::part(self.session_epoch, self.call);
        }
    }
}

impl Outgoing for Pull<'_> {
    fn bytes(&self) -> u64 {
        self.stream_input.announced_bytes()
    }

    fn pull<'a>(
        &'a mut self,
        out: &'a mut Vec<u8>,
        bytes_max: usize,
    ) -> Local<'a, Result<(), TransportError>> {
        Box::pin(async move {
            loop {
                self.stream_input.check()?;
                match self.take(out, bytes_max).await? {
                    None => self.stream_input.change(self.silence_max).await?,
                    Some(0) => {}
                    Some(_) => {
                        self.stream_input.touch();
                        return Ok(());
                    }
                }
            }
        })
    }

    fn end(&mut self) -> Local<'_, Result<(), TransportError>> {
        Box::pin(async move {
            loop {
                self.stream_input.check()?;
                // An empty chunk may be the last one.
                match self.take(&mut Vec::new(), 0).await? {
                    Some(_) => {}
                    None if self.stream_input.has_ended() => return Ok(()),
                    None => self.stream_input.change(self.silence_max).await?,
                }
            }
        })
    }
}

/// A call whose body is streamed.
#[derive(Debug)]
pub struct Streamed {
    /// The call.
    pub call: Call,
    /// The input queue of its body.
    pub stream_input: Rc<StreamInput>,
    /// Previous attempts.
    pub attempts: Attempts,
    /// Its permit among the calls.
    pub room: CallRoom,
    /// The reserved bytes of its body.
    pub held: HeldBytes,
}

/// Returns true if the body of a call is streamed.
pub fn streams(caller: &Caller, call: &Call, before: RetryState) -> bool {
    let Some(operation) = find(&call.operation).filter(|operation| operation.has_body) else {
        return false;
    };
    let limits = &caller.tenant.limits;
    if call.service != "s3" || call.inline || before.is_whole || !limits.stream_bodies {
        return false;
    }
    let may_be_early = caller.tenant.writeback.may_acknowledge(
        operation.name,
        &call.parameters,
        &caller.invocation,
        caller.writes,
    );
    let bytes_min = match may_be_early {
        true => limits.stream_bytes_min,
        false => limits.stream_bytes_min.min(SYNC_BYTES_MIN),
    };
    call.body_bytes >= bytes_min.max(1)
}

/// Executes a call that the role allows, while its body arrives.
///
/// # Errors
/// The failure of the call, after its last attempt.
pub async fn act(
    caller: &Caller,
    number: u64,
    call: &Call,
    request: &Request,
    stream_input: &StreamInput,
    attempts: &mut Attempts,
) -> Result<Answer, Failed> {
    let (tenant, session_epoch) = (&caller.tenant, &caller.session_epoch);
    let _outdates = CacheInvalidation::begin(tenant, request);
    tenant.writeback.barrier(request, &call.parameters).await;
    loop {
        let silence_max = tenant.limits.call_timeout;
        let (meter, copies) = (&*tenant.meter, &tenant.copies);
        let mut body =
            Pull { stream_input, session_epoch, meter, copies, call: number, silence_max };
        let failed = match attempt(tenant, request, &mut body).await {
            Ok(Performed { result, head, .. }) => {
                attempts.succeeded(&mut tenant.store_client.retries.borrow_mut());
                return Ok(Answer::Result { result, head, flags: 0 });
            }
            Err(failed) => failed,
        };
        if lacks_chunks(&failed) {
            let before = RetryState { attempts: *attempts, is_whole: true };
            return Ok(again(caller, number, before, failed, Duration::ZERO));
        }
        let Some(wait) = next_wait(&tenant.store_client, attempts, &failed) else {
            return Err(failed);
        };
        if stream_input.was_touched() {
            let before = RetryState { attempts: *attempts, is_whole: false };
            return Ok(again(caller, number, before, failed, wait));
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

async fn attempt(
    tenant: &Tenant,
    request: &Request,
    body: &mut Pull<'_>,
) -> Result<Performed, Failed> {
    tenant.meter.add(Event::HostioRequest);
    tenant.meter.add(Event::HostioStreamed);
    let incoming = tenant.store_client.transport.upload(request, body).await?;
    answered(&tenant.store_client, request, incoming).await
}

/// Remembers a call that the guest may repeat.
fn again(
    caller: &Caller,
    number: u64,
    before: RetryState,
    failed: Failed,
    wait: Duration,
) -> Answer {
    caller.session_epoch.retry_table.put(number, before);
    caller.tenant.meter.add(Event::HostioBodyRepeated);
    caller.tenant.meter.add(Event::HostioCall(CallEnd::Refused));
    Answer::Again { failed, wait }
}

/// Returns true if the store does not support chunked transfers: the error is that of any
/// unsupported function.
fn lacks_chunks(failed: &Failed) -> bool {
    matches!(failed, Failed::Service { error, .. } if error.status == 501)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::CopyService;
    use crate::quota::{Limits, Quota};
    use crate::region::Region;
    use std::sync::Arc;
    use unlade_guest_protocol::region::SLOT_BYTES;
    use unlade_guest_protocol::{Extent, Layout, Operation, Submission};
    use unlade_testkit::cases;

    const SLOTS: u32 = 8;
    const LAYOUT: Layout =
        Layout { ring_entries: 64, meta_bytes: 4096, guest_slots: SLOTS, host_slots: 4 };

    fn body(first_slot: u32, bytes: u32, more: bool) -> Submission {
        let body = Extent { first_slot, bytes };
        Submission {
            call: 1,
            operation: Operation::Body,
            more,
            epoch: 9,
            meta_offset: 0,
            meta_bytes: 0,
            body,
            token: 0,
        }
    }

    /// Pulls everything that is available without waiting; returns it, and true if the end was
    /// reached.
    fn pulled(pull: &mut Pull<'_>, piece_bytes: usize) -> Result<Vec<u8>, TransportError> {
        let mut out = Vec::new();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while (out.len() as u64) < pull.bytes() {
            let polled = pull.pull(&mut out, piece_bytes).as_mut().poll(&mut context);
            match polled {
                std::task::Poll::Ready(done) => done?,
                std::task::Poll::Pending => return Ok(out),
            }
        }
        match pull.end().as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => done.map(|()| out),
            std::task::Poll::Pending => Ok(Vec::new()),
        }
    }

    /// Compares with a list of the chunks in the slots: the body is equal to it or refused.
    #[test]
    fn what_comes_out_is_what_was_put_into_slots_and_as_long_as_announced() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        cases(200, |random| {
            let region = Region::create(LAYOUT, 9).unwrap();
            let session_epoch = SessionEpoch::new(region);
            let count = 1 + random.below(SLOTS as u64 - 1) as u32;
            let lengths: Vec<u32> = (0..count).map(|_| random.below(SLOT_BYTES + 1)).collect();
            let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
            // One body in three announces a wrong length.
            let announced = match random.below(6) {
                0 => total + 1 + random.below(9000_u64),
                1 => total.saturating_sub(1 + random.below(9000_u64)),
                _ => total,
            };
            let stream_input = StreamInput::new(announced, &session_epoch.region().borrow());
            let mut due = Vec::new();
            for (slot, length) in lengths.iter().enumerate() {
                let bytes = random.bytes(*length as usize);
                let submission = body(slot as u32, *length, slot + 1 < lengths.len());
                let place = session_epoch.region().borrow().guest_range(submission.body).unwrap();
                place.arena.copy_in(place.offset, &bytes).unwrap();
                stream_input.push(&session_epoch.region().borrow(), &submission, true).unwrap();
                due.extend(bytes);
            }
            let silence_max = Duration::from_secs(60);
            let meter = Arc::new(Meter::new());
            let quota = Quota::new(Limits { calls_max: 1, held_bytes_max: 0 });
            let copies = &Copies::new(CopyService::Off, quota, meter.clone());
            let (session_epoch, meter) = (&session_epoch, &*meter);
            let mut pull = Pull {
                stream_input: &stream_input,
                session_epoch,
                meter,
                copies,
                call: 1,
                silence_max,
            };
            let found = pulled(&mut pull, 1 + random.below(100_000_usize));
            match announced == total {
                true => assert!(found.unwrap() == due),
                false => assert!(matches!(found, Err(TransportError::Withheld(_)))),
            }
        });
    }
}
