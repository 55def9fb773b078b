//! The types of Lambda's Invoke API: requests, refusals, and failures of functions (AWS Lambda API
//! reference, *Invoke*; developer guide, *Error handling*).

use std::time::Duration;

use serde_json::json;

use crate::pool::Refused;

/// Most bytes of an event, and of a result.
pub const EVENT_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Most bytes of an asynchronous event.
pub const ASYNC_EVENT_BYTES_MAX: usize = 1024 * 1024;
/// The name of the version that deployments change.
pub const LATEST: &str = "$LATEST";
/// The value of the error header if the function failed.
pub const UNHANDLED: &str = "Unhandled";

/// `X-Amz-Invocation-Type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InvocationType {
    /// The caller waits for the result.
    #[default]
    RequestResponse,
    /// The caller does not wait.
    Event,
    /// Only checks that the function could be invoked.
    DryRun,
}

impl InvocationType {
    /// Parses the header.
    ///
    /// # Errors
    /// The value is unknown.
    pub fn parse(text: Option<&str>) -> Result<InvocationType, Refusal> {
        match text {
            None | Some("RequestResponse") => Ok(InvocationType::RequestResponse),
            Some("Event") => Ok(InvocationType::Event),
            Some("DryRun") => Ok(InvocationType::DryRun),
            Some(other) => Err(Refusal::Parameter(format!(
                "InvocationType {other:?} is none of RequestResponse, Event, DryRun"
            ))),
        }
    }
}

/// The reason why a caller is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// There is no signature.
    Missing,
    /// The signature is incomplete.
    Incomplete,
    /// The access key is unknown.
    Unrecognised,
    /// The request was signed too long ago, or for a later time.
    Expired,
    /// The signature differs from the expected one.
    Signature,
    /// The caller is authenticated but not permitted.
    Access,
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such function.
    NotFound(String),
    /// The function is another tenant's: the caller is told that there is none.
    Foreign(String),
    /// Another tenant has a function with the name.
    Taken(String),
    /// There is no such version, alias, policy or statement, with the reason.
    Absent(String),
    /// A version or an alias has no provisioned concurrency.
    NotProvisioned(String),
    /// The function has as many running invocations as are reserved for it.
    Reserved(u32),
    /// Too many requests, with the reason.
    Throttled(Refused),
    /// The event is too long: its limit in bytes.
    TooLarge(usize),
    /// The event is too long for an asynchronous invocation: its limit in bytes.
    EventTooLarge(usize),
    /// The event is not valid JSON, with the error.
    Content(String),
    /// The client context is not valid, with the reason.
    ClientContext(String),
    /// Another parameter is invalid.
    Parameter(String),
    /// The function cannot be changed now.
    Conflict(String),
    /// The state is not the one that the caller expects.
    Precondition(String),
    /// The resource policy would be too long: its limit in bytes.
    PolicyTooLong(usize),
    /// The caller is denied.
    Denied(Denial, String),
    /// The operation is not supported.
    Unsupported(String),
    /// The host failed.
    Service(String),
}

impl Refusal {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::NotFound(_)
            | Refusal::Foreign(_)
            | Refusal::Absent(_)
            | Refusal::NotProvisioned(_) => 404,
            Refusal::Throttled(Refused::Start(_)) => 502,
            Refusal::Throttled(Refused::Removed) => 404,
            Refusal::Throttled(_) | Refusal::Reserved(_) => 429,
            Refusal::TooLarge(_) | Refusal::EventTooLarge(_) => 413,
            Refusal::Content(_)
            | Refusal::ClientContext(_)
            | Refusal::Parameter(_)
            | Refusal::PolicyTooLong(_) => 400,
            Refusal::Conflict(_) | Refusal::Taken(_) => 409,
            Refusal::Precondition(_) => 412,
            Refusal::Denied(..) => 403,
            Refusal::Unsupported(_) => 501,
            Refusal::Service(_) => 500,
        }
    }

    /// The error code, from which SDKs derive an exception.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NotFound(_)
            | Refusal::Foreign(_)
            | Refusal::Absent(_)
            | Refusal::Throttled(Refused::Removed) => "ResourceNotFoundException",
            Refusal::NotProvisioned(_) => "ProvisionedConcurrencyConfigNotFoundException",
            Refusal::Throttled(Refused::Start(_)) => "InvalidRuntimeException",
            Refusal::Throttled(_) | Refusal::Reserved(_) => "TooManyRequestsException",
            Refusal::TooLarge(_) => "RequestTooLargeException",
            Refusal::EventTooLarge(_) => "RequestEntityTooLargeException",
            Refusal::Content(_) | Refusal::ClientContext(_) => "InvalidRequestContentException",
            Refusal::Parameter(_) => "InvalidParameterValueException",
            Refusal::Conflict(_) | Refusal::Taken(_) => "ResourceConflictException",
            Refusal::Precondition(_) => "PreconditionFailedException",
            Refusal::PolicyTooLong(_) => "PolicyLengthExceededException",
            Refusal::Denied(Denial::Missing, _) => "MissingAuthenticationTokenException",
            Refusal::Denied(Denial::Incomplete, _) => "IncompleteSignatureException",
            Refusal::Denied(Denial::Unrecognised, _) => "UnrecognizedClientException",
            Refusal::Denied(Denial::Signature | Denial::Expired, _) => "InvalidSignatureException",
            Refusal::Denied(Denial::Access, _) => "AccessDeniedException",
            Refusal::Unsupported(_) => "NotImplementedException",
            Refusal::Service(_) => "ServiceException",
        }
    }

    /// The message for humans.
    pub fn message(&self) -> String {
        match self {
            Refusal::NotFound(name) | Refusal::Foreign(name) => {
                format!("Function not found: {name}")
            }
            Refusal::Taken(name) => {
                format!("another tenant has a function {name}; choose another name")
            }
            Refusal::Throttled(why) => match why {
                Refused::Concurrency => {
                    "Rate Exceeded. The function has as many instances as it may have, and others \
                     wait; raise its concurrency, or try again"
                        .to_owned()
                }
                Refused::Memory => {
                    "Rate Exceeded. There is no memory for another instance; raise memory_max, or \
                     lower the function's memory"
                        .to_owned()
                }
                Refused::Waited => {
                    "Rate Exceeded. No instance was free in time; try again".to_owned()
                }
                Refused::Start(why) => format!("The function did not start: {why}"),
                Refused::Removed => "The function was removed".to_owned(),
            },
            Refusal::TooLarge(limit) => format!("Request must be smaller than {limit} bytes"),
            Refusal::EventTooLarge(limit) => {
                format!(
                    "The payload is too large for the Event invocation type (limit {limit} bytes)"
                )
            }
            Refusal::Content(why) => {
                format!("Could not parse request body into json: {why}")
            }
            Refusal::Reserved(reserved) => format!(
                "Rate Exceeded. The function has {reserved} invocations at a time reserved, and \
                 they run; raise its reserved concurrency (PutFunctionConcurrency), or try again"
            ),
            Refusal::PolicyTooLong(bytes_max) => {
                format!("the policy would be longer than {bytes_max} bytes: remove statements")
            }
            Refusal::ClientContext(why) => format!("The client context is invalid: {why}"),
            Refusal::Absent(why)
            | Refusal::NotProvisioned(why)
            | Refusal::Precondition(why)
            | Refusal::Parameter(why)
            | Refusal::Conflict(why)
            | Refusal::Denied(_, why)
            | Refusal::Unsupported(why)
            | Refusal::Service(why) => why.clone(),
        }
    }

    /// The body, in the format that SDKs parse.
    pub fn body(&self) -> String {
        let kind = if self.status() < 500 { "User" } else { "Service" };
        let mut body = json!({"Type": kind, "message": self.message(), "Message": self.message()});
        let reason = match self {
            Refusal::Throttled(Refused::Memory) => Some("CallerRateLimitExceeded"),
            Refusal::Throttled(_) => Some("ConcurrentInvocationLimitExceeded"),
            Refusal::Reserved(_) => Some("ReservedFunctionConcurrentInvocationLimitExceeded"),
            _ => None,
        };
        if let Some(reason) = reason {
            body["Reason"] = reason.into();
        }
        body.to_string()
    }
}

/// The failure of an invocation in its instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The timeout expired.
    TimedOut {
        /// The timeout.
        after: Duration,
    },
    /// Its process or machine ended.
    Exited {
        /// The known reason.
        why: String,
    },
    /// A write that was acknowledged did not become durable.
    WriteFailed {
        /// The writes, and the store's messages.
        what: Vec<String>,
    },
    /// The I/O worker ended: the durability of the writes is unknown.
    WorkerLost,
}

impl Failure {
    /// The result, in the format of a function's error.
    pub fn result(&self, invocation: &str) -> Vec<u8> {
        let (kind, message) = match self {
            Failure::TimedOut { after } => {
                let after_s = after.as_secs_f64();
                ("Sandbox.Timedout", format!("Task timed out after {after_s:.2} seconds"))
            }
            Failure::Exited { why } => {
                ("Runtime.ExitError", format!("Runtime exited without providing a reason: {why}"))
            }
            Failure::WriteFailed { what } => (
                "Unlade.WriteFailed",
                format!("acknowledged writes are not durable: {}", what.join("; ")),
            ),
            Failure::WorkerLost => (
                "Unlade.WorkerLost",
                "the I/O worker ended; whether the invocation's writes are durable is not known, \
                 invoke again"
                    .to_owned(),
            ),
        };
        let message = format!("RequestId: {invocation} Error: {message}");
        json!({"errorType": kind, "errorMessage": message}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_lambdas_names() {
        let throttled = Refusal::Throttled(Refused::Concurrency);
        assert_eq!((throttled.status(), throttled.code()), (429, "TooManyRequestsException"));
        let body: serde_json::Value = serde_json::from_str(&throttled.body()).unwrap();
        assert_eq!(body["Reason"], "ConcurrentInvocationLimitExceeded");
        assert_eq!(Refusal::TooLarge(5).status(), 413);
        let event = Refusal::EventTooLarge(5);
        assert_eq!((event.status(), event.code()), (413, "RequestEntityTooLargeException"));
        let denied = Refusal::Denied(Denial::Signature, "why".to_owned());
        assert_eq!((denied.status(), denied.code()), (403, "InvalidSignatureException"));
        assert!(denied.body().contains("\"message\":\"why\""));
        assert!(InvocationType::parse(Some("event")).is_err());
        assert_eq!(InvocationType::parse(Some("Event")), Ok(InvocationType::Event));
    }

    #[test]
    fn failures_have_the_form_of_errors() {
        let failure = Failure::TimedOut { after: Duration::from_secs(3) };
        let result: serde_json::Value = serde_json::from_slice(&failure.result("i-1")).unwrap();
        assert_eq!(
            result["errorMessage"],
            "RequestId: i-1 Error: Task timed out after 3.00 seconds"
        );
        assert_eq!(result["errorType"], "Sandbox.Timedout");
    }
}
