//! The two builds: the copies that are made, and the copies that are absorbed.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unlade_copy::{Copier, Incoming, ReceiveError};

/// Minimum length of a value that is received in place. For a shorter value the saved copy, which
/// is within the caches, costs less than the overhead: one receive for the head, one for the
/// value, and a check of what has arrived.
const RECEIVE_BYTES_MIN: usize = 32 << 10;
/// Minimum length of a value that is sent in place. A copy of a shorter value costs less than
/// another part of a message.
const SEND_BYTES_MIN: usize = 8 << 10;
/// Length of a read for a connection whose values are received in place: the head of a request,
/// and little of the value.
const HEAD_BYTES: usize = 512;

/// Transfer of bytes from sockets to values, and back.
pub trait Copies: 'static {
    /// Its name.
    const NAME: &'static str;
    /// A value that is arriving.
    type Incoming: Arrival;

    /// Returns true if a value of this length is received in place.
    fn receives_in_place(&self, len: usize) -> bool;

    /// Returns the number of bytes to read from a connection that sent such a value last; `None`
    /// to fill all the room.
    fn head_bytes(&self) -> Option<usize>;

    /// Starts to receive the next `len` bytes of `socket`, behind those in `buffer`.
    fn receive(&self, socket: &Arc<OwnedFd>, buffer: Vec<u8>, len: usize) -> Self::Incoming;

    /// Lets the service receive a value that has arrived in the socket.
    fn offer(&self, incoming: &mut Self::Incoming);

    /// Returns true if a value of this length is sent in place.
    fn sends_in_place(&self, len: usize) -> bool;
}

/// A value that is arriving.
pub trait Arrival {
    /// Returns true if the complete value is in the socket's queue.
    ///
    /// # Errors
    /// The socket's error.
    fn has_arrived(&mut self) -> io::Result<bool>;
    /// Receives the available bytes. Returns true if the value is then complete.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn advance(&mut self) -> Result<bool, ReceiveError>;
    /// Returns true if the copy service is receiving the value and has not finished.
    fn is_in_service(&self) -> bool;
    /// Waits for the complete value.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn sync(self) -> Result<Vec<u8>, ReceiveError>;
}

/// Every copy is made, by the event loop: from the socket to the input, to the value, to the
/// output, to the socket.
#[derive(Debug, Default)]
pub struct Synchronous;

impl Copies for Synchronous {
    const NAME: &'static str = "sync";
    type Incoming = Infallible;

    fn receives_in_place(&self, _: usize) -> bool {
        false
    }

    fn head_bytes(&self) -> Option<usize> {
        None
    }

    fn receive(&self, _: &Arc<OwnedFd>, _: Vec<u8>, _: usize) -> Infallible {
        unreachable!("no value is received in place")
    }

    fn offer(&self, incoming: &mut Infallible) {
        match *incoming {}
    }

    fn sends_in_place(&self, _: usize) -> bool {
        false
    }
}

impl Arrival for Infallible {
    fn has_arrived(&mut self) -> io::Result<bool> {
        match *self {}
    }
    fn advance(&mut self) -> Result<bool, ReceiveError> {
        match *self {}
    }
    fn is_in_service(&self) -> bool {
        match *self {}
    }
    fn sync(self) -> Result<Vec<u8>, ReceiveError> {
        match self {}
    }
}

/// Large values are received in place, after the answer to their sender, and are sent from there.
/// A delayed value is received by the copy service, if there is one, or by the event loop before
/// the next client's turn.
#[derive(Debug, Default)]
pub struct Offloaded {
    copier: Option<Arc<Copier>>,
}

impl Offloaded {
    /// Creates the build with a client of a copy service; this pays if a core is available for it.
    pub fn with_service(copier: Arc<Copier>) -> Offloaded {
        Offloaded { copier: Some(copier) }
    }
}

impl Copies for Offloaded {
    const NAME: &'static str = "offload";
    type Incoming = Incoming;

    fn receives_in_place(&self, len: usize) -> bool {
        len >= RECEIVE_BYTES_MIN
    }

    fn head_bytes(&self) -> Option<usize> {
        Some(HEAD_BYTES)
    }

    fn receive(&self, socket: &Arc<OwnedFd>, buffer: Vec<u8>, len: usize) -> Incoming {
        Incoming::new(socket, buffer, len)
    }

    fn offer(&self, incoming: &mut Incoming) {
        if let Some(copier) = &self.copier {
            incoming.offer(copier);
        }
    }

    fn sends_in_place(&self, len: usize) -> bool {
        len >= SEND_BYTES_MIN
    }
}

impl Arrival for Incoming {
    fn has_arrived(&mut self) -> io::Result<bool> {
        Incoming::has_arrived(self)
    }
    fn advance(&mut self) -> Result<bool, ReceiveError> {
        Incoming::advance(self)
    }
    fn is_in_service(&self) -> bool {
        self.is_queued() && !self.is_ready()
    }
    fn sync(self) -> Result<Vec<u8>, ReceiveError> {
        Incoming::sync(self)
    }
}
