//! The invocation gateway: callers speak AWS Lambda's Invoke API to it.
//!
//! Stages, in the order an invocation meets them:
//! - [`serve`]: the process: its children, its listener, its drain; [`config`]: what it is told;
//! - [`api`]: what callers say over HTTP; [`auth`]: who they are; [`credentials`]: keys that are
//!   made for them; [`permit`]: what a deployment may choose;
//! - [`invoke`]: the life of one invocation: hint, instance, handler, settled writes, answer;
//!   [`events`]: those that nobody waits for;
//! - [`host`]: functions, the pool's actions carried out; [`member`]: the life of one instance;
//! - [`tenants`]: all of them, and which worker each has; [`worker`]: its process, started again where
//!   it ends; [`tenant`]: its roles, and its connection; [`link`]: what is said on that;
//! - [`deploy`]: functions that come and go; [`trial`]: whether one can be imported; [`guest`]: the
//!   package that instances import;
//! - [`store`]: the built-in store; [`child`]: a process that is one's own.
//!
//! What is absent: isolation itself, which is given as a trait, and everything of the objects,
//! which is the worker's.
#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
pub mod child;
pub mod config;
pub mod credentials;
pub mod deploy;
pub mod events;
pub mod guest;
pub mod host;
pub mod invoke;
pub mod link;
pub mod member;
pub mod permit;
pub mod serve;
pub mod store;
pub mod tenant;
pub mod tenants;
pub mod trial;
pub mod worker;

pub use config::{ConfigError, GatewayConfig};
pub use serve::{GatewayError, run};
