//! Forwards requests of adopted connections to a local server, and relays its responses.
//!
//! ```text
//!  client ──head──► written anew ──► local server   the head and the first part of the body
//!  client ──body──► local server                    while a response may already be coming
//!  local server ──head──► written anew ──► client   with the first part of the body
//!  local server ──body──► client                    as fast as the client takes it
//! ```
//!
//! - [`config`]: the table `[sidecar]`; [`address`]: where the local server is;
//! - [`serve`]: one request, from its head to the last byte of the response;
//! - [`pool`]: connections to the local server; `socket`: one of them; `proxy_protocol`: the header
//!   that names the client on it;
//! - `request`: the request as it is sent, and the rest of its body;
//! - `received`: bytes of the response; `buffer`: the memory for them;
//! - `response`: the response as the client gets it, and answers without the local server;
//! - [`failure`]: causes of failure, and their answers.

pub mod address;
mod buffer;
pub mod config;
pub mod failure;
pub mod pool;
mod proxy_protocol;
mod received;
mod request;
mod response;
pub mod serve;
mod socket;
#[cfg(test)]
mod tests;
