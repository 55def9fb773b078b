//! CloudFormation's API for stacks, and STS's for the identity of a caller. The engine is
//! `unlade-fn-stacks`; here are its disk, its actions and its requests.
//!
//! Stages of a request: [`form`] → [`tenant_stacks`], which calls the engine and makes the change durable in
//! [`mod@file`] → [`driver`], which carries out one action after the other: [`resource`] calls the
//! file of its type with a [`task`].

mod bucket;
mod documents;
pub mod driver;
pub mod file;
pub mod form;
mod function;
mod http_api;
pub mod identities;
#[cfg(test)]
mod killed;
mod lambda;
mod log_group;
mod managed;
mod outcome;
mod properties;
mod queue;
pub mod resource;
mod role;
mod served;
mod service;
mod table;
pub mod task;
pub mod tenant_stacks;
mod topic;
mod url;

pub use service::StackService;
