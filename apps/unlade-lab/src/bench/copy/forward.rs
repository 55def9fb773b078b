//! The least of a proxy: passes answers of known length on, through a buffer or by splice(2).
//! Beside the balancer it shows what the two ways cost by themselves.

use super::peers::REQUEST;
use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;
use unlade_sys::usage::ThreadUsage;

/// Bytes of the buffer, and room asked for in the pipe.
const BUFFER_BYTES: usize = 256 << 10;
const PIPE_BYTES: usize = 1 << 20;

/// A way through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Copy,
    Splice,
}

/// A forwarder of one connection; ends with it.
pub struct Forwarder {
    pub address: SocketAddr,
    thread: JoinHandle<Result<Duration>>,
}

impl Forwarder {
    /// Starts one that passes answers of `answer_bytes` on from `server`.
    ///
    /// # Errors
    /// No socket is to be had.
    pub fn start(server: SocketAddr, way: Way, answer_bytes: usize) -> Result<Forwarder> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        let address = listener.local_addr()?;
        let server = TcpStream::connect(server).context("connecting to the server")?;
        server.set_nodelay(true)?;
        let thread = std::thread::Builder::new().name("bench-forward".to_owned());
        let thread = thread.spawn(move || {
            let (client, _) = listener.accept()?;
            client.set_nodelay(true)?;
            forward(&client, &server, way, answer_bytes)?;
            Ok(ThreadUsage::now()?.cpu)
        })?;
        Ok(Forwarder { address, thread })
    }

    /// Waits for its end, that of its client's connection; the processor time that it used.
    ///
    /// # Errors
    /// A connection broke.
    pub fn finish(self) -> Result<Duration> {
        self.thread.join().unwrap_or_else(|_| anyhow::bail!("the forwarder panicked"))
    }
}

fn forward(client: &TcpStream, server: &TcpStream, way: Way, answer_bytes: usize) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Without the privilege the default capacity serves too.
    let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
    loop {
        let (asked, _) = recv(client, &mut buffer, RecvFlags::empty())?;
        if asked == 0 {
            return Ok(());
        }
        ensure!(asked == REQUEST.len(), "a request came in pieces");
        send_all(server, &buffer[..asked])?;
        let mut left = answer_bytes;
        while left > 0 {
            let moved = match way {
                Way::Copy => copy(server, client, &mut buffer)?,
                Way::Splice => pass(server, client, &reader, &writer, left)?,
            };
            ensure!(moved > 0, "the server ended within an answer");
            left -= moved.min(left);
        }
    }
}

fn copy(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> Result<usize> {
    let (got, _) = recv(from, &mut *buffer, RecvFlags::empty())?;
    send_all(to, &buffer[..got])?;
    Ok(got)
}

fn pass(
    from: &TcpStream,
    to: &TcpStream,
    reader: &OwnedFd,
    writer: &OwnedFd,
    bytes: usize,
) -> Result<usize> {
    // A pipe that is full of small pieces must not be waited for: nothing would empty it.
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let moved = match splice(from, None, writer, None, bytes.min(PIPE_BYTES), flags) {
        Err(Errno::AGAIN) => {
            // The socket has nothing: one that blocks says when it has.
            let mut one = [0; 1];
            recv(from, &mut one, RecvFlags::PEEK)?;
            splice(from, None, writer, None, bytes.min(PIPE_BYTES), flags)?
        }
        moved => moved?,
    };
    let mut left = moved;
    while left > 0 {
        left -= splice(reader, None, to, None, left, SpliceFlags::MOVE)?;
    }
    Ok(moved)
}

fn send_all(socket: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let sent = send(socket, bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::peers::{Client, Server, head};
    use super::*;

    #[test]
    fn both_ways_bring_the_right_bytes() {
        const BYTES: usize = 300_000;
        let server = Server::start(BYTES).unwrap();
        for way in [Way::Copy, Way::Splice] {
            let answer = head(BYTES).len() + BYTES;
            let forwarder = Forwarder::start(server.address, way, answer).unwrap();
            let mut client = Client::connect(forwarder.address, 1, BYTES).unwrap();
            assert!(client.run(Duration::from_millis(5)).unwrap().responses > 0);
            drop(client);
            assert!(forwarder.finish().unwrap() > Duration::ZERO);
        }
    }
}
