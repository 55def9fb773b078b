//! The interface between the state machines and the protocol above TCP (the *L5P*).

use crate::placement::Placer;

/// Maximum number of header bytes that the machines keep.
pub const HEADER_BYTES_MAX: usize = 8;

/// One message of the stream, as described by its header.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Number of messages before it, under the same static state.
    pub number: u64,
    /// Its length in bytes, header included.
    pub message_bytes: u32,
    /// Its header; only the first [`L5p::HEADER_BYTES`] bytes are used.
    pub header: [u8; HEADER_BYTES_MAX],
}

/// A protocol whose messages a device processes while TCP carries them (§3 of "Autonomous NIC
/// offloads", ASPLOS 2021). The value is the static state: keys, limits.
///
/// The transformation of a message keeps its length, and can stop and continue after any byte with
/// a state of constant size. A message starts with a header in the clear, from which it can be
/// recognised and which holds its length.
pub trait L5p {
    /// Number of header bytes that identify a header and give the length of its message.
    const HEADER_BYTES: usize;

    /// The bytes of a received message that software gets differ from those on the wire.
    const REWRITES: bool;

    /// Returns true if verification of a message also proves its number, even against an attacker,
    /// and if a transformation under a wrong number can be undone once that number is known.
    fn proves_number(&self) -> bool;

    /// State of the processing of one message.
    type Progress: Copy;

    /// Returns the length in bytes, header included, of the message that `header` begins, or
    /// `None` if it is no valid header. `header` has [`L5p::HEADER_BYTES`] bytes; the length is
    /// greater.
    fn message_bytes(&self, header: &[u8]) -> Option<u32>;

    /// Starts the processing of a message whose header is complete.
    fn begin(&self, message: &Message) -> Self::Progress;

    /// Processes the next `bytes` of a received message, `offset` bytes after its start; they do
    /// not extend beyond its end. The bytes for software are written to `out`, of the same length,
    /// if it is given. Data for a registered buffer goes to `placer`. Returns false if the message
    /// is already known to be corrupt.
    fn receive(
        &self,
        message: &Message,
        at: &mut Self::Progress,
        offset: u32,
        bytes: &[u8],
        out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> bool;

    /// Returns true if the message, received completely, is authentic or has correct digests.
    fn verify(&self, message: &Message, at: &Self::Progress) -> bool;

    /// Transforms the next `bytes` of a message to send into their form on the wire, in place.
    fn transmit(&self, message: &Message, at: &mut Self::Progress, offset: u32, bytes: &mut [u8]);

    /// As [`L5p::transmit`], from `bytes` to `out`, of the same length.
    fn transmit_to(
        &self,
        message: &Message,
        at: &mut Self::Progress,
        offset: u32,
        bytes: &[u8],
        out: &mut [u8],
    ) {
        out.copy_from_slice(bytes);
        self.transmit(message, at, offset, out);
    }
}
