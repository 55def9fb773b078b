//! What a device that takes a connection's records over promises to the software above it. TCP
//! stays where it is, in the kernel: records are written to the socket in the clear, and the device
//! seals them on their way; what comes it opens before the kernel has it, where it can.
//!
//! A connection goes through four steps: [`Device::create`]; records by [`Opening::receive`] and
//! [`Sealing::announce`]; [`Sealing::release`], after which nothing is sealed or opened by the
//! device any more; and [`Opening::unopened`], until what came before that has been read.

use core::fmt::Debug;
use core::future::Future;
use core::pin::Pin;

use bytes::Bytes;
use thiserror::Error;
use unlade_net::state::DirectionSecrets;
use unlade_net::{FlowKey, SeqNumber};
use zeroize::Zeroizing;

use crate::{Received, RecordError, RecordLayer};

/// What a device does while others go on.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How the device can know where in TCP's numbers the connection's streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It has seen the connection's start: byte 0 of either stream is the first one ever.
    Seen,
    /// The socket was built from a snapshot, which says it: byte 0 is the one with this number.
    Restored {
        /// Of what is sent: the first byte that is not acknowledged.
        send_seq: SeqNumber,
        /// Of what is received: the first byte that is not opened.
        receive_seq: SeqNumber,
        /// Bytes of that stream that the kernel may have by now, as they came; more are no
        /// mistake.
        delivered_bytes_max: u64,
    },
}

/// A cipher that a device can seal and open with. A suite names it in the suite table, or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
}

/// The keys of one direction, for a device. [`RecordLayer::device_keys`] alone makes them, of a suite
/// that names a device's cipher: no other suite can reach a device. They are zeroised when dropped,
/// and not printed.
#[derive(Clone)]
pub struct Keys {
    cipher: Cipher,
    is_13: bool,
    key: Zeroizing<Vec<u8>>,
    iv: [u8; 12],
    number: u64,
}

impl Keys {
    pub(crate) fn new(cipher: Cipher, is_13: bool, secrets: &DirectionSecrets) -> Keys {
        let key = Zeroizing::new(secrets.key.clone());
        Keys { cipher, is_13, key, iv: secrets.iv, number: secrets.sequence }
    }

    /// The cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// TLS 1.3, or TLS 1.2.
    pub fn is_13(&self) -> bool {
        self.is_13
    }

    /// The key, as long as the cipher's keys are.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The part of nonces from the handshake: all of it, or the first four bytes with TLS 1.2.
    pub fn iv(&self) -> [u8; 12] {
        self.iv
    }

    /// How many records were before under this key.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Keys {{ {:?}, number: {}, .. }}", self.cipher, self.number)
    }
}

/// A connection that is offered to a device, at a time when nothing is written to its socket or read
/// from it.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The connection; its client is this host's end, whoever opened it.
    pub name: FlowKey,
    /// Where byte 0 is.
    pub begin: Begin,
    /// Keys and number of the records that are received.
    pub read: Keys,
    /// Those of the records that are sent.
    pub write: Keys,
    /// Bytes that were read from the socket and are not opened.
    pub unopened_bytes: u64,
    /// Bytes that were written to the socket; the next one starts a record in the clear.
    pub written_bytes: u64,
    /// Bytes that were read from it.
    pub read_bytes: u64,
}

/// Why a device does not take a connection over. Everything stays as it was: records are sealed and
/// opened in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The connection's start did not go through the device, or it knows too many.
    #[error("the device has not seen the connection's start; records stay in software")]
    Unknown,
    /// It has it already.
    #[error("the device has the connection already; records stay in software")]
    Twice,
    /// It has ended.
    #[error("the device has ended; records stay in software")]
    Gone,
    /// It cannot do the cipher suite, or a message of the handshake is there in part.
    #[error("the device cannot go on with these records; they stay in software")]
    Unsuited,
    /// The socket could not be bound to the device's interface.
    #[error("the socket is not bound to the device's interface; records stay in software")]
    Unbound,
}

/// A device that takes records over.
pub trait Device: Debug + Send + Sync {
    /// The interface that it is behind. A socket has to be bound to it: nothing of an offloaded
    /// connection may take another way, on which it would not be sealed.
    fn interface(&self) -> &str;

    /// Takes a connection over in both directions, or refuses.
    fn create(&self, offer: Offer) -> Pending<Result<Halves, Refused>>;

    /// What it has counted: families of OpenMetrics, without the end.
    fn metrics(&self) -> String;
}

/// A connection that was taken over.
#[derive(Debug)]
pub struct Halves {
    /// What the peer sends.
    pub opening: Box<dyn Opening>,
    /// What is sent to the peer.
    pub sealing: Box<dyn Sealing>,
}

/// The receiving direction of a connection that was taken over.
pub trait Opening: Debug + Send {
    /// Takes the bytes that were read before; they came as they were. Once, and first of all.
    ///
    /// # Errors
    /// As [`Opening::receive`].
    fn receive_read(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError>;

    /// Takes the next bytes of the socket. Application data is appended to `plaintext`.
    ///
    /// # Errors
    /// What the peer has done wrong, or somebody on the way; the layer has an alert for it.
    fn receive(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError>;

    /// What was taken of a record that is not complete, as it came on the wire. Nothing where some
    /// of it, or of what is still in the socket, was opened by the device.
    fn unopened(&self) -> Option<Vec<u8>>;
}

/// The sending direction of a connection that was taken over.
pub trait Sealing: Debug + Send {
    /// Announces the records of `records`, which are whole ones in the clear; what was announced is
    /// to be written to the socket next. Returns how many bytes that are: fewer than there are
    /// where too much is unacknowledged.
    fn announce(&mut self, records: &Bytes) -> usize;

    /// Goes on under another key where the layer does: all records that were made before have been
    /// announced. False where that has to wait until more is acknowledged; no record may be
    /// announced before.
    fn follow_key(&mut self, layer: &RecordLayer) -> bool;

    /// So many bytes of what was written are not acknowledged; all that was announced has been
    /// written.
    fn acknowledge(&mut self, unacknowledged_bytes: u64);

    /// The device has nothing to do with the connection any more when this is over: what is
    /// received comes as it was, and what is written from here on leaves as it is. All that was
    /// written is acknowledged. False where the device has ended: the connection cannot go on.
    fn release(&mut self) -> Pending<bool>;
}
