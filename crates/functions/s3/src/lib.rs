//! The semantics of an object store's operations, for a host that executes them in place of a
//! function. Bytes and the time are inputs, decisions are outputs. No socket, clock or thread.
//!
//! Modules, in the order in which a call passes them:
//! - [`call`]: the text of a CALL;
//! - [`operation`]: the tables of the operations;
//! - [`policy`]: the check of the role's rights;
//! - [`hint`]: the objects that an event names, for prefetching;
//! - [`request`]: parameters to a request of the S3 REST API; [`encode`], [`value`], [`xml`];
//! - [`retry`]: the retry policy;
//! - [`response`]: a response to an SDK's result, or its error ([`failure`]);
//! - [`pending`]: writes that were acknowledged and are not durable: their visibility and order;
//! - [`journal`]: records of writes that were acknowledged to a caller.
#![forbid(unsafe_code)]

pub mod call;
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
pub mod value;
pub mod xml;

pub use call::{Call, CallError};
pub use operation::Operation;
pub use policy::{Decision, Policy};
pub use request::{Request, RequestError};
pub use response::{Answer, Head};
