//! The invocation gateway: an HTTP server for AWS Lambda's Invoke API, and the parent of the
//! workers, the store and the instances of functions.
//!
//! Use it through `unlade fn serve`. To embed it: a [`GatewayConfig`], and [`serve`] with the
//! isolation backends that the program passes in behind a trait. It moves events and results, and
//! no object but code and templates.
//!
//! ```
//! use unlade_fn_gateway::GatewayConfig;
//!
//! // An empty file is a working configuration; a key that cannot be is refused with its remedy.
//! let config: GatewayConfig = unlade_config::parse("instances_max = 64\n", "fn.toml")?;
//! config.check()?;
//! assert_eq!(config.listen.to_string(), "127.0.0.1:9001");
//! assert_eq!(config.limits().instances_max, 64);
//!
//! let remote: GatewayConfig = unlade_config::parse("listen = \"0.0.0.0:9001\"\n", "fn.toml")?;
//! assert!(remote.check().unwrap_err().to_string().contains("allow_remote"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules, in the order in which an invocation passes them:
//! - [`serve`]: the process: its children, its listener, its drain; [`config`]: its configuration;
//! - [`api`]: the HTTP server, with [`request`] and [`answer`]; [`auth`]: the authentication of
//!   callers; [`credentials`]: generated keys; [`permit`]: the choices that a deployment is allowed; [`role_document`]: roles in files of their own;
//! - [`permission`]: the right of other callers than the owner to invoke; [`denials`]: the count and
//!   the log of denied requests;
//! - [`lambda_api`]: Lambda's API for the life cycle of functions; [`registry`]: their records, in
//!   files of [`record_file`];
//! - [`web`]: the listener for function URLs and HTTP APIs;
//! - [`invoke`]: one invocation: hint, instance, handler, pending writes, answer; [`call_context`]: the
//!   client context and the trace of its caller; [`events`]:
//!   asynchronous invocations, in files of [`event_file`], whose ends [`delivery`] sends on;
//! - [`stacks`]: CloudFormation's API: stacks, their disk, their actions; [`object`]: archives and templates
//!   that the tenant's worker reads;
//! - [`sources`]: queues that feed functions; [`behalf`]: calls of services on behalf of a function, with
//!   the requests of [`service_request`];
//! - [`host`]: all functions, and the execution of the pool's actions; [`function`]: one function;
//!   [`attached_instance`]: one instance, started and attached;
//! - [`observed`]: the metrics ([`function_meter`]) and the log ([`function_log`]) of a function;
//!   [`instance_log`]: the output of one instance;
//! - [`tenants`]: all tenants and their workers; [`worker`]: a worker's process, restarted when it
//!   ends; [`tenant`]: its roles, and its connection; [`link`]: the messages on that connection;
//! - [`deploy`]: deployments, unpacked by [`archive`]; [`install`]: tried and served; [`trial`]: the trial import of a function; [`guest`]: the package
//!   that instances import;
//! - [`store`]: the built-in store; [`notifications`]: its events of changed objects; [`child`]: child processes.
//!
//! # Limits
//! One thread. Isolation is not part of this crate: it is provided through a trait. Object I/O is
//! the worker's task. Requests are signed but not encrypted, hence `allow_remote`. No `unsafe`.
#![forbid(unsafe_code)]

pub mod answer;
pub mod api;
pub mod archive;
pub mod attached_instance;
pub mod auth;
pub mod behalf;
pub mod call_context;
pub mod child;
pub mod config;
pub mod credentials;
pub mod delivery;
pub mod denials;
pub mod deploy;
mod draw;
pub mod event_file;
pub mod events;
pub mod function;
pub mod function_log;
pub mod function_meter;
pub mod guest;
pub mod host;
pub mod install;
pub mod instance_log;
pub mod invoke;
pub mod lambda_api;
pub mod link;
pub mod notifications;
pub mod object;
pub mod observed;
pub mod permission;
pub mod permit;
pub mod record_file;
pub mod registry;
pub mod request;
pub mod role_document;
pub mod serve;
pub mod service_request;
pub mod source_queue;
pub mod source_task;
pub mod sources;
pub mod stacks;
pub mod store;
pub mod tenant;
pub mod tenants;
pub mod trial;
pub mod web;
pub mod worker;

pub use config::{ConfigError, GatewayConfig};
pub use serve::{GatewayError, run};
