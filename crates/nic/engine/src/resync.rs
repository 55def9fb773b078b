//! What device and software say to each other about where messages start.

use unlade_net::SeqNumber;

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
/// one it goes forwards only, and takes no byte twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which of the flow's keys, or other static state, it works with; software counts them.
    pub key: u16,
    /// Tells it from every other run of the flow.
    pub generation: u32,
}

/// A message of the stream, as the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts.
    pub start: SeqNumber,
    /// Its length in bytes, header included; 0 where its header was not complete yet.
    pub bytes: u32,
    /// How many messages were before it, under the same static state.
    pub number: u64,
}

impl Extent {
    /// True where it says that message `number` starts at `start`.
    pub fn tells(&self, start: SeqNumber, number: u64) -> bool {
        let next = (self.start + self.bytes, self.number.wrapping_add(1));
        (self.start, self.number) == (start, number) || self.bytes > 0 && next == (start, number)
    }
}

/// What the device says of bytes that it has worked on. It stays true of any part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// The run in which it has.
    pub pass: Pass,
    /// The message that it took the first of them for. Where it ends in them it was verified.
    pub message: Extent,
}

impl Worked {
    /// Bytes that follow, of which the device says `next`, become one range with these: what is said
    /// of all of them. Nothing where that cannot be said together.
    pub fn join(self, next: Worked) -> Option<Worked> {
        let message = if self.message.bytes == 0 { next.message } else { self.message };
        (self.pass == next.pass).then_some(Worked { message, ..self })
    }
}
