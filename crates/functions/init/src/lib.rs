//! The first process of an instance whose function is in any language (`runtime = "provided"`).
//!
//! The program runs twice in each sandbox. As the *first process* it answers the gateway's request
//! for an instance (`first`): it starts itself again. The second one goes into its root and becomes
//! its user (`settle`), greets the worker (`link`), starts the function's `bootstrap`, and serves two
//! ports of the sandbox's own loopback interface (`run`):
//! - the Lambda Runtime API (`runtime_api`), through which `bootstrap` takes events;
//! - an endpoint for the SDKs of all languages ([`endpoint`]), whose requests become calls of the
//!   guest protocol: the I/O worker decides, signs and sends them.
//!
//! Neither process has an environment: variables as `LD_PRELOAD` would bring code of the function into
//! it before it is in the instance's control groups. The function's environment comes in the request
//! for the instance, and only `bootstrap` gets it.
//!
//! Everything in an instance is untrusted, this process included: the worker checks what it sends
//! (`docs/guest-protocol.md`). The process therefore needs no defence against `bootstrap` but
//! bounds: a connection, a header and a body that is buffered have a largest size, and a slow
//! sender occupies its own connection only.
#![forbid(unsafe_code)]

mod bootstrap;
mod call;
mod connections;
mod download;
pub mod endpoint;
mod first;
mod http;
mod instance;
mod invocation;
mod link;
mod outgoing;
mod output;
mod ranges;
mod room;
mod run;
mod runtime_api;
mod settle;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use first::INSTANCE;

/// The two processes of a sandbox that run this program. Each has its socket as standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first process; the socket is the control socket of a zygote.
    First,
    /// An instance; the socket brings the request for it.
    Instance,
}

/// Runs one of the two processes until it ends; returns its exit status.
///
/// # Errors
/// The operation that failed, for the log of the function.
pub fn run(part: Part) -> std::io::Result<u8> {
    match part {
        Part::First => first::run(),
        Part::Instance => {
            let settled = settle::settled()?;
            run::run(settled)
        }
    }
}
