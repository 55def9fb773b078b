//! The execution of a request: checked, decided, signed, sent, and its answer delivered.

use std::rc::Rc;

use unlade_guest_protocol::{AnswerHead, RequestHead};
use unlade_metrics::{CallEnd, CutRefusal, CutService, Event};
use unlade_s3::Policy;
use unlade_s3::failure::HostCode;

use super::refusal::Refusal;
use super::{denial, resources, services, told};
use crate::answer::Answer;
use crate::caller::Caller;
use crate::fetch;
use crate::flow::Flow;
use crate::perform::Failed;
use crate::prefetch::Bytes;
use crate::store::{Body, Incoming};
use crate::tenant::Tenant;

/// The label of a service in metrics.
pub fn label(service: &str) -> CutService {
    match service {
        "dynamodb" => CutService::Dynamodb,
        "events" => CutService::Events,
        "kinesis" => CutService::Kinesis,
        "lambda" => CutService::Lambda,
        "logs" => CutService::Logs,
        "secretsmanager" => CutService::Secretsmanager,
        "sns" => CutService::Sns,
        "sqs" => CutService::Sqs,
        "ssm" => CutService::Ssm,
        "sts" => CutService::Sts,
        _ => CutService::Other,
    }
}

/// Records a refusal; it is the failure of the call.
pub fn refused(caller: &Caller, refusal: Refusal) -> Failed {
    caller.tenant.meter.add(Event::HostioServiceRefused(refusal.kind));
    let code = match refusal.kind {
        CutRefusal::Endpoint | CutRefusal::Service => HostCode::Unsupported,
        _ => HostCode::Invalid,
    };
    Failed::host(code, refusal.why)
}

/// The end of a request that was not refused.
pub enum Exchanged {
    /// The service has answered.
    Answered(Incoming),
    /// The role does not allow the request.
    Denied {
        /// The answer of the service's protocol.
        answer: AnswerHead,
        /// Its body.
        body: Vec<u8>,
        /// The reason, with the lines to add.
        why: String,
    },
}

/// The reason why a request has no answer.
pub enum Unsent {
    /// It was refused before the role was asked, or no endpoint is configured.
    Refused(Refusal),
    /// The service cannot be reached, or does not answer.
    Failed(Failed),
}

impl From<Refusal> for Unsent {
    fn from(refusal: Refusal) -> Unsent {
        Unsent::Refused(refusal)
    }
}

/// Checks, signs and sends a request, with the rights of a role; the body of its answer is unread.
///
/// # Errors
/// The request is refused, or the service cannot be reached.
pub async fn exchange(
    tenant: &Tenant,
    policy: &Policy,
    head: &RequestHead,
    body: &Rc<Body>,
) -> Result<Exchanged, Unsent> {
    let service = services::of_request(head)?;
    let named = RequestHead { service: service.name.to_owned(), ..head.clone() };
    let head = &named;
    let told = told::tell(service, head, body.bytes())?;
    let services = &tenant.services;
    let asked = resources::asked(service, services.is_aws(service), head, &told);
    if let Err(not_allowed) = policy.decide_on(&asked, &services.environment(service, head)) {
        let (answer, body) = denial::answer(head, &told, &not_allowed);
        let why = denial::message(&not_allowed);
        return Ok(Exchanged::Denied { answer, body, why });
    }
    let route = services.route(service, head)?;
    tenant.meter.add(Event::HostioServiceRequest(label(&head.service)));
    tenant.meter.add_n(Event::HostioBytesOut, body.bytes().len() as u64);
    let limit = tenant.limits.call_timeout;
    let sent = tokio::time::timeout(limit, services.send(&route, head, body, limit)).await;
    let late = |_| Failed::host(HostCode::Timeout, format!("no answer within {limit:?}"));
    let sent = sent.map_err(late).and_then(|sent| sent.map_err(Failed::from));
    sent.map(Exchanged::Answered).map_err(Unsent::Failed)
}

/// Executes a request: it is checked, signed and sent, and the answer's body comes to the guest in
/// slots.
///
/// # Errors
/// The request is refused, or the service cannot be reached.
pub async fn act(caller: &Caller, head: &RequestHead, body: &Rc<Body>) -> Result<Answer, Failed> {
    let window = caller.tenant.limits.window_slots;
    match exchange(&caller.tenant, &caller.policy(), head, body).await {
        Ok(Exchanged::Answered(Incoming { head: found, body })) => {
            let answer = AnswerHead { http_status: found.status, headers: joined(found.headers) };
            let end = if found.status < 300 { CallEnd::Done } else { CallEnd::Service };
            deliver(caller, answer, Flow::eager(body, window), end).await
        }
        Ok(Exchanged::Denied { answer, body, .. }) => {
            let reader = Bytes::all(&caller.tenant.copies, &Body::from(body));
            let flow = Flow::new(Box::new(reader), window);
            deliver(caller, answer, flow, CallEnd::Denied).await
        }
        Err(Unsent::Refused(refusal)) => Err(refused(caller, refusal)),
        Err(Unsent::Failed(failed)) => Err(failed),
    }
}

async fn deliver(
    caller: &Caller,
    answer: AnswerHead,
    flow: Flow,
    end: CallEnd,
) -> Result<Answer, Failed> {
    Ok(match fetch::first(&caller.session_epoch, flow).await? {
        Some(filled) => Answer::Http { head: answer, filled, end },
        None => Answer::Refused,
    })
}

/// Header fields with names in small letters; values of one name are joined, as an SDK's client
/// joins them.
fn joined(fields: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let name = name.to_ascii_lowercase();
        match out.iter_mut().find(|(found, _)| *found == name) {
            Some((_, found)) => {
                found.push_str(", ");
                found.push_str(&value);
            }
            None => out.push((name, value)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        assert_eq!(label("dynamodb"), CutService::Dynamodb);
        assert_eq!(label("other"), CutService::Other);
        assert_eq!(label("kms"), CutService::Other);
        for service in CutService::ALL.iter().filter(|service| **service != CutService::Other) {
            assert!(services::find(service.as_str()).is_ok(), "{service:?}");
            assert_eq!(label(service.as_str()), *service);
        }
    }

    #[test]
    fn fields_of_one_name_are_joined() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let found = joined(vec![field("A", "1"), field("b", "2"), field("a", "3")]);
        assert_eq!(found, [field("a", "1, 3"), field("b", "2")]);
    }
}
