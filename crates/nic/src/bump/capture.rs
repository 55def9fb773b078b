//! Frames on the wire, written as a capture file: classic pcap with nanoseconds
//! (draft-ietf-opsawg-pcap).

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most octets of a file; frames beyond are not written, and pass.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Says that times are in nanoseconds.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Ethernet.
const LINK_TYPE: u32 = 1;
/// Most octets of a frame.
const FRAME_BYTES_MAX: u32 = 65_553;
/// Octets before each frame.
const RECORD_BYTES: usize = 16;

/// A capture file.
pub struct Capture<W> {
    /// Gone where writing has failed, or the file is full.
    file: Option<W>,
    left_bytes: u64,
}

impl<W: Write> Capture<W> {
    /// Begins the file; of at most `bytes_max` octets.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut file: W, bytes_max: u64) -> std::io::Result<Capture<W>> {
        let mut header = Vec::new();
        header.extend(MAGIC_NS.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend(FRAME_BYTES_MAX.to_le_bytes());
        header.extend(LINK_TYPE.to_le_bytes());
        file.write_all(&header)?;
        Ok(Capture { file: Some(file), left_bytes: bytes_max.saturating_sub(24) })
    }

    /// A frame passes.
    pub fn frame(&mut self, frame: &[u8]) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let needed = (RECORD_BYTES + frame.len()) as u64;
        let Some(file) = &mut self.file else { return };
        let length = frame.len() as u32;
        let mut record = [0; RECORD_BYTES];
        let fields = [since.as_secs() as u32, since.subsec_nanos(), length, length];
        for (place, field) in record.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let fits = needed <= self.left_bytes;
        let written = fits && file.write_all(&record).and_then(|()| file.write_all(frame)).is_ok();
        if written {
            self.left_bytes -= needed;
        } else {
            let _ = file.flush();
            self.file = None;
            tracing::warn!("the capture file is full, or cannot be written; it ends here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Capture;

    #[test]
    fn frames_follow_the_header_until_the_file_is_full() {
        let mut file = Vec::new();
        let mut capture = Capture::new(&mut file, 24 + 16 + 60 + 10).unwrap();
        capture.frame(&[7; 60]);
        capture.frame(&[8; 60]);
        capture.frame(&[9; 1]);
        assert_eq!(file[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(file.len(), 24 + 16 + 60);
        assert_eq!((file[24 + 8], file[24 + 12], file[24 + 16]), (60, 60, 7));
    }
}
