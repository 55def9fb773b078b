//! The interface of a device that takes over a connection's records. TCP stays in the kernel:
//! software writes records to the socket in the clear, and the device seals them in transit. The
//! device opens received records before they reach the kernel, if it can.
//!
//! A connection goes through four steps: [`Device::create`]; records with [`Opening::receive`] and
//! [`Sealing::announce`]; [`Sealing::release`], after which the device seals and opens nothing;
//! and [`Opening::unopened`], until everything that arrived before has been read.

use core::fmt::Debug;
use core::future::Future;
use core::pin::Pin;

use bytes::Bytes;
use thiserror::Error;
use unlade_metrics::OpenMetrics;
use unlade_net::{FlowKey, SeqNumber};

use crate::{Received, RecordError, RecordLayer};

pub use crate::device_keys::Keys;
pub use crate::suite::DeviceCipher as Cipher;

/// An asynchronous operation of the device.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The position of the connection's streams in TCP's sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The device has seen the start of the connection: byte 0 of each stream is its first byte.
    Seen,
    /// The socket was restored from a snapshot, which has the numbers of byte 0.
    Restored {
        /// Sending: number of the first byte that is not acknowledged.
        send_seq: SeqNumber,
        /// Receiving: number of the first byte that is not opened.
        receive_seq: SeqNumber,
        /// Most bytes of that stream that the kernel may have received unopened by now; an upper
        /// bound.
        delivered_bytes_max: u64,
    },
}

/// A connection that is offered to a device, while its socket is neither written nor read.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The connection; its client is this host's end, whichever end opened it.
    pub name: FlowKey,
    /// The position of byte 0.
    pub begin: Begin,
    /// Keys and record number of the receiving direction.
    pub read: Keys,
    /// Keys and record number of the sending direction.
    pub write: Keys,
    /// Number of bytes that were read from the socket and are not opened.
    pub unopened_bytes: u64,
    /// Number of bytes written to the socket; the next one starts a record in the clear.
    pub written_bytes: u64,
    /// Number of bytes read from the socket.
    pub read_bytes: u64,
}

/// The reason why a device does not take a connection over. Nothing changes: records are sealed
/// and opened in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The connection's start did not pass through the device, or the device has too many
    /// connections.
    #[error("the device has not seen the connection's start; records stay in software")]
    Unknown,
    /// The device already has the connection.
    #[error("the device has the connection already; records stay in software")]
    Duplicate,
    /// The device has ended.
    #[error("the device has ended; records stay in software")]
    Gone,
    /// The device does not support the cipher suite, or a handshake message has arrived in part.
    #[error("the device cannot go on with these records; they stay in software")]
    Unsupported,
    /// The socket could not be bound to the device's interface.
    #[error("the socket is not bound to the device's interface; records stay in software")]
    Unbound,
}

/// A device that takes over records.
pub trait Device: Debug + Send + Sync {
    /// The interface of the device. A socket must be bound to it: packets of an offloaded
    /// connection must not take another path, on which they would not be sealed.
    fn interface(&self) -> &str;

    /// Takes a connection over in both directions, or refuses.
    fn create(&self, offer: Offer) -> Pending<Result<Halves, Refused>>;

    /// Adds the device's metrics to the text of a process.
    fn add_metrics(&self, text: &mut OpenMetrics);
}

/// The two directions of a connection that was taken over.
#[derive(Debug)]
pub struct Halves {
    /// The receiving direction.
    pub opening: Box<dyn Opening>,
    /// The sending direction.
    pub sealing: Box<dyn Sealing>,
}

/// The receiving direction of a connection that was taken over.
pub trait Opening: Debug + Send {
    /// Takes the bytes that were read before, unopened. Called once, and first.
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
    /// The rule that the peer, or an attacker on the path, has broken; the layer has an alert for
    /// it.
    fn receive(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError>;

    /// The received part of an incomplete record, as on the wire. `None` if the device has opened
    /// some of it, or some of the bytes still in the socket.
    fn unopened(&self) -> Option<Vec<u8>>;
}

/// The sending direction of a connection that was taken over.
pub trait Sealing: Debug + Send {
    /// Announces the records of `records`, which are complete and in the clear; the caller writes
    /// the announced ones to the socket next. Returns the number of bytes announced: fewer than
    /// given if too much is unacknowledged.
    fn announce(&mut self, records: &Bytes) -> usize;

    /// Changes to another key if the layer has; all earlier records have been announced. Returns
    /// false if the change must wait for more acknowledgements; no record may be announced before.
    fn follow_key(&mut self, layer: &RecordLayer) -> bool;

    /// Updates the number of written bytes that are not acknowledged; all announced bytes have
    /// been written.
    fn acknowledge(&mut self, unacknowledged_bytes: u64);

    /// Releases the connection from the device: afterwards, received bytes arrive unopened and
    /// written bytes leave unchanged. All written bytes are acknowledged. Returns false if the
    /// device has ended: the connection cannot continue.
    fn release(&mut self) -> Pending<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::SUITES;

    #[test]
    fn keys_of_a_suite_that_no_device_supports_are_not_made() {
        for suite in SUITES {
            let key = vec![7; suite.cipher.key_bytes()];
            let keys = Keys::of(suite.cipher, suite.is_13(), &key, [1; 12], 3);
            assert_eq!(keys.as_ref().map(Keys::cipher), suite.cipher.device(), "{}", suite.name);
            // A key of another length must not pass for one of another cipher.
            for wrong in [16, 32, 17, 0].into_iter().filter(|&bytes| bytes != key.len()) {
                let keys = Keys::of(suite.cipher, suite.is_13(), &vec![7; wrong], [1; 12], 3);
                assert!(keys.is_none(), "{}: {wrong} bytes", suite.name);
            }
            // The name is a second source: `Cipher::device` could be wrong for a new cipher.
            let aes_gcm = suite.name.contains("_AES_") && suite.name.contains("_GCM_");
            assert_eq!(keys.is_some(), aes_gcm, "{}: devices have AES-GCM only", suite.name);
        }
    }
}
