//! The invocation gateway: an HTTP server for AWS Lambda's Invoke API.
//!
//! Modules, in the order in which an invocation passes them:
//! - [`serve`]: the process: its children, its listener, its drain; [`config`]: its configuration;
//! - [`api`]: the HTTP requests; [`auth`]: the authentication of callers; [`credentials`]:
//!   generated keys; [`permit`]: the choices that a deployment is allowed;
//! - [`invoke`]: one invocation: hint, instance, handler, pending writes, answer; [`events`]:
//!   asynchronous invocations;
//! - [`host`]: all functions, and the execution of the pool's actions; [`function`]: one function;
//!   [`attached_instance`]: one instance, started and attached;
//! - [`tenants`]: all tenants and their workers; [`worker`]: a worker's process, restarted when it
//!   ends; [`tenant`]: its roles, and its connection; [`link`]: the messages on that connection;
//! - [`deploy`]: deployments; [`trial`]: the trial import of a function; [`guest`]: the package
//!   that instances import;
//! - [`store`]: the built-in store; [`child`]: child processes.
//!
//! Isolation is not part of this crate: it is provided through a trait. Object I/O is the worker's
//! task.
#![forbid(unsafe_code)]

pub mod api;
pub mod attached_instance;
pub mod auth;
pub mod child;
pub mod config;
pub mod credentials;
pub mod deploy;
pub mod events;
pub mod function;
pub mod guest;
pub mod host;
pub mod invoke;
pub mod link;
pub mod permit;
pub mod serve;
pub mod store;
pub mod tenant;
pub mod tenants;
pub mod trial;
pub mod worker;

pub use config::{ConfigError, GatewayConfig};
pub use serve::{GatewayError, run};
