//! The agent at a server's host. It does one of two things, or both:
//!
//! - direct return: responses go to clients directly, without the balancer;
//! - the sidecar (`unlade_backend::Sidecar`): it adopts connections, and forwards their requests to a
//!   local server.
//!
//! Use it beside any server: the server's process does not take part. The agent ends in order on
//! SIGTERM; nothing stays attached.
//!
//! - [`config`]: the configuration file;
//! - [`secret`]: the file with the secret of the rules;
//! - [`agent`]: start, SIGHUP and end;
//! - `direct`: direct return: programs, sweeps, counts;
//! - `report`: counts of the programs as metrics;
//! - [`error`]: the error of all of these.
//!
//! # Limits
//! One interface for direct return, one for the sidecar. Needs CAP_NET_ADMIN and CAP_BPF; a sidecar
//! needs CAP_NET_RAW, too.
#![forbid(unsafe_code)]

pub mod agent;
pub mod config;
mod direct;
pub mod error;
mod report;
pub mod secret;

pub use agent::{check, run};
pub use config::AgentConfig;
pub use error::AgentError;
