//! The launcher: the executable that a gateway starts for each sandbox, with a socket as its
//! standard input. It executes itself a second time.

use std::io::{Error, ErrorKind, IsTerminal, Result};
use std::os::fd::AsFd;

use rustix::net::SocketType;

pub use super::supervisor::CONFINED;
use super::{confine, supervisor};

/// Runs a launcher; `confined` is true if [`CONFINED`] was among its arguments. Returns when the
/// sandbox or its gateway has ended.
///
/// # Errors
/// The reason why there is no sandbox, which is also printed to standard error.
pub fn run(confined: bool) -> Result<()> {
    let input = std::io::stdin();
    let wrong = || {
        let why = "standard input is no socket of a gateway's: this is not for people to start";
        Error::new(ErrorKind::InvalidInput, why)
    };
    let kind = rustix::net::sockopt::socket_type(&input);
    if input.is_terminal() || kind != Ok(SocketType::SEQPACKET) {
        return Err(wrong());
    }
    // Descriptors that the gateway inherited must not reach functions.
    unlade_sys::descriptors::close_on_exec(3)?;
    let socket = input.as_fd().try_clone_to_owned()?;
    match confined {
        false => supervisor::run(socket),
        // Standard input stays open until the interpreter replaces it: its end signals the exec to
        // the supervisor.
        true => confine::run(socket).map(|never| match never {}),
    }
}
