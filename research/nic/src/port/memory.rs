//! A pair of ports in one process, connected to each other.

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Frame, Port};
use crate::queue::SUPER_SEGMENT_FRAMES_MAX;

/// Largest number of frames in transit.
const FRAMES_MAX: usize = 1 << 16;

/// One end.
pub struct MemoryPort {
    out: Producer<Frame>,
    /// Frames that were sent, returned empty.
    back: Consumer<Frame>,
    incoming: Consumer<Frame>,
    /// Ring that returns received frames to the sender.
    give_back: Producer<Frame>,
    /// Frames that were returned here.
    spare: Vec<Frame>,
    spare_max: usize,
    frame_bytes: usize,
}

/// Creates a pair. `frames` can be in transit in each direction (at least the number of frames of
/// a descriptor), each of at most `frame_bytes`.
pub fn pair(frames: usize, frame_bytes: usize) -> (MemoryPort, MemoryPort) {
    let frames = frames.clamp(SUPER_SEGMENT_FRAMES_MAX, FRAMES_MAX);
    let (there, at_right) = RingBuffer::new(frames);
    let (here, at_left) = RingBuffer::new(frames);
    let (left_gives, right_gets) = RingBuffer::new(frames);
    let (right_gives, left_gets) = RingBuffer::new(frames);
    let end = |out, back, incoming, give_back| {
        let spare = Vec::new();
        MemoryPort { out, back, incoming, give_back, spare, spare_max: frames, frame_bytes }
    };
    (end(there, left_gets, at_left, left_gives), end(here, right_gets, at_right, right_gives))
}

impl Port for MemoryPort {
    fn room(&mut self) -> usize {
        self.out.slots()
    }

    fn empty(&mut self) -> Frame {
        let spare = self.spare.pop().or_else(|| self.back.pop().ok());
        spare.unwrap_or_else(|| Frame::new(self.frame_bytes))
    }

    fn send(&mut self, frame: Frame) -> bool {
        match self.out.push(frame) {
            Ok(()) => true,
            Err(rtrb::PushError::Full(frame)) => {
                self.keep(frame);
                false
            }
        }
    }

    fn receive(&mut self) -> Option<Frame> {
        self.incoming.pop().ok()
    }

    fn recycle(&mut self, frame: Frame) {
        if let Err(rtrb::PushError::Full(frame)) = self.give_back.push(frame) {
            self.keep(frame);
        }
    }
}

impl MemoryPort {
    fn keep(&mut self, frame: Frame) {
        if self.spare.len() < self.spare_max {
            self.spare.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_two_parts_arrives_as_one_and_one_that_is_too_long_is_refused() {
        let (mut left, mut right) = pair(1, 8);
        for (headers, payload) in [(&b"head"[..], &b"tail"[..]), (b"head", b""), (b"hea", b"t")] {
            assert!(left.send_parts(headers, payload));
            let frame = right.receive().unwrap();
            assert_eq!(frame.as_slice(), [headers, payload].concat());
            right.recycle(frame);
        }
        assert!(!left.send_parts(b"head", b"tails"));
        assert!(right.receive().is_none());
    }

    #[test]
    fn frames_arrive_in_order_and_a_full_line_refuses() {
        let (mut left, mut right) = pair(1, 64);
        for number in 0..SUPER_SEGMENT_FRAMES_MAX {
            let mut frame = left.empty();
            assert!(frame.copy_from(&(number as u32).to_be_bytes()));
            assert!(left.send(frame));
        }
        assert_eq!(left.room(), 0);
        let lost = left.empty();
        assert!(!left.send(lost));
        for number in 0..SUPER_SEGMENT_FRAMES_MAX {
            let frame = right.receive().unwrap();
            assert_eq!(frame.as_slice(), (number as u32).to_be_bytes());
            right.recycle(frame);
        }
        assert!(right.receive().is_none());
        assert_eq!(left.room(), SUPER_SEGMENT_FRAMES_MAX);
        assert!(!left.empty().copy_from(&[0; 65]), "a frame has its limit");
    }
}
