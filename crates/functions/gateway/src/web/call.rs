//! The invocation for a request: the event, the instance, the response of the result.

use std::rc::Rc;
use std::time::Duration;

use unlade_fn_http_event::{Context, Format, Response, event, result};
use unlade_fn_model::lambda::{EVENT_BYTES_MAX, Refusal};

use super::request::{Head, Web};
use crate::draw::draw;
use crate::function::key;
use crate::invoke::{Input, invoke};
use crate::permission::Place;

/// The reason why there is no response of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The event is too long.
    TooLarge,
    /// The function has no place, or its reserved concurrency is used up.
    Throttled,
    /// The function did not answer in time.
    Late,
    /// The function failed.
    Failed,
    /// The result is no response.
    Malformed,
    /// The function does not start, or the gateway failed.
    Unavailable,
}

/// The function of a request, and the terms of its invocation.
pub struct Order<'a> {
    /// The function.
    pub place: Place<'a>,
    /// The format of event and result.
    pub format: Format,
    /// Time in which the function has to answer; its own time if absent.
    pub timeout: Option<Duration>,
}

/// Invokes a function for a request, with its path at the URL or API; returns the response.
///
/// # Errors
/// See [`Fault`].
pub async fn call(
    web: &Rc<Web>,
    head: &Head,
    (path, body): (&str, &[u8]),
    context: &Context<'_>,
    order: Order<'_>,
) -> Result<Response, Fault> {
    let (name, record, qualifier) = order.place;
    let version = record.choose(qualifier, draw()).map_err(|_| Fault::Unavailable)?;
    let function = web.host.function(&key(name, version)).ok_or(Fault::Unavailable)?;
    let source = head.peer.ip().to_canonical().to_string();
    let request = head.request(path, body, &source);
    let event = match order.format {
        Format::V1 => event::v1(&request, context),
        Format::V2 => event::v2(&request, context),
    };
    if event.len() > EVENT_BYTES_MAX {
        return Err(Fault::TooLarge);
    }
    let (trace, invocation) = (head.trace.clone(), Some(head.id.clone()));
    let input = Input { event, trace, invocation, ..Input::default() };
    // An invocation goes on when nobody waits for it any more.
    let host = web.host.clone();
    let work = tokio::task::spawn_local(async move { invoke(&host, &function, input).await });
    let answered = match order.timeout {
        Some(timeout) => tokio::time::timeout(timeout, work).await.map_err(|_| Fault::Late)?,
        None => work.await,
    };
    let answer = match answered {
        Ok(Ok(answer)) => answer,
        Ok(Err(refusal)) => return Err(refused(name, &refusal)),
        Err(_) => return Err(Fault::Unavailable),
    };
    if answer.is_error {
        return Err(Fault::Failed);
    }
    let response = match order.format {
        Format::V1 => result::of_v1(&answer.result),
        Format::V2 => result::of_v2(&answer.result),
    };
    response.map_err(|why| {
        tracing::warn!(function = name, invocation = head.id, %why, "the result is no response");
        Fault::Malformed
    })
}

fn refused(name: &str, refusal: &Refusal) -> Fault {
    match refusal.status() {
        429 => Fault::Throttled,
        _ => {
            tracing::warn!(function = name, why = refusal.message(), "no invocation");
            Fault::Unavailable
        }
    }
}
