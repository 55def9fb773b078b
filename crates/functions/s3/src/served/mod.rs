//! The tables in the other direction: for a server that takes the HTTP requests of any SDK, and
//! passes operations and parameters on.
//!
//! - [`request`]: a request of the S3 REST API to its operation and parameters;
//! - [`response`]: the result or the error of an operation to a response of the S3 REST API.

pub mod request;
pub mod response;

#[cfg(test)]
mod tests;
