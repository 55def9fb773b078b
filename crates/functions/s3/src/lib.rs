//! What the operations of an object store mean, for a host that carries them out in place of a
//! function: bytes and the time in, decisions out. No socket, clock or thread.
//!
//! In the order a call meets them:
//! - [`call`]: the text of a CALL;
//! - [`operation`]: which operations there are, as tables;
//! - [`policy`]: whether the role allows it;
//! - [`hint`]: which objects an event names, to be fetched before they are asked for;
//! - [`request`]: parameters into a request of the S3 REST API; [`encode`], [`value`], [`xml`];
//! - [`retry`]: whether and when a failed attempt is made again;
//! - [`response`]: an answer into what an SDK would return, or its error ([`failure`]);
//! - [`pending`]: writes that were acknowledged and are not durable: what readers see of them, and
//!   in which order they leave;
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
