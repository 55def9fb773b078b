//! Resynchronisation requests and responses, and the device's metadata of processed bytes.

use unlade_net::SeqNumber;

/// The device's request: does a message start here? (`l5o_resync_rx_req`)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The candidate position.
    pub tcpsn: SeqNumber,
    /// The device's key; messages are counted per key.
    pub key: u16,
    /// The search that found the candidate; the response applies to this search only.
    pub generation: u32,
}

/// Software's response (`l5o_resync_rx_resp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request that it answers.
    pub request: Request,
    /// Number of messages before the one that starts there, or `None` if no message starts there
    /// or software does not remember it any more.
    pub number: Option<u64>,
}

/// A run of a flow's receive machine through the stream, from a synchronisation to the next loss.
/// Within a pass the machine only moves forward, and processes no byte twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Index of the flow's key, or other static state; software numbers them.
    pub key: u16,
    /// Distinguishes the passes of the flow.
    pub generation: u32,
}

/// The bounds of a message of the stream, as the device sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Start of the message.
    pub start: SeqNumber,
    /// Length in bytes, header included; 0 while the header is incomplete.
    pub bytes: u32,
    /// Number of messages before it, under the same static state.
    pub number: u64,
}

impl Extent {
    /// Returns true if it implies that message `number` starts at `start`.
    pub fn implies_start(&self, start: SeqNumber, number: u64) -> bool {
        let next = (self.start + self.bytes, self.number.wrapping_add(1));
        (self.start, self.number) == (start, number) || self.bytes > 0 && next == (start, number)
    }
}

/// The device's metadata for a range of processed bytes. It is valid for any part of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The pass in which the bytes were processed.
    pub pass: Pass,
    /// The message that the device assigned the first byte to. If it ends in the range it was
    /// verified.
    pub message: Extent,
}

impl Worked {
    /// Merges the metadata of two adjacent ranges, or returns `None` if they cannot be described
    /// together.
    pub fn join(self, next: Worked) -> Option<Worked> {
        let message = if self.message.bytes == 0 { next.message } else { self.message };
        (self.pass == next.pass).then_some(Worked { message, ..self })
    }
}
