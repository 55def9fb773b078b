//! The agent at a server's host: responses go to clients directly, without the balancer.
//!
//! Use it beside any server: the server's process does not take part, and its connections stay
//! ordinary ones. The agent ends in order on SIGTERM; nothing stays attached.
//!
//! - [`config`]: the configuration file;
//! - [`secret`]: the file with the secret of the rules;
//! - [`agent`]: start, sweeps, SIGHUP and end;
//! - `report`: counts of the programs as metrics;
//! - [`error`]: the error of all of these.
//!
//! # Limits
//! One interface. Needs CAP_NET_ADMIN and CAP_BPF.
#![forbid(unsafe_code)]

pub mod agent;
pub mod config;
pub mod error;
mod report;
pub mod secret;

pub use agent::{check, run};
pub use config::AgentConfig;
pub use error::AgentError;
