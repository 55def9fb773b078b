//! A writer of frames to a capture file: classic pcap with nanoseconds (draft-ietf-opsawg-pcap).

use std::io::Write;
use std::time::Duration;

/// Largest file; frames beyond it are not written, and pass.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Magic number of files with times in nanoseconds.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Link type: Ethernet.
const LINK_TYPE: u32 = 1;
/// Largest number of bytes of a frame.
const FRAME_BYTES_MAX: u32 = 65_553;
/// Bytes of the file header.
const HEADER_BYTES: u64 = 24;
/// Bytes of the record header before each frame.
const RECORD_BYTES: usize = 16;

/// A capture file.
#[derive(Debug)]
pub struct Capture<W> {
    /// `None` after a write has failed, or when the file is full.
    file: Option<W>,
    left_bytes: u64,
    not_written: u64,
}

impl<W: Write> Capture<W> {
    /// Begins the file, of at most `bytes_max` bytes, or its header alone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut file: W, bytes_max: u64) -> std::io::Result<Capture<W>> {
        let mut header = Vec::with_capacity(HEADER_BYTES as usize);
        header.extend(MAGIC_NS.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend(FRAME_BYTES_MAX.to_le_bytes());
        header.extend(LINK_TYPE.to_le_bytes());
        file.write_all(&header)?;
        let left_bytes = bytes_max.saturating_sub(HEADER_BYTES);
        Ok(Capture { file: Some(file), left_bytes, not_written: 0 })
    }

    /// Writes a frame that passes at `time`. The first frame that does not fit, or cannot be
    /// written, ends the file: it has no gaps.
    pub fn frame(&mut self, time: Duration, frame: &[u8]) {
        let Some(file) = &mut self.file else {
            self.not_written += 1;
            return;
        };
        let length = frame.len() as u32;
        let mut record = [0; RECORD_BYTES];
        let fields = [time.as_secs() as u32, time.subsec_nanos(), length, length];
        for (place, field) in record.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let needed = (RECORD_BYTES + frame.len()) as u64;
        let fits = needed <= self.left_bytes;
        let written = fits && file.write_all(&record).and_then(|()| file.write_all(frame)).is_ok();
        if written {
            self.left_bytes -= needed;
        } else {
            let _ = file.flush();
            self.file = None;
            self.not_written += 1;
            tracing::warn!("the capture file is full, or cannot be written; it ends here");
        }
    }

    /// Number of frames that are not in the file.
    pub fn not_written(&self) -> u64 {
        self.not_written
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Capture;

    #[test]
    fn frames_follow_the_header_until_the_file_is_full() {
        let mut file = Vec::new();
        let mut capture = Capture::new(&mut file, 24 + 16 + 60 + 17).unwrap();
        capture.frame(Duration::new(3, 7), &[7; 60]);
        capture.frame(Duration::new(4, 0), &[8; 60]);
        capture.frame(Duration::new(5, 0), &[9; 1]);
        assert_eq!(capture.not_written(), 2);
        assert_eq!(file.len(), 24 + 16 + 60);
        assert_eq!(file[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(file[20..24], [1, 0, 0, 0]);
        assert_eq!(file[24..40], *b"\x03\0\0\0\x07\0\0\0\x3c\0\0\0\x3c\0\0\0");
        assert_eq!(file[40..], [7; 60]);
    }

    #[test]
    fn what_cannot_be_written_ends_the_file() {
        let mut place = [0; 24 + 10];
        let mut capture = Capture::new(&mut place[..], u64::MAX).unwrap();
        capture.frame(Duration::ZERO, &[1]);
        capture.frame(Duration::ZERO, &[1]);
        assert_eq!(capture.not_written(), 2);
        assert!(Capture::new(&mut [0; 23][..], u64::MAX).is_err());
    }
}
