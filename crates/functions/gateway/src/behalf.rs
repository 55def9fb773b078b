//! Calls of services on behalf of a function: by its tenant's worker, which has the keys, with the
//! rights of the function's role. The gateway carries no credentials.

use std::time::Duration;

use unlade_guest_protocol::control::{PERFORM_BYTES_MAX, PerformEnd};

use crate::function::Function;
use crate::service_request::ServiceRequest;
use crate::tenant::Tenant;

/// Timeout of the connection to the worker, which may be starting.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reason why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The function's role does not allow it.
    #[error("{0}")]
    Denied(String),
    /// The request or its answer is too long.
    #[error("the request or its answer is too long")]
    TooLong,
    /// The service answered with an error.
    #[error("the service answered with {status}: {text}")]
    Service {
        /// The HTTP status.
        status: u16,
        /// The start of the answer.
        text: String,
    },
    /// The service was not reached, or refused before.
    #[error("{0}")]
    Failed(String),
}

/// Calls a service; returns the body of its answer. Waits while its tenant has as many calls as may be.
///
/// # Errors
/// See [`CallError`].
pub async fn call(function: &Function, request: ServiceRequest) -> Result<Vec<u8>, CallError> {
    call_as(&function.tenant, function.role, request).await
}

/// Calls a service, beside the limit of calls.
///
/// # Errors
/// See [`CallError`].
pub async fn perform(function: &Function, request: ServiceRequest) -> Result<Vec<u8>, CallError> {
    perform_as(&function.tenant, function.role, request).await
}

/// Calls a service with the rights of a role of a tenant. Waits while the tenant has as many calls as
/// may be.
///
/// # Errors
/// See [`CallError`].
pub async fn call_as(
    tenant: &Tenant,
    role: u64,
    request: ServiceRequest,
) -> Result<Vec<u8>, CallError> {
    // The semaphore is never closed.
    let _place = tenant.calls.acquire().await.ok();
    perform_as(tenant, role, request).await
}

async fn perform_as(
    tenant: &Tenant,
    role: u64,
    request: ServiceRequest,
) -> Result<Vec<u8>, CallError> {
    let ServiceRequest { mut head, body } = request;
    if body.len() > PERFORM_BYTES_MAX {
        return Err(CallError::TooLong);
    }
    head.body_bytes = body.len() as u64;
    let link = tenant.link(PATIENCE).await.map_err(CallError::Failed)?;
    let (end, answer) = link.perform(role, head, body).await;
    judged(end, answer)
}

fn judged(end: PerformEnd, answer: Vec<u8>) -> Result<Vec<u8>, CallError> {
    const TEXT_BYTES_MAX: usize = 512;
    match end {
        PerformEnd::Answered { http_status } if (200..300).contains(&http_status) => Ok(answer),
        PerformEnd::Answered { http_status: status } => {
            let start = &answer[..answer.len().min(TEXT_BYTES_MAX)];
            let text = String::from_utf8_lossy(start).into_owned();
            Err(CallError::Service { status, text })
        }
        PerformEnd::Denied { why } => Err(CallError::Denied(why)),
        PerformEnd::TooLong => Err(CallError::TooLong),
        PerformEnd::Busy => {
            Err(CallError::Failed("the I/O worker has as much to do as it may".to_owned()))
        }
        PerformEnd::Failed { why } => Err(CallError::Failed(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_success_or_an_error() {
        let of = |http_status| judged(PerformEnd::Answered { http_status }, b"x".to_vec());
        assert_eq!(of(202), Ok(b"x".to_vec()));
        let text = "x".to_owned();
        assert_eq!(of(400), Err(CallError::Service { status: 400, text }));
        let denied = judged(PerformEnd::Denied { why: "no".to_owned() }, Vec::new());
        assert_eq!(denied.unwrap_err().to_string(), "no");
        assert_eq!(judged(PerformEnd::TooLong, Vec::new()), Err(CallError::TooLong));
        assert!(matches!(judged(PerformEnd::Busy, Vec::new()), Err(CallError::Failed(_))));
    }
}
