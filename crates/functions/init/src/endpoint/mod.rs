//! The endpoint for SDKs of all languages: `AWS_ENDPOINT_URL` in the function's environment. The
//! signature of a request is a placeholder, and tells service and region.
//!
//! - [`scope`]: service and region; [`chunked`] and `body`: the body;
//! - `dispatch`: S3, or another service;
//! - `s3`: calls of S3, by the tables of `unlade-s3`; `forward`: requests to all other services;
//! - `reply`: responses.

mod body;
pub mod chunked;
mod dispatch;
mod forward;
mod reply;
mod s3;
pub mod scope;

pub(crate) use self::dispatch::{answer, refusal};
