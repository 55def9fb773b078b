//! Requests to services other than S3: prepared by the function's own SDK and cut off where it
//! would send them. The worker decides, signs and sends.
//!
//! Stages, called by [`execute`], in order: [`told`] (the operation that the request really is, by its protocol) →
//! [`resources`] with [`members`] (what it is on) → the role's policy, whose refusal is
//! [`denial`] → [`route`] (the endpoint) → [`sign`] → [`client`]. [`services`] has the tables.
//!
//! The guest is untrusted: it chooses a service by its name in a table and a region by its form,
//! never a host. The claimed operation is compared with the request. A redirect is an answer like
//! any other. A request is sent once: attempts are the SDK's.
//!
//! [`behalf`] does the same for requests that the gateway makes in the name of a function.

pub mod behalf;
pub mod client;
pub mod config;
pub mod denial;
pub mod execute;
pub mod form;
pub mod members;
pub mod refusal;
pub mod resources;
pub mod route;
pub mod services;
pub mod sign;
pub mod told;

pub use client::Services;
pub use config::ServicesConfig;
pub use refusal::Refusal;
