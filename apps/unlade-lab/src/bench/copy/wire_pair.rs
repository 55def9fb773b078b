//! A TCP connection over the loopback that takes a whole message without a reader.

use anyhow::{Context, Result};
use rustix::net::sockopt;
use std::net::{TcpListener, TcpStream};

/// Bytes that either side's kernel keeps, at least.
const BUFFER_BYTES: usize = 8 << 20;

/// The sending and the receiving end.
///
/// # Errors
/// The kernel's; its limits for buffers are passed over where the user may.
pub fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening on the loopback")?;
    // Before the connection is made: it settles how large a window can be told of.
    let forced = sockopt::set_socket_recv_buffer_size_force(&listener, BUFFER_BYTES);
    forced.or_else(|_| sockopt::set_socket_recv_buffer_size(&listener, BUFFER_BYTES))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    sockopt::set_socket_send_buffer_size(&sender, BUFFER_BYTES)?;
    sender.set_nodelay(true)?;
    let (receiver, _) = listener.accept()?;
    receiver.set_nodelay(true)?;
    Ok((sender, receiver))
}
