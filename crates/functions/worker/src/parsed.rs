//! The request of a call before its role is asked, and the failures of calls that are not made.

use serde_json::{Map, Value};
use unlade_s3::failure::{HostCode, ServiceError};
use unlade_s3::operation::{Operation, find};
use unlade_s3::policy::Refused;
use unlade_s3::{Head, Request};

use crate::cut::denial;
use crate::perform::Failed;

/// The operation with this name, and its request.
///
/// # Errors
/// There is none, or the parameters are invalid.
pub(crate) fn parsed(
    operation: &str,
    parameters: &Map<String, Value>,
) -> Result<(&'static Operation, Request), Failed> {
    let operation =
        find(operation).ok_or_else(|| unsupported(&format!("the operation {operation} of s3")))?;
    let request = Request::new(operation, parameters).map_err(|e| invalid(&e.to_string()))?;
    Ok((operation, request))
}

/// The failure of a call that the role does not allow: it names the action that is missing.
pub(crate) fn denied(refused: Refused) -> Failed {
    let why = match refused {
        Refused::Action(not) => denial::message(&not),
        Refused::Name => "a bucket, a key, a version or a source in the request is not text, too \
                          long, or the ARN of an access point, which the host cannot decide about"
            .to_owned(),
    };
    let head = Head { status: 403, headers: Vec::new() };
    Failed::Service { error: ServiceError::denied(&why), head }
}

/// The failure of a call that the host does not know.
pub(crate) fn unsupported(what: &str) -> Failed {
    Failed::host(HostCode::Unsupported, format!("the host does not carry {what}"))
}

/// The failure of a call with invalid parameters.
pub fn invalid(why: &str) -> Failed {
    Failed::host(HostCode::Invalid, why)
}
