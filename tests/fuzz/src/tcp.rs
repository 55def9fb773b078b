//! Targets of the user-space TCP: headers, and a connection whose peer sends anything.

use bytes::Bytes;
use unlade_net::packet::TcpFlags;
use unlade_research_tcp::{
    Config, Connection, HEADER_BYTES_MAX, Header, Range, SackBlocks, SeqNumber, Time, Timestamps,
};

/// First numbers of both ends: shortly before the wrap.
const OWN: SeqNumber = SeqNumber(u32::MAX - 100);
const PEER: SeqNumber = SeqNumber(u32::MAX - 50);
/// Most segments that one event can cause.
const SEGMENTS_MAX: usize = 1000;
/// Most timers that are waited for after the end of a script.
const TIMERS_MAX: usize = 300;

/// A parsed header is written as one with the same meaning.
pub fn tcp_header(data: &[u8]) {
    let Some((header, payload_at)) = Header::decode(data) else { return };
    assert!((20..=HEADER_BYTES_MAX).contains(&payload_at) && payload_at <= data.len());
    let mut out = [0; HEADER_BYTES_MAX];
    let bytes = header.emit((1, 2), &mut out);
    assert_eq!(Header::decode(&out[..bytes]), Some((header, bytes)));
}

/// The state of reading a script.
struct Script<'d> {
    data: &'d [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.data.split_first()?;
        self.data = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A position in the stream near its start, or anywhere.
    fn place(&mut self, start: SeqNumber) -> Option<SeqNumber> {
        let number = self.number()?;
        Some(match number {
            0xff00.. => SeqNumber(u32::from(number).wrapping_mul(0x9e37_79b9)),
            _ => start + u32::from(number) - 8,
        })
    }

    fn header(&mut self) -> Option<Header> {
        let mut header = Header {
            flags: TcpFlags(self.byte()?),
            seq: self.place(PEER)?,
            ack: self.place(OWN)?,
            window: self.number()?,
            ..Header::default()
        };
        let options = self.byte()?;
        if options & 1 != 0 {
            header.timestamps = Some(Timestamps { value: u32::from(self.byte()?), echo: 1000 });
        }
        let mut sack = SackBlocks::default();
        for _ in 0..options >> 1 & 3 {
            sack.push(Range { start: self.place(OWN)?, end: self.place(OWN)? });
        }
        header.sack = sack;
        if header.flags.contains(TcpFlags::SYN) {
            header.mss = Some(u16::from(options) * 8);
            header.sack_permitted = options & 8 != 0;
            header.window_scale = (options & 16 != 0).then_some(options >> 5);
        }
        Some(header)
    }
}

/// A connection, and the properties that are observed from outside.
struct Watched {
    connection: Connection<Bytes>,
    now: Time,
    read_at: Option<SeqNumber>,
}

impl Watched {
    fn new(script: &mut Script<'_>) -> Option<Watched> {
        let settings = script.byte()?;
        let config = Config {
            receive_buffer_bytes: [100, 5000, 1 << 20, 70_000][usize::from(settings & 3)],
            timestamps: settings & 4 != 0,
            sack: settings & 8 != 0,
            nagle: settings & 16 != 0,
            send_buffer_bytes: 50_000,
            ..Config::default()
        };
        let now = Time::from_ms(1000);
        let connection = match settings & 32 != 0 {
            true => Connection::connect(config, now, OWN),
            false => Connection::accept(config, now, OWN, &script.header()?)?,
        };
        Some(Watched { connection, now, read_at: None })
    }

    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        match script.byte()? {
            0..=0x9f => {
                let header = script.header()?;
                let bytes = usize::from(script.byte()?);
                let mut pieces = vec![Bytes::from(vec![b'x'; bytes])];
                self.connection.receive(self.now, &header, &mut pieces);
                assert!(pieces.is_empty());
            }
            0xa0..=0xbf => {
                let bytes = usize::from(script.number()?);
                let _ = self.connection.send(Bytes::from(vec![b'y'; bytes]));
            }
            0xc0..=0xdf => self.wait(),
            0xe0..=0xef => self.read(),
            0xf0..=0xfd => self.connection.close(),
            _ => self.connection.abort(),
        }
        self.transmit();
        Some(())
    }

    fn wait(&mut self) {
        if let Some(due) = self.connection.poll_timeout() {
            self.now = self.now.max(due);
            self.connection.handle_timeout(self.now);
            assert!(self.connection.poll_timeout().is_none_or(|next| next > self.now));
        }
    }

    /// Reads: each byte is read once, in order.
    fn read(&mut self) {
        while let Some((at, part)) = self.connection.read() {
            assert!(!part.is_empty() && self.read_at.is_none_or(|due| due == at));
            self.read_at = Some(at + part.len() as u32);
        }
    }

    /// Transmits: each segment is described correctly, and transmission ends.
    fn transmit(&mut self) {
        let mut gather = Vec::new();
        for _ in 0..SEGMENTS_MAX {
            let Some(segment) = self.connection.poll_transmit(self.now, &mut gather) else {
                return;
            };
            let bytes: usize = gather.iter().map(Bytes::len).sum();
            assert_eq!(bytes, segment.payload_bytes as usize);
            assert!(bytes == 0 || segment.mss_bytes > 0);
            assert!(gather.iter().all(|part| part.iter().all(|&byte| byte == b'y')));
            assert!(self.connection.acknowledged().since(self.connection.send_end()) <= 0);
        }
        panic!("segments without end");
    }
}

/// Whatever a peer sends, nothing panics, bytes are read in order, and everything ends.
pub fn tcp_connection(data: &[u8]) {
    let mut script = Script { data };
    let Some(mut watched) = Watched::new(&mut script) else { return };
    watched.transmit();
    while watched.step(&mut script).is_some() {}
    watched.connection.close();
    watched.transmit();
    for _ in 0..TIMERS_MAX {
        watched.wait();
        watched.read();
        watched.transmit();
    }
}

/// Headers, and scripts of whole connections, to start from.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let timestamps = Some(Timestamps { value: 1, echo: 2 });
    let mut sack = SackBlocks::default();
    sack.push(Range { start: SeqNumber(10), end: SeqNumber(20) });
    let data = Header {
        seq: SeqNumber(1),
        ack: SeqNumber(2),
        flags: TcpFlags::ACK,
        window: 501,
        timestamps,
        ..Header::default()
    };
    let syn = Header {
        flags: TcpFlags::SYN,
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..data
    };
    let emitted = |header: Header| {
        let mut out = [0; HEADER_BYTES_MAX];
        let bytes = header.emit((40_000, 443), &mut out);
        out[..bytes].to_vec()
    };
    let segment = |flags: u8, seq: u16, ack: u16, content: u8| {
        let [seq, ack] = [(seq + 8).to_be_bytes(), (ack + 8).to_be_bytes()];
        vec![0, flags, seq[0], seq[1], ack[0], ack[1], 0x40, 0, 0, content]
    };
    let sacked = [0, 0x10, 0, 9, 0, 9, 0x40, 0, 2, 3, 0, 4, 0, 0];
    // A header without its step: SYN with SACK permitted and an MSS of 1344 bytes.
    let opening = [13u8 ^ 4, 0x02, 0, 8, 0, 8, 0x40, 0, 168];
    let script = |parts: &[&[u8]]| parts.concat();
    let open = [&opening[..], &segment(0x10, 1, 1, 0)].concat();
    vec![
        ("tcp_header", "data", emitted(data)),
        ("tcp_header", "syn", emitted(syn)),
        ("tcp_header", "sack", emitted(Header { sack, ..data })),
        (
            "tcp_connection",
            "in-order",
            script(&[&open, &segment(0x18, 1, 1, 200), &[0xe0], &segment(0x11, 201, 1, 0)]),
        ),
        (
            "tcp_connection",
            "hole",
            script(&[&open, &segment(0x10, 101, 1, 100), &segment(0x10, 1, 1, 200), &[0xe0]]),
        ),
        (
            "tcp_connection",
            "sent-and-lost",
            script(&[&open, &[0xa0, 0x20, 0], &sacked, &[0xc0, 0xc0], &segment(0x10, 1, 900, 0)]),
        ),
        (
            "tcp_connection",
            "asking",
            script(&[&[41], &segment(0x12, 0, 1, 0), &[0xa0, 1, 0, 0xf0], &[0xc0, 0xfe]]),
        ),
    ]
}
