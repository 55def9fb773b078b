//! Objects that the gateway reads: archives of code and templates of stacks. The tenant's worker reads
//! them with the tenant's own rights, part by part; each has a limit, and no object of a function is
//! among them.

use bytes::Bytes;
use serde_json::{Value, json};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_stacks::Object;

use crate::behalf::{self, CallError};
use crate::config::REGION;
use crate::host::Host;
use crate::service_request::of_store;
use crate::tenant::Tenant;

/// Length of the parts. An answer on the control socket has 6 MiB at most.
const PART_BYTES: usize = 4 << 20;

/// Reads an object of a tenant's store. It is the same from the first part to the last one, also if it is
/// replaced meanwhile: the read fails then.
///
/// # Errors
/// There is no such object, it is longer than `bytes_max`, the tenant may not read it, or the store does
/// not answer.
pub async fn read(
    host: &Host,
    tenant: &Tenant,
    object: &Object,
    bytes_max: usize,
) -> Result<Bytes, Refusal> {
    let role = host.own_rights(tenant);
    let ask = async |operation: &str, parameters: &Value| {
        let answer = behalf::call_as(tenant, role, of_store(REGION, operation, parameters)).await;
        answer.map_err(|error| refusal(object, operation, error))
    };
    let mut named = json!({"Bucket": object.bucket, "Key": object.key});
    if let Some(version) = &object.version {
        named["VersionId"] = version.as_str().into();
    }
    let about = ask("HeadObject", &named).await?;
    let about: Value = serde_json::from_slice(&about).unwrap_or_default();
    let length = about["ContentLength"].as_u64().and_then(|length| usize::try_from(length).ok());
    let unknown = || Refusal::Service(format!("{}: its length is not known", name(object)));
    let length = length.ok_or_else(unknown)?;
    if length > bytes_max {
        let why = format!("{} has {length} bytes; {bytes_max} are allowed", name(object));
        return Err(Refusal::Parameter(why));
    }
    if let Some(tag) = about["ETag"].as_str() {
        named["IfMatch"] = tag.into();
    }
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let end = length.min(bytes.len() + PART_BYTES);
        named["Range"] = format!("bytes={}-{}", bytes.len(), end - 1).into();
        let part = ask("GetObject", &named).await?;
        bytes.extend_from_slice(&part);
        if bytes.len() != end {
            let why = format!("{}: a part of another length was read", name(object));
            return Err(Refusal::Service(why));
        }
    }
    Ok(bytes.into())
}

fn name(object: &Object) -> String {
    format!("s3://{}/{}", object.bucket, object.key)
}

fn refusal(object: &Object, operation: &str, error: CallError) -> Refusal {
    let name = name(object);
    match error {
        CallError::Service { status: 404, .. } => Refusal::Parameter(format!(
            "Error occurred while {operation}. S3 Error Code: NoSuchKey. S3 Error Message: {name} does \
             not exist"
        )),
        CallError::Service { status: 412, .. } => {
            Refusal::Conflict(format!("{name} was replaced while it was read; try again"))
        }
        CallError::Service { status, text } => {
            Refusal::Parameter(format!("{operation} of {name}: the store says {status}: {text}"))
        }
        CallError::Denied(why) => Refusal::Parameter(format!("{operation} of {name}: {why}")),
        error => Refusal::Service(format!("{operation} of {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_store_are_those_of_the_caller_or_of_the_host() {
        let object = Object { bucket: "b".to_owned(), key: "k".to_owned(), version: None };
        let service = |status| CallError::Service { status, text: "why".to_owned() };
        let status = |error| refusal(&object, "GetObject", error).status();
        assert_eq!(status(service(404)), 400);
        assert_eq!((status(service(403)), status(service(412))), (400, 409));
        assert_eq!(status(CallError::Denied("no".to_owned())), 400);
        assert_eq!(status(CallError::Failed("gone".to_owned())), 500);
        let text = refusal(&object, "HeadObject", service(404)).message();
        assert!(text.contains("NoSuchKey") && text.contains("s3://b/k"), "{text}");
    }
}
