//! Operations of the store that the gateway asks for: the objects of templates and of code, buckets of
//! stacks. They are decided like calls of functions; parameters, results and objects travel on the
//! control socket, within its limits.

use std::rc::Rc;

use serde_json::{Map, Value, json};
use unlade_guest_protocol::RequestHead;
use unlade_guest_protocol::control::{PERFORMED_BYTES_MAX, PerformEnd};
use unlade_s3::failure::HostCode;
use unlade_s3::retry::Attempts;
use unlade_s3::{Policy, Request};

use crate::invalidation::CacheInvalidation;
use crate::parsed::{denied, invalid, parsed};
use crate::perform::{Failed, perform};
use crate::store::{Body, read_all};
use crate::tenant::Tenant;

/// Performs the operation of a head, whose body is its parameters in JSON, as boto3 has them. The
/// answer is the object, or the result in JSON; an error of the store is `{"Code": …, "Message": …}`.
pub async fn act(
    tenant: &Tenant,
    policy: &Policy,
    head: &RequestHead,
    body: &[u8],
) -> (PerformEnd, Vec<u8>) {
    match acted(tenant, policy, head, body).await {
        Ok(Some((http_status, bytes))) => (PerformEnd::Answered { http_status }, bytes),
        Ok(None) => (PerformEnd::TooLong, Vec::new()),
        Err(Failed::Service { error, .. }) if error.by_role => {
            (PerformEnd::Denied { why: error.message().to_owned() }, Vec::new())
        }
        Err(Failed::Service { error, .. }) => {
            let text = json!({"Code": error.code(), "Message": error.message()}).to_string();
            (PerformEnd::Answered { http_status: error.status }, text.into_bytes())
        }
        Err(failed) => (PerformEnd::Failed { why: failed.said().1.to_owned() }, Vec::new()),
    }
}

/// The status and the bytes of the answer; `None` if they are too many.
async fn acted(
    tenant: &Tenant,
    policy: &Policy,
    head: &RequestHead,
    body: &[u8],
) -> Result<Option<(u16, Vec<u8>)>, Failed> {
    let mut parameters: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| invalid(&format!("parameters: {error}")))?;
    let environment = tenant.store_client.transport.environment(None);
    place(&head.operation, &mut parameters, &environment.region);
    let (operation, request) = parsed(&head.operation, &parameters)?;
    if operation.has_body {
        return Err(invalid(&format!("{} has a body, which the gateway has not", operation.name)));
    }
    policy.decide(operation, &parameters, &environment).map_err(denied)?;
    let request = Rc::new(request);
    let _outdates = CacheInvalidation::begin(tenant, &request);
    tenant.writeback.barrier(&request, &parameters).await;
    let sent = Rc::new(Body::from(request.xml.clone().unwrap_or_default()));
    let limit = tenant.limits.call_timeout;
    let late = |_| Failed::host(HostCode::Timeout, format!("no answer within {limit:?}"));
    tokio::time::timeout(limit, at_store(tenant, &request, &sent)).await.map_err(late)?
}

/// Names the place of a new bucket, which the gateway does not know: S3 demands it in every region but one,
/// and refuses it there.
fn place(operation: &str, parameters: &mut Map<String, Value>, region: &str) {
    const WITHOUT: &str = "us-east-1";
    if operation == "CreateBucket" && !region.is_empty() && region != WITHOUT {
        let place = json!({ "LocationConstraint": region });
        parameters.entry("CreateBucketConfiguration").or_insert(place);
    }
}

async fn at_store(
    tenant: &Tenant,
    request: &Rc<Request>,
    body: &Rc<Body>,
) -> Result<Option<(u16, Vec<u8>)>, Failed> {
    let mut attempts = Attempts::default();
    let performed = perform(&tenant.store_client, request, body, &mut attempts).await?;
    let status = performed.head.status;
    let Some(mut object) = performed.object else {
        let text = Value::Object(performed.result).to_string();
        return Ok(Some((status, text.into_bytes())));
    };
    let bytes_max = PERFORMED_BYTES_MAX as u64;
    let due = object.left_bytes().unwrap_or(bytes_max).min(bytes_max);
    let no_room =
        || Failed::host(HostCode::Unavailable, "the I/O worker has no room for the object");
    let _held = tenant.quota.hold(due).ok_or_else(no_room)?;
    let bytes = read_all(&mut *object, PERFORMED_BYTES_MAX).await?;
    Ok(bytes.map(|bytes| (status, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_bucket_is_in_the_region_of_the_store() {
        let placed = |operation: &str, region: &str| {
            let mut parameters = Map::from_iter([("Bucket".to_owned(), "b".into())]);
            place(operation, &mut parameters, region);
            parameters.remove("CreateBucketConfiguration")
        };
        let due = json!({"LocationConstraint": "eu-west-1"});
        assert_eq!(placed("CreateBucket", "eu-west-1"), Some(due));
        assert_eq!((placed("CreateBucket", "us-east-1"), placed("CreateBucket", "")), (None, None));
        assert_eq!(placed("DeleteBucket", "eu-west-1"), None);
    }
}
