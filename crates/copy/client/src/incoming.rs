//! Receives that own their destination until they are over: for buffers that outlive the function
//! that requests the bytes, in safe code.
//!
//! The bytes stay in the socket's queue until they are needed, so there is no intermediate copy to
//! absorb. The service receives them if it is awake; otherwise the thread that syncs does.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use unlade_shm::Task;

use crate::admission::REST_BYTES_MIN;
use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;
use crate::pending::Kind;

/// Bytes that are to be received from a socket and appended to a buffer. This value owns the
/// buffer until [`Incoming::sync`] returns it.
///
/// ```
/// # use std::{io::Write, os::unix::net::UnixStream, sync::Arc};
/// let (mut peer, socket) = UnixStream::pair()?;
/// peer.write_all(b"value")?;
/// let socket = Arc::new(socket.into());
/// let mut incoming = unlade_copy::Incoming::new(&socket, Vec::with_capacity(64), 5);
/// assert!(incoming.has_arrived()?);
/// // ... other work; the bytes are needed now:
/// assert_eq!(incoming.sync()?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// The buffer cannot be touched meanwhile:
/// ```compile_fail,E0382
/// # use std::{os::unix::net::UnixStream, sync::Arc};
/// # let (_, socket) = UnixStream::pair().unwrap();
/// # let socket = Arc::new(socket.into());
/// let mut buffer = Vec::with_capacity(64);
/// let incoming = unlade_copy::Incoming::new(&socket, buffer, 5);
/// buffer.push(1); // error: `buffer` was moved
/// # drop(incoming);
/// ```
/// No part of it can be borrowed before the sync, either: there is no such method.
/// ```compile_fail,E0599
/// # use std::{os::unix::net::UnixStream, sync::Arc};
/// # let (_, socket) = UnixStream::pair().unwrap();
/// # let socket = Arc::new(socket.into());
/// let incoming = unlade_copy::Incoming::new(&socket, Vec::with_capacity(64), 5);
/// let first = incoming.as_slice()[0]; // error: no such method
/// ```
#[derive(Debug)]
#[must_use = "the bytes are in the way of those behind them until they are received"]
pub struct Incoming {
    socket: Arc<OwnedFd>,
    /// The received bytes; its spare capacity is for the rest.
    buffer: Vec<u8>,
    /// Number of bytes not received yet.
    left: usize,
    /// All remaining bytes were seen in the socket's queue.
    has_arrived: bool,
    /// The tasks for the first of them, if the service receives.
    queued: Option<Queued>,
}

#[derive(Debug)]
struct Queued {
    copier: Arc<Copier>,
    tokens: Vec<Token>,
    len: usize,
}

/// Reason why the bytes of an [`Incoming`] were not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer sent fewer bytes.
    #[error("the stream ended {0} bytes early")]
    Ended(usize),
    /// The socket's error.
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
    /// Error of the service.
    #[error(transparent)]
    Service(#[from] CopyError),
}

impl Incoming {
    /// Prepares to receive the next `len` bytes of `socket` and append them to `buffer`. No other
    /// reader should receive from the socket meanwhile.
    ///
    /// # Panics
    /// Panics if `buffer` has no room for them.
    pub fn new(socket: &Arc<OwnedFd>, buffer: Vec<u8>, len: usize) -> Incoming {
        assert!(len <= buffer.capacity() - buffer.len(), "no room for {len} bytes");
        Incoming { socket: Arc::clone(socket), buffer, left: len, has_arrived: false, queued: None }
    }

    /// Number of bytes that were not received yet, as far as this value has observed.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Returns true if all remaining bytes are in the socket's queue. Then the peer can no longer
    /// prevent their receipt: Linux returns queued bytes before it reports the end of the stream,
    /// a reset or another error.
    ///
    /// # Errors
    /// The socket's error.
    pub fn has_arrived(&mut self) -> io::Result<bool> {
        if !self.has_arrived {
            let waiting = rustix::io::ioctl_fionread(&*self.socket)?;
            self.has_arrived = waiting >= self.left as u64;
        }
        Ok(self.has_arrived)
    }

    /// Returns true if [`Incoming::sync`] would return without waiting.
    pub fn is_ready(&self) -> bool {
        match &self.queued {
            None => self.left == 0,
            Some(Queued { copier, tokens, len }) => {
                let is_ready = |token| copier.is_ready(token, 0..TASK_BYTES_MAX);
                *len == self.left && tokens.iter().all(is_ready)
            }
        }
    }

    /// Lets the service of `copier` receive the bytes, if it is awake, they have arrived
    /// ([`Incoming::has_arrived`]) and there are enough of them. Returns true if it does.
    pub fn offer(&mut self, copier: &Arc<Copier>) -> bool {
        // Bytes that have not arrived may never arrive: the buffer could then not be freed.
        if !self.has_arrived || self.left < REST_BYTES_MIN || self.queued.is_some() {
            return false;
        }
        if !copier.is_awake() {
            // Counts the bytes, so that enough traffic wakes the service for later receives.
            copier.wake_for(self.left);
            return false;
        }
        let mut tokens = Vec::with_capacity(self.left.div_ceil(TASK_BYTES_MAX));
        let mut at = 0;
        let room = self.buffer.spare_capacity_mut()[..self.left].as_mut_ptr().expose_provenance();
        while at < self.left {
            let part = (self.left - at).min(TASK_BYTES_MAX);
            // The tasks published here are completed before the buffer is used, returned or freed.
            // If the value is forgotten, the buffer and the socket are leaked and stay valid. Only
            // this value has the buffer, and moving a `Vec` does not move its heap memory.
            let written = room + at..room + at + part;
            let Some(ticket) = copier.acquire(part, written) else { break };
            let mut task = Task::copy((room + at) as u64, 0, part as u32);
            task.kind = unlade_shm::Kind::Receive;
            task.fd = self.socket.as_raw_fd();
            tokens.push(copier.publish(ticket, Kind::Receive, task, &CopyOptions::default()));
            at += part;
        }
        if at > 0 {
            self.queued = Some(Queued { copier: Arc::clone(copier), tokens, len: at });
        }
        at > 0
    }

    /// Returns true if the service receives the bytes.
    pub fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// Receives what has arrived, without waiting for more. Returns true if nothing is left.
    ///
    /// # Errors
    /// [`ReceiveError`]; bytes already received are kept.
    pub fn advance(&mut self) -> Result<bool, ReceiveError> {
        if self.queued.is_some() {
            return Ok(self.is_ready());
        }
        while self.left > 0 {
            match self.receive() {
                Ok(()) => {}
                Err(ReceiveError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives once.
    fn receive(&mut self) -> Result<(), ReceiveError> {
        match receive_some(self.socket.as_fd(), &mut self.buffer, self.left) {
            Ok(0) => Err(ReceiveError::Ended(self.left)),
            Ok(count) => {
                self.left -= count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(ReceiveError::Socket(error)),
        }
    }

    /// Waits for all bytes, receives the remaining ones in this thread, and returns the buffer.
    ///
    /// # Errors
    /// [`ReceiveError`]. The buffer is dropped then, with the received bytes.
    pub fn sync(mut self) -> Result<Vec<u8>, ReceiveError> {
        self.complete()?;
        while !self.advance()? {
            wait_for_input(self.socket.as_fd())?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Waits for the service's tasks. Afterwards only this value touches the buffer.
    fn complete(&mut self) -> Result<(), CopyError> {
        let Some(Queued { copier, tokens, len }) = &self.queued else { return Ok(()) };
        let len = *len;
        let mut completed = Ok(());
        for token in tokens {
            // Wait for each task, even after a failure: it may still write to the buffer.
            completed = completed.and(copier.sync(token, 0..TASK_BYTES_MAX));
        }
        self.queued = None;
        completed?;
        // SAFETY: each task has written its part of the `len` bytes behind the buffer's content,
        // within its capacity; the syncs made them visible.
        unsafe { self.buffer.set_len(self.buffer.len() + len) };
        self.left -= len;
        Ok(())
    }
}

impl Drop for Incoming {
    /// Aborts what is queued, and waits until no task writes to the buffer. A forgotten value is
    /// never dropped, and neither are its buffer and its socket.
    fn drop(&mut self) {
        if let Some(Queued { copier, tokens, .. }) = &self.queued {
            tokens.iter().rev().for_each(|token| copier.abort(token));
        }
        // The error cannot be returned from `drop`.
        let _ = self.complete();
    }
}

/// Receives up to `len` bytes and appends them to `buffer`, without waiting and without
/// initialising the spare capacity. Returns their number; 0 is the end of the stream.
///
/// # Errors
/// The socket's error: [`io::ErrorKind::WouldBlock`] if it has no bytes.
///
/// # Panics
/// Panics if `buffer` has no room for them.
pub fn receive_some(socket: BorrowedFd<'_>, buffer: &mut Vec<u8>, len: usize) -> io::Result<usize> {
    let room: &mut [MaybeUninit<u8>] = &mut buffer.spare_capacity_mut()[..len];
    let ((received, _), _) = rustix::net::recv(socket, room, RecvFlags::DONTWAIT)?;
    let count = received.len();
    // SAFETY: the kernel has written `count` bytes behind the buffer's content. They fit, since
    // `room` is within its capacity.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

fn wait_for_input(fd: BorrowedFd<'_>) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Service};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use unlade_copy_service::Polling;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 % 251) as u8).collect()
    }

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (peer, listener.accept().unwrap().0)
    }

    #[test]
    fn received_bytes_are_appended() {
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        let bytes = pattern(50_000);
        let mut buffer = Vec::with_capacity(60_000);
        buffer.extend_from_slice(&bytes[..100]);
        peer.write_all(&bytes[100..40_000]).unwrap();
        let mut incoming = Incoming::new(&socket, buffer, 49_900);
        assert!(!incoming.has_arrived().unwrap());
        assert!(!incoming.advance().unwrap());
        assert_eq!(incoming.left(), 10_000);
        peer.write_all(&bytes[40_000..]).unwrap();
        peer.write_all(b"behind").unwrap();
        assert!(incoming.has_arrived().unwrap() && !incoming.is_ready());
        assert_eq!(incoming.sync().unwrap(), bytes);
        let mut behind = [0; 6];
        rustix::io::read(&*socket, &mut behind).unwrap();
        assert_eq!(&behind, b"behind");
    }

    /// A reply may be sent before its request body is received: this relies on the property tested
    /// here.
    #[test]
    fn what_has_arrived_outlives_a_reset() {
        let (mut peer, socket) = tcp();
        let bytes = pattern(30_000);
        peer.write_all(&bytes).unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        let mut incoming = Incoming::new(&socket, Vec::with_capacity(30_000), 30_000);
        while !incoming.has_arrived().unwrap() {
            std::thread::yield_now();
        }
        rustix::net::sockopt::set_socket_linger(&peer, Some(std::time::Duration::ZERO)).unwrap();
        drop(peer);
        assert_eq!(incoming.sync().unwrap(), bytes);
        let next = Incoming::new(&socket, Vec::with_capacity(1), 1).sync();
        assert!(matches!(next, Err(ReceiveError::Socket(_) | ReceiveError::Ended(1))), "{next:?}");
    }

    #[test]
    fn a_truncated_stream_is_an_error() {
        let (mut peer, socket) = UnixStream::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        peer.write_all(b"abc").unwrap();
        drop(peer);
        let ended = Incoming::new(&socket, Vec::with_capacity(10), 10).sync();
        assert!(matches!(ended, Err(ReceiveError::Ended(7))), "{ended:?}");
    }

    #[test]
    fn the_service_receives_offered_bytes() {
        let config = Config { polling: Polling::Always, ..Config::default() };
        let service = Service::start(config).unwrap();
        let copier = Arc::new(Copier::new(service.attach().unwrap()));
        while !copier.is_awake() {
            std::thread::yield_now();
        }
        let (mut peer, socket) = tcp();
        let socket = Arc::new(OwnedFd::from(socket));
        let bytes = pattern(3 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| peer.write_all(&bytes).unwrap());
            let mut at = 0;
            for len in [40_000, 1, 20_000, 50_000, 16 << 10, 30_000] {
                let mut incoming = Incoming::new(&socket, Vec::with_capacity(len), len);
                assert!(!incoming.offer(&copier), "what has not been seen to arrive");
                while !incoming.has_arrived().unwrap() {
                    std::thread::yield_now();
                }
                assert_eq!(incoming.offer(&copier), len >= REST_BYTES_MIN);
                assert_eq!(incoming.is_queued(), len >= REST_BYTES_MIN);
                assert_eq!(incoming.sync().unwrap(), bytes[at..at + len]);
                at += len;
            }
            // Receive the rest, so that the peer's write completes.
            let rest = Incoming::new(&socket, Vec::with_capacity(bytes.len()), bytes.len() - at);
            assert_eq!(rest.sync().unwrap(), bytes[at..]);
        });
    }

    #[test]
    fn a_receive_dropped_in_the_service_is_aborted() {
        let config = Config { polling: Polling::Always, ..Config::default() };
        let service = Service::start(config).unwrap();
        let copier = Arc::new(Copier::new(service.attach().unwrap()));
        while !copier.is_awake() {
            std::thread::yield_now();
        }
        for _ in 0..200 {
            let (mut peer, socket) = UnixStream::pair().unwrap();
            let socket = Arc::new(OwnedFd::from(socket));
            peer.write_all(&pattern(40_000)).unwrap();
            let mut incoming = Incoming::new(&socket, Vec::with_capacity(40_000), 40_000);
            assert!(incoming.has_arrived().unwrap() && incoming.offer(&copier));
            drop(incoming);
        }
        copier.sync_all().unwrap();
    }
}
