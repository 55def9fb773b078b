//! What passes a port, written as a capture file: classic pcap with nanoseconds
//! (draft-ietf-opsawg-pcap).

use std::io::Write;

use super::{Frame, Port};

/// Says that times are in nanoseconds.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Ethernet.
const LINK_TYPE: u32 = 1;
/// Octets before each frame.
const RECORD_BYTES: u64 = 16;
/// Octets of the file's header.
const HEADER_BYTES: u64 = 24;

/// A port whose frames are written to `W`, those that leave and those that come, in the order in
/// which they pass.
pub struct Pcap<P, W> {
    port: P,
    /// Gone where writing has failed.
    file: Option<W>,
    left_bytes: u64,
    now_ns: u64,
    not_written: u64,
}

impl<P: Port, W: Write + Send> Pcap<P, W> {
    /// Writes at most `bytes_max` octets to `file`. Where it cannot be written, nothing is; frames
    /// pass all the same.
    pub fn new(port: P, mut file: W, bytes_max: u64) -> Pcap<P, W> {
        let mut header = Vec::with_capacity(HEADER_BYTES as usize);
        header.extend(MAGIC_NS.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend((super::FRAME_BYTES_MAX as u32).to_le_bytes());
        header.extend(LINK_TYPE.to_le_bytes());
        let fits = bytes_max >= HEADER_BYTES;
        let file = (fits && file.write_all(&header).is_ok()).then_some(file);
        let left_bytes = bytes_max.saturating_sub(HEADER_BYTES);
        Pcap { port, file, left_bytes, now_ns: 0, not_written: 0 }
    }

    /// Frames that are not in the file, because it is full or cannot be written.
    pub fn not_written(&self) -> u64 {
        self.not_written
    }
}

impl<P, W: Write> Pcap<P, W> {
    fn record(&mut self, octets: &[u8]) {
        let needed = RECORD_BYTES + octets.len() as u64;
        let Some(file) = self.file.as_mut().filter(|_| needed <= self.left_bytes) else {
            self.not_written += 1;
            return;
        };
        let mut header = [0; RECORD_BYTES as usize];
        let bytes = octets.len() as u32;
        let seconds = (self.now_ns / 1_000_000_000) as u32;
        let ns = (self.now_ns % 1_000_000_000) as u32;
        for (field, value) in header.chunks_exact_mut(4).zip([seconds, ns, bytes, bytes]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let written = file.write_all(&header).and_then(|()| file.write_all(octets));
        self.left_bytes -= needed;
        if written.is_err() {
            self.not_written += 1;
            self.file = None;
        }
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
        fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
            let sent = self.0.send(octets.to_vec());
            sent.map(|()| octets.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_file_has_the_layout_of_the_draft_and_its_limit() {
        let (left, mut right) = memory::pair(128, 64);
        let (file, written) = channel();
        let mut port = Pcap::new(left, File(file), 24 + 2 * 20);
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
        assert_eq!(file[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(file[20..24], [1, 0, 0, 0]);
        assert_eq!(file[24..44], *b"\x03\0\0\0\x07\0\0\0\x04\0\0\0\x04\0\0\0abcd");
    }
}
