//! The two builds: which copies are made, and which are absorbed.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unlade_copy::{Copier, Incoming, ReceiveError};

/// From so many bytes on a value is received where it is kept. Below, what is saved, a copy within
/// the caches, is less than what it takes to ask for it: one receive for the head and one for the
/// value, and a look at what has arrived.
const RECEIVE_BYTES_MIN: usize = 32 << 10;
/// From so many bytes on a value is sent from where it is kept. Below, a copy costs less than one
/// more piece of a message.
const SEND_BYTES_MIN: usize = 8 << 10;
/// What is read of a connection whose values are received where they are kept: the head of a
/// request, and little of the value.
const HEAD_BYTES: usize = 512;

/// How bytes get from sockets to values, and back.
pub trait Copies: 'static {
    /// Its name.
    const NAME: &'static str;
    /// A value on its way.
    type Incoming: Arrival;

    /// Whether a value of so many bytes is received where it is kept.
    fn receives_in_place(&self, len: usize) -> bool;

    /// Bytes to be read of a connection that sent such a value last; nothing for as many as there
    /// is room for.
    fn head_bytes(&self) -> Option<usize>;

    /// The next `len` bytes of `socket`, which go behind those in `buffer`.
    fn receive(&self, socket: &Arc<OwnedFd>, buffer: Vec<u8>, len: usize) -> Self::Incoming;

    /// What is known to have arrived can be received by somebody else meanwhile.
    fn offer(&self, incoming: &mut Self::Incoming);

    /// Whether a value of so many bytes is sent from where it is kept.
    fn sends_in_place(&self, len: usize) -> bool;
}

/// A value on its way.
pub trait Arrival {
    /// Whether all of it waits in the socket's queue.
    ///
    /// # Errors
    /// The socket's.
    fn has_arrived(&mut self) -> io::Result<bool>;
    /// Receives what is there. True where that is all.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn advance(&mut self) -> Result<bool, ReceiveError>;
    /// Whether somebody else receives it, and has not finished.
    fn is_elsewhere(&self) -> bool;
    /// Waits for all of it.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn sync(self) -> Result<Vec<u8>, ReceiveError>;
}

/// Every copy is made, by the event loop: from the socket into the input, into the value; from the
/// value into the output, to the socket.
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
    fn is_elsewhere(&self) -> bool {
        match *self {}
    }
    fn sync(self) -> Result<Vec<u8>, ReceiveError> {
        match self {}
    }
}

/// Large values are received where they are kept, after the answer to who sent them, and sent from
/// there. What is received late is received by the copy service, if there is one, or by the event
/// loop, before it turns to the next client.
#[derive(Debug, Default)]
pub struct Offloaded {
    copier: Option<Arc<Copier>>,
}

impl Offloaded {
    /// With a client of a copy service: worth it where a core is to spare for it.
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
    fn is_elsewhere(&self) -> bool {
        self.is_queued() && !self.is_ready()
    }
    fn sync(self) -> Result<Vec<u8>, ReceiveError> {
        Incoming::sync(self)
    }
}
