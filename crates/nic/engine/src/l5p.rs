//! What a machine has to know of the protocol above TCP (the *L5P*), and nothing else.

use crate::placement::Placer;

/// Most bytes of a header that the machines keep.
pub const HEADER_BYTES_MAX: usize = 8;

/// One message of the stream, as its header tells.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// How many messages were before it, under the same static state.
    pub number: u64,
    /// Its length in bytes, header included.
    pub message_bytes: u32,
    /// Its header; the first [`L5p::HEADER_BYTES`] bytes count.
    pub header: [u8; HEADER_BYTES_MAX],
}

/// A protocol whose messages a device works on while TCP carries them (§3 of "Autonomous NIC
/// offloads", ASPLOS 2021). The value is the static state: keys, limits.
///
/// What it does to a message keeps its length, and can stop and go on after any byte with a
/// state of constant size. A message starts with a header in the clear, by which one can be
/// recognised and its length known.
pub trait L5p {
    /// Bytes of a header that say whether it is one and how long its message is.
    const HEADER_BYTES: usize;

    /// What software is to see of a received message differs from what came.
    const REWRITES: bool;

    /// A message that is verified is the one with its number, and no other, whoever has written
    /// it; and what was done to one under a wrong number can be undone by who knows that number.
    fn proves_number(&self) -> bool;

    /// How far the work on one message has come.
    type Progress: Copy;

    /// The length in bytes, header included, of the message that `header` begins; nothing where
    /// it cannot be a header. `header` has [`L5p::HEADER_BYTES`] bytes, and the length is more.
    fn message_bytes(&self, header: &[u8]) -> Option<u32>;

    /// The work on a message whose header is complete.
    fn begin(&self, message: &Message) -> Self::Progress;

    /// Takes the next `bytes` of a message that arrives, `offset` bytes behind its start; they
    /// do not reach beyond its end. What software is to see in their place goes to `out`, of the
    /// same length, where somebody wants it. Data with a place of its own goes to `placer`. False
    /// where the message is known not to be what its sender sent.
    fn receive(
        &self,
        message: &Message,
        at: &mut Self::Progress,
        offset: u32,
        bytes: &[u8],
        out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> bool;

    /// True where the message that was received whole is what its sender sent.
    fn verify(&self, message: &Message, at: &Self::Progress) -> bool;

    /// Turns the next `bytes` of a message that is sent into what the wire gets, in place.
    fn transmit(&self, message: &Message, at: &mut Self::Progress, offset: u32, bytes: &mut [u8]);

    /// The same, from `bytes` to `out`, of the same length.
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
