//! The semantics of an object store's operations, for a host that executes them in place of a
//! function.
//!
//! Use it to stand between a client's S3 calls and a store: check rights, make the HTTP request,
//! decide about retries, and turn the response into the result that the SDK would return, for all
//! operations of the S3 REST API that boto3 has. Bytes and the time are inputs, decisions are
//! outputs. To sign and send the request is the caller's task.
//!
//! Modules, in the order in which a call passes them:
//! - [`call`]: the text of a CALL;
//! - [`operation`]: the tables of the operations;
//! - [`policy`]: the check of the role's rights; [`copy_source`]: the object that a copy reads;
//! - [`hint`]: the objects that an event names, for prefetching;
//! - [`request`]: parameters to a request of the S3 REST API; [`encode`], [`value`], [`xml`];
//! - [`retry`]: the retry policy;
//! - [`response`]: a response to an SDK's result, or its error ([`failure`]);
//! - [`served`]: the tables in the other direction, for a server that SDKs call;
//! - [`pending`]: writes that were acknowledged and are not durable: their visibility and order;
//! - [`journal`]: records of writes that were acknowledged to a caller.
//!
//! ```
//! use serde_json::json;
//! use unlade_http::Method;
//! use unlade_s3::policy::facts::Environment;
//! use unlade_s3::{Answer, Call, Head, Policy, Request, operation, response};
//!
//! let text = br#"{"service": "s3", "operation": "HeadObject",
//!     "parameters": {"Bucket": "in", "Key": "a b"}}"#;
//! let (call, _body) = Call::decode(text)?;
//! let operation = operation::find(&call.operation).ok_or("no such operation")?;
//!
//! let role = Policy::from_value(&json!({"statements": [
//!     {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["in/*"]}]}))?;
//! let (now, region) = (std::time::SystemTime::now(), "us-east-1".to_owned());
//! let now = Environment { now, region, has_tls: true, is_deferred: false };
//! assert_eq!(role.decide(operation, &call.parameters, &now), Ok(()));
//!
//! let request = Request::new(operation, &call.parameters)?;
//! assert_eq!((operation.method, request.path(true).as_str()), (Method::Head, "/in/a%20b"));
//!
//! // ... signed and sent by the caller; the store answers:
//! let fields = [("Content-Length", "7"), ("ETag", "\"x\"")];
//! let headers = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
//! let answer = response::understand(&request, &Head { status: 200, headers }, b"");
//! let Answer::Done(result) = answer else { panic!("{answer:?}") };
//! assert_eq!(result["ContentLength"], 7);
//!
//! // Nothing can be smuggled into another header or object.
//! let mut parameters = call.parameters;
//! parameters.insert("Key".to_owned(), "../other".into());
//! assert!(Request::new(operation, &parameters).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! No socket, clock or thread; no `unsafe`. Rights are a subset of IAM's
//! (`docs/functions/identity.md`, *Limits*). Tables of objects, lists, parts and buckets are written by hand, all others are
//! generated from botocore's; a test compares the former with it.
#![forbid(unsafe_code)]

pub mod call;
pub mod copy_source;
pub mod encode;
pub mod failure;
pub mod hint;
pub mod journal;
pub mod operation;
pub mod pending;
pub mod policy;
pub mod request;
pub mod response;
pub mod retry;
pub mod served;
pub mod value;
pub mod xml;

pub use call::{Call, CallError};
pub use operation::Operation;
pub use policy::{Decision, Policy};
pub use request::{Request, RequestError};
pub use response::{Answer, Head};
