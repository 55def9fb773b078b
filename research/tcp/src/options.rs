//! Encoding and decoding of headers. Input is untrusted.

use unlade_net::SeqNumber;
use unlade_net::packet::{TcpFlags, TcpOption, TcpView};

use crate::segment::{Header, Range, SackBlocks, Timestamps};

/// Length of a header without options.
pub const HEADER_BYTES_MIN: usize = 20;
/// Maximum header length.
pub const HEADER_BYTES_MAX: usize = 60;
/// Length of the timestamps option, aligned.
pub const TIMESTAMPS_BYTES: usize = 12;
/// Maximum window scale (RFC 7323 §2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

/// Two no-operations and a timestamps option: the common start of the options.
const TIMESTAMPS_ALIGNED: [u8; 4] = [1, 1, 8, 10];

impl Header {
    fn parse(view: &TcpView<&[u8]>, options: &[u8]) -> Header {
        let mut header = Header {
            seq: view.seq(),
            ack: view.ack(),
            flags: view.flags(),
            window: view.window(),
            ..Header::default()
        };
        if let Some(timestamps) = aligned_timestamps(options) {
            header.timestamps = Some(timestamps);
            return header;
        }
        for option in view.options() {
            header.add(option);
        }
        header
    }

    /// Decodes a segment; returns its header and the offset of its payload, or `None` if it ends
    /// inside the header. Malformed options are ignored, and so is everything after an option
    /// whose length is malformed. The checksum is not checked.
    pub fn decode(segment: &[u8]) -> Option<(Header, usize)> {
        let view = TcpView::new(segment).ok()?;
        let payload_at = view.header_bytes();
        Some((Header::parse(&view, segment.get(HEADER_BYTES_MIN..payload_at)?), payload_at))
    }

    fn add(&mut self, option: TcpOption<'_>) {
        let syn = self.has(TcpFlags::SYN);
        match option {
            // Three of the options are valid in a SYN only (RFC 9293 §3.7.1, RFC 7323 §2.2,
            // RFC 2018 §2).
            TcpOption::Mss(mss) if syn => self.mss = Some(mss),
            TcpOption::WindowScale(shift) if syn => {
                self.window_scale = Some(shift.min(WINDOW_SCALE_MAX));
            }
            TcpOption::SackPermitted if syn => self.sack_permitted = true,
            TcpOption::Sack(pairs) if !syn => self.sack = sack_blocks(pairs),
            TcpOption::Timestamps { value, echo } => {
                self.timestamps = Some(Timestamps { value, echo });
            }
            _ => {}
        }
    }

    /// Writes the header to the front of `out`, with a checksum of zero, and returns its length.
    /// The last SACK blocks are omitted if there is no room.
    pub fn emit(&self, ports: (u16, u16), out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        out[..2].copy_from_slice(&ports.0.to_be_bytes());
        out[2..4].copy_from_slice(&ports.1.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..20].fill(0);
        let mut writer = Writer { out, at: HEADER_BYTES_MIN };
        self.emit_options(&mut writer);
        let header_bytes = writer.at;
        out[12] = ((header_bytes / 4) as u8) << 4;
        header_bytes
    }

    fn emit_options(&self, out: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            out.put(&[2, 4]);
            out.put(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.put(&[1, 3, 3, shift]);
        }
        if self.sack_permitted {
            out.put(&[1, 1, 4, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            out.put(&TIMESTAMPS_ALIGNED);
            out.put(&value.to_be_bytes());
            out.put(&echo.to_be_bytes());
        }
        let room = (HEADER_BYTES_MAX - out.at).saturating_sub(4) / 8;
        let blocks = self.sack.as_slice();
        let blocks = &blocks[..blocks.len().min(room)];
        if !blocks.is_empty() {
            out.put(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
            for block in blocks {
                out.put(&block.start.0.to_be_bytes());
                out.put(&block.end.0.to_be_bytes());
            }
        }
    }
}

struct Writer<'o> {
    out: &'o mut [u8; HEADER_BYTES_MAX],
    at: usize,
}

impl Writer<'_> {
    /// There is room: the options of a SYN and the timestamps take 24 bytes of 40.
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Decodes timestamps if they are the only option, the common case.
fn aligned_timestamps(options: &[u8]) -> Option<Timestamps> {
    let rest = options.strip_prefix(&TIMESTAMPS_ALIGNED)?;
    let both: [u8; 8] = rest.try_into().ok()?;
    let [a, b, c, d, e, f, g, h] = both;
    Some(Timestamps {
        value: u32::from_be_bytes([a, b, c, d]),
        echo: u32::from_be_bytes([e, f, g, h]),
    })
}

fn sack_blocks(pairs: &[u8]) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    for pair in pairs.chunks_exact(8) {
        let (start, end) = pair.split_at(4);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_be_bytes);
        blocks.push(Range { start: SeqNumber(number(start)), end: SeqNumber(number(end)) });
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(header: &Header) -> (Header, usize) {
        let mut out = [0; HEADER_BYTES_MAX];
        let bytes = header.emit((1, 2), &mut out);
        Header::decode(&out[..bytes]).unwrap()
    }

    fn block(number: u32) -> Range {
        Range { start: SeqNumber(number), end: SeqNumber(number + 5) }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let timestamps = Some(Timestamps { value: 7, echo: 8 });
        let plain = Header {
            seq: SeqNumber(1),
            ack: SeqNumber(2),
            flags: TcpFlags::ACK,
            window: 3,
            ..Header::default()
        };
        let mut sack = SackBlocks::default();
        assert!(sack.push(block(10)) && sack.push(block(30)) && sack.push(block(u32::MAX - 5)));
        let syn = Header {
            flags: TcpFlags::SYN,
            mss: Some(1460),
            window_scale: Some(9),
            sack_permitted: true,
            timestamps,
            ..plain
        };
        for (header, bytes) in [
            (plain, 20),
            (Header { timestamps, ..plain }, 32),
            (Header { timestamps, sack, ..plain }, 60),
            (Header { sack, ..plain }, 48),
            (syn, 44),
        ] {
            assert_eq!(read_back(&header), (header, bytes));
        }
    }

    #[test]
    fn a_fourth_block_beside_timestamps_is_left_out() {
        let mut sack = SackBlocks::default();
        assert!((0..4).all(|number| sack.push(block(number * 10))));
        assert!(!sack.push(block(90)));
        let timestamps = Some(Timestamps::default());
        let header = Header { sack, flags: TcpFlags::ACK, ..Header::default() };
        assert_eq!(read_back(&header).0.sack.as_slice().len(), 4);
        let (read, bytes) = read_back(&Header { timestamps, ..header });
        assert_eq!((read.sack.as_slice(), bytes), (&sack.as_slice()[..3], 60));
    }

    #[test]
    fn options_of_a_syn_count_in_a_syn_only() {
        let header = Header {
            flags: TcpFlags::ACK,
            mss: Some(9),
            window_scale: Some(3),
            sack_permitted: true,
            ..Header::default()
        };
        let (read, _) = read_back(&header);
        assert_eq!((read.mss, read.window_scale, read.sack_permitted), (None, None, false));
    }

    #[test]
    fn a_shift_beyond_the_limit_is_the_limit() {
        let header = Header { flags: TcpFlags::SYN, window_scale: Some(255), ..Header::default() };
        assert_eq!(read_back(&header).0.window_scale, Some(WINDOW_SCALE_MAX));
    }

    #[test]
    fn options_that_end_early_are_survived() {
        let header = Header {
            flags: TcpFlags::SYN,
            mss: Some(1460),
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Header::default()
        };
        let mut out = [0; HEADER_BYTES_MAX];
        let bytes = header.emit((1, 2), &mut out);
        for words in 5..bytes / 4 {
            let mut cut = out;
            cut[12] = (words as u8) << 4;
            let (read, _) = Header::decode(&cut[..words * 4]).unwrap();
            assert!(read.timestamps.is_none());
        }
        assert!(Header::decode(&out[..bytes - 1]).is_none());
    }
}
