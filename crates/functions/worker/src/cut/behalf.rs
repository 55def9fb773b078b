//! Requests of the gateway on behalf of a function: destinations of events, queues that a function is
//! fed from. They pass the same stages as a function's own requests; only their bodies come and go on
//! the control socket. Operations of S3 are those of [`behalf_store`].

use std::cell::Cell;
use std::rc::Rc;

use unlade_guest_protocol::RequestHead;
use unlade_guest_protocol::control::{
    ControlHead, PERFORM_BYTES_MAX, PERFORMED_BYTES_MAX, PERFORMS_MAX, PerformEnd,
};
use unlade_metrics::{CutRefusal, Event, PerformResult};
use unlade_s3::Policy;

use super::execute::{Exchanged, Unsent, exchange};
use super::refusal::Refusal;
use crate::behalf_store;
use crate::gateway::Gateway;
use crate::store::{Body, Incoming, read_all};
use crate::tenant::Tenant;

/// The requests of one gateway that are in flight.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Rc<Cell<usize>>);

/// The place of one request, released when this is dropped.
struct Place(Rc<Cell<usize>>);

impl InFlight {
    fn enter(&self) -> Option<Place> {
        (self.0.get() < PERFORMS_MAX).then(|| {
            self.0.set(self.0.get() + 1);
            Place(self.0.clone())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A request of the gateway.
pub struct Asked {
    /// The gateway's number.
    pub call: u64,
    /// The rights that apply.
    pub policy: Rc<Policy>,
    /// The head.
    pub request: RequestHead,
    /// The body.
    pub body: Vec<u8>,
}

/// Performs a request in a task of its own, and reports its end to the gateway.
pub fn begin(tenant: &Rc<Tenant>, gateway: &Gateway, in_flight: &InFlight, asked: Asked) {
    let held = tenant.quota.hold(asked.body.len() as u64);
    let (Some(place), Some(held)) = (in_flight.enter(), held) else {
        tenant.meter.add(Event::HostioPerformed(PerformResult::Busy));
        return gateway.say(ControlHead::Performed { call: asked.call, end: PerformEnd::Busy });
    };
    let (tenant, gateway) = (tenant.clone(), gateway.clone());
    tokio::task::spawn_local(async move {
        let _kept = (place, held);
        let call = asked.call;
        let (end, bytes) = perform(&tenant, asked).await;
        tenant.meter.add(Event::HostioPerformed(match &end {
            PerformEnd::Answered { http_status } if *http_status < 300 => PerformResult::Done,
            PerformEnd::Answered { .. } => PerformResult::Service,
            PerformEnd::Denied { .. } => PerformResult::Denied,
            PerformEnd::Busy => PerformResult::Busy,
            PerformEnd::TooLong | PerformEnd::Failed { .. } => PerformResult::Failed,
        }));
        if let Err(error) = gateway.say_with(ControlHead::Performed { call, end }, bytes) {
            tracing::error!(%error, "control: an answer was not said");
            gateway.say(ControlHead::Performed { call, end: PerformEnd::TooLong });
        }
    });
}

async fn perform(tenant: &Tenant, asked: Asked) -> (PerformEnd, Vec<u8>) {
    let Asked { policy, request, body, .. } = asked;
    let failed = |why: String| (PerformEnd::Failed { why }, Vec::new());
    let refused = |kind, why: String| {
        tenant.meter.add(Event::HostioServiceRefused(kind));
        failed(why)
    };
    if let Err(error) = request.check() {
        return refused(CutRefusal::Head, error.to_string());
    }
    if body.len() > PERFORM_BYTES_MAX {
        let why = format!("the request's body has more than {PERFORM_BYTES_MAX} bytes");
        return refused(CutRefusal::Head, why);
    }
    if request.service == "s3" {
        return behalf_store::act(tenant, &policy, &request, &body).await;
    }
    let body = Rc::new(Body::from(body));
    match exchange(tenant, &policy, &request, &body).await {
        Ok(Exchanged::Answered(Incoming { head, body })) => {
            answered(tenant, head.status, body).await
        }
        Ok(Exchanged::Denied { why, .. }) => (PerformEnd::Denied { why }, Vec::new()),
        Err(Unsent::Refused(Refusal { kind, why })) => refused(kind, why),
        Err(Unsent::Failed(why)) => failed(why.said().1.to_owned()),
    }
}

async fn answered(
    tenant: &Tenant,
    http_status: u16,
    mut body: Box<dyn crate::store::Reader>,
) -> (PerformEnd, Vec<u8>) {
    let limit = tenant.limits.call_timeout;
    let bytes_max = PERFORMED_BYTES_MAX as u64;
    let due = body.left_bytes().unwrap_or(bytes_max).min(bytes_max);
    let Some(_held) = tenant.quota.hold(due) else { return (PerformEnd::Busy, Vec::new()) };
    let read = read_all(&mut *body, PERFORMED_BYTES_MAX);
    match tokio::time::timeout(limit, read).await {
        Ok(Ok(Some(bytes))) => (PerformEnd::Answered { http_status }, bytes),
        Ok(Ok(None)) => (PerformEnd::TooLong, Vec::new()),
        Ok(Err(error)) => (PerformEnd::Failed { why: error.to_string() }, Vec::new()),
        Err(_) => {
            let why = format!("the answer has no end within {limit:?}");
            (PerformEnd::Failed { why }, Vec::new())
        }
    }
}
