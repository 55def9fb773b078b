//! The listener for callers that speak plain HTTP: function URLs and HTTP APIs.
//!
//! Stages of a request: [`listener`] (connections, limits) → [`address`] (the URL or API of the host name or
//! path) → [`answer`] (function URLs) or [`http_api`] (stage, route) → [`body`] (its limits) → [`call`] (the
//! event, the invocation, the response). [`request`] has heads and the ends of requests, [`apis`] the
//! definitions of HTTP APIs on the disk; those of URLs are in the records of functions.

pub mod address;
pub mod answer;
pub mod apis;
pub mod body;
pub mod call;
pub mod http_api;
pub mod listener;
pub mod request;
mod stream;

pub use listener::serve;
