//! A capture file of a port's frames.

use std::io::Write;
use std::time::Duration;

use super::{Frame, Port};
use unlade_nic_inline::capture::Capture;

/// A port that writes its frames to `W`, sent and received ones, in the order in which they pass.
pub struct Pcap<P, W> {
    port: P,
    capture: Capture<W>,
    now_ns: u64,
}

impl<P: Port, W: Write + Send> Pcap<P, W> {
    /// Writes at most `bytes_max` bytes to `file`; frames beyond that pass without a record.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(port: P, file: W, bytes_max: u64) -> std::io::Result<Pcap<P, W>> {
        Ok(Pcap { port, capture: Capture::new(file, bytes_max)?, now_ns: 0 })
    }

    /// Frames that are not in the file, because it is full or cannot be written.
    pub fn not_written(&self) -> u64 {
        self.capture.not_written()
    }
}

impl<P, W: Write> Pcap<P, W> {
    fn record(&mut self, raw: &[u8]) {
        self.capture.frame(Duration::from_nanos(self.now_ns), raw);
    }
}

impl<P: Port, W: Write + Send> Port for Pcap<P, W> {
    fn room(&mut self) -> usize {
        self.port.room()
    }

    fn empty(&mut self) -> Frame {
        self.port.empty()
    }

    fn send(&mut self, frame: Frame) -> bool {
        self.record(frame.as_slice());
        self.port.send(frame)
    }

    fn receive(&mut self) -> Option<Frame> {
        let frame = self.port.receive()?;
        self.record(frame.as_slice());
        Some(frame)
    }

    fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }

    fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.port.advance(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::port::memory;

    struct File(Sender<Vec<u8>>);

    impl Write for File {
        fn write(&mut self, raw: &[u8]) -> std::io::Result<usize> {
            let sent = self.0.send(raw.to_vec());
            sent.map(|()| raw.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_frame_passes_and_is_written_with_its_time_while_the_file_has_room() {
        let (left, mut right) = memory::pair(128, 64);
        let (file, written) = channel();
        let mut port = Pcap::new(left, File(file), 24 + 2 * 20).unwrap();
        port.advance(3_000_000_007);
        for _ in 0..3 {
            let mut frame = port.empty();
            frame.copy_from(b"abcd");
            assert!(port.send(frame));
        }
        assert_eq!(port.not_written(), 1);
        assert_eq!(std::iter::from_fn(|| right.receive()).count(), 3, "all of them pass");
        drop(port);
        let file: Vec<u8> = written.iter().flatten().collect();
        assert_eq!(file.len(), 64);
        assert_eq!(file[24..44], *b"\x03\0\0\0\x07\0\0\0\x04\0\0\0\x04\0\0\0abcd");
    }
}
