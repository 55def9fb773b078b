//! Where frames go, and come from.
//!
//! - [`memory`]: to another port in this process;
//! - [`tap`]: to the kernel, through a TAP device;
//! - [`impair`]: around another port, a bad line;
//! - [`pcap`]: around another port, a file of what passes.

pub mod impair;
pub mod memory;
pub mod pcap;
pub mod tap;

/// Longest frame: Ethernet with a jumbo payload.
pub const FRAME_BYTES_MAX: usize = 9216;

/// An Ethernet frame without its check sequence, in a buffer of its own.
#[derive(Debug)]
pub struct Frame {
    raw: Box<[u8]>,
    bytes: usize,
}

impl Frame {
    /// A buffer of `room_bytes`, empty; no more than [`FRAME_BYTES_MAX`] are useful.
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

    /// Bytes of the buffer.
    pub fn room_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Makes the frame so long; what is in it is what was in the buffer. Nothing where the buffer
    /// is smaller.
    pub fn resize(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let raw = self.raw.get_mut(..bytes)?;
        self.bytes = bytes;
        Some(raw)
    }

    /// Makes the frame a copy of `bytes`; false where they do not fit.
    pub fn copy_from(&mut self, raw: &[u8]) -> bool {
        self.resize(raw.len()).is_some_and(|frame| {
            frame.copy_from_slice(raw);
            true
        })
    }
}

/// Takes frames out and in. Nothing here waits.
pub trait Port: Send {
    /// How many frames can be sent now. It is at some time at least
    /// [`SUPER_SEGMENT_FRAMES_MAX`](crate::queue::SUPER_SEGMENT_FRAMES_MAX).
    fn room(&mut self) -> usize;

    /// An empty frame to fill and send, or to give back.
    fn empty(&mut self) -> Frame;

    /// Sends a frame. Where there is no room it is lost, and false returned.
    fn send(&mut self, frame: Frame) -> bool;

    /// Sends a frame that lies in two parts; false where it is lost. A port that is done with the
    /// bytes when it returns need not put them together.
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

    /// The next frame that has come.
    fn receive(&mut self) -> Option<Frame>;

    /// Takes a frame back that is not needed any more.
    fn recycle(&mut self, frame: Frame);

    /// Time goes on; called before frames are asked for.
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
