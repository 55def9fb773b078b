//! Ports: sources and destinations of frames.
//!
//! - [`memory`]: to another port in this process;
//! - [`tap`]: to the kernel, through a TAP device;
//! - [`impair`]: around another port, simulation of a bad line;
//! - [`pcap`]: around another port, a capture file of its frames.

pub mod impair;
pub mod memory;
pub mod pcap;
pub mod tap;

/// Longest frame: Ethernet with a jumbo payload.
pub const FRAME_BYTES_MAX: usize = 9216;

/// An Ethernet frame without its check sequence, in its own buffer.
#[derive(Debug)]
pub struct Frame {
    raw: Box<[u8]>,
    bytes: usize,
}

impl Frame {
    /// Creates an empty frame with a buffer of `room_bytes`; [`FRAME_BYTES_MAX`] is enough for
    /// any frame.
    pub fn new(room_bytes: usize) -> Frame {
        Frame { raw: vec![0; room_bytes].into(), bytes: 0 }
    }

    /// The frame.
    pub fn as_slice(&self) -> &[u8] {
        &self.raw[..self.bytes]
    }

    /// The frame, to change it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.raw[..self.bytes]
    }

    /// Size of the buffer.
    pub fn room_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Sets the length of the frame, without a change of the buffer's content. Returns `None` if
    /// the buffer is smaller.
    pub fn resize(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let raw = self.raw.get_mut(..bytes)?;
        self.bytes = bytes;
        Some(raw)
    }

    /// Makes the frame a copy of `bytes`; false if they do not fit.
    pub fn copy_from(&mut self, raw: &[u8]) -> bool {
        self.resize(raw.len()).is_some_and(|frame| {
            frame.copy_from_slice(raw);
            true
        })
    }
}

/// Sends and receives frames. No call blocks.
pub trait Port: Send {
    /// The number of frames that can be sent now. It reaches at some time at least
    /// [`SUPER_SEGMENT_FRAMES_MAX`](crate::queue::SUPER_SEGMENT_FRAMES_MAX).
    fn room(&mut self) -> usize;

    /// Takes an empty frame to fill and send, or to return.
    fn empty(&mut self) -> Frame;

    /// Sends a frame. If there is no room it is lost, and false is returned.
    fn send(&mut self, frame: Frame) -> bool;

    /// Sends a frame in two parts; false if it is lost. A port that does not need the bytes after
    /// its return can avoid the copy into one buffer.
    fn send_parts(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        let mut frame = self.empty();
        let Some(raw) = frame.resize(headers.len() + payload.len()) else {
            self.recycle(frame);
            return false;
        };
        let (front, rest) = raw.split_at_mut(headers.len());
        front.copy_from_slice(headers);
        rest.copy_from_slice(payload);
        self.send(frame)
    }

    /// Takes the next received frame.
    fn receive(&mut self) -> Option<Frame>;

    /// Returns a frame that is no longer needed.
    fn recycle(&mut self, frame: Frame);

    /// Advances the clock; called before frames are received.
    fn advance(&mut self, now_ns: u64) {
        let _ = now_ns;
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn room(&mut self) -> usize {
        (**self).room()
    }

    fn empty(&mut self) -> Frame {
        (**self).empty()
    }

    fn send(&mut self, frame: Frame) -> bool {
        (**self).send(frame)
    }

    fn send_parts(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        (**self).send_parts(headers, payload)
    }

    fn receive(&mut self) -> Option<Frame> {
        (**self).receive()
    }

    fn recycle(&mut self, frame: Frame) {
        (**self).recycle(frame);
    }

    fn advance(&mut self, now_ns: u64) {
        (**self).advance(now_ns);
    }
}
