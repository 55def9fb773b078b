//! A port to the kernel through a TAP device.

use unlade_sys::tap::Tap;

use super::{FRAME_BYTES_MAX, Frame, Port};

/// Largest number of frames that are kept for reuse.
const SPARE_MAX: usize = 64;
/// Assumed room of the kernel in frames: it drops frames that it cannot take.
const ROOM: usize = 1024;

/// A port whose far end is the kernel's TCP.
pub struct TapPort {
    tap: Tap,
    spare: Vec<Frame>,
}

impl TapPort {
    /// Creates a port for the device.
    pub fn new(tap: Tap) -> TapPort {
        TapPort { tap, spare: Vec::new() }
    }
}

impl Port for TapPort {
    fn room(&mut self) -> usize {
        ROOM
    }

    fn empty(&mut self) -> Frame {
        self.spare.pop().unwrap_or_else(|| Frame::new(FRAME_BYTES_MAX))
    }

    fn send(&mut self, frame: Frame) -> bool {
        let sent = self.tap.send(frame.as_slice()).is_ok();
        self.recycle(frame);
        sent
    }

    fn send_parts(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        self.tap.send_parts(headers, payload).is_ok()
    }

    fn receive(&mut self) -> Option<Frame> {
        let mut frame = self.empty();
        let received = frame.resize(FRAME_BYTES_MAX).and_then(|room| self.tap.receive(room).ok());
        match received {
            Some(bytes) if bytes > 0 => {
                frame.resize(bytes);
                Some(frame)
            }
            _ => {
                self.recycle(frame);
                None
            }
        }
    }

    fn recycle(&mut self, frame: Frame) {
        if self.spare.len() < SPARE_MAX && frame.room_bytes() >= FRAME_BYTES_MAX {
            self.spare.push(frame);
        }
    }
}
