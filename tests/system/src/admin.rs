//! The admin endpoints of programs on this machine, asked from the caller's network namespace.

use std::net::{Ipv4Addr, SocketAddr};

use unlade_command::http::{self, Bounds, HttpError};

/// Returns the text that the endpoint at `port` answers to a GET of `path`.
///
/// # Errors
/// No answer comes, or one with another status than 200.
pub fn get(port: u16, path: &str) -> Result<String, HttpError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let body = http::get(address, path, Bounds::default())?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Returns true if the process says that it drains.
pub fn is_draining(port: u16) -> bool {
    matches!(get(port, "/healthz"), Err(HttpError::Status { status, .. }) if status == 503)
}
