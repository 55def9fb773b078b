//! What device and software say to each other about where messages start.

use wire::SeqNumber;

/// The device asks: does a message start here? (`l5o_resync_rx_req`)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it believes that one starts.
    pub tcpsn: SeqNumber,
    /// The key that the device has: messages are counted for each anew.
    pub key: u16,
    /// Which search of the flow found it; the answer is for this one only.
    pub generation: u32,
}

/// Software answers (`l5o_resync_rx_resp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// What was asked.
    pub request: Request,
    /// How many messages were before the one that starts there; nothing where none does, or
    /// software does not know any more.
    pub number: Option<u64>,
}

/// A run of a flow's receive machine through the stream, from one start to the next loss. Within
/// one it goes forwards only, and takes no octet twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which of the flow's keys, or other static state, it works with; software counts them.
    pub key: u16,
    /// Tells it from every other run of the flow.
    pub generation: u32,
}
