//! The receiving side: headers are read and verified, data is read into its buffer, digests are
//! compared.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use unlade_nvme_wire::pdu::{
    COMMON_HEADER_BYTES, DIGEST_BYTES, FatalStatus, Layout, PduError, Terminate,
};
use unlade_nvme_wire::{CommonHeader, Digests, Pdu, PduKind};

/// Size of the read buffer: several small commands arrive with one system call.
const BUFFER_BYTES: usize = 32 << 10;
/// Data of at least this length is read directly into its buffer.
const DIRECT_BYTES: usize = 8 << 10;

/// The reason of a connection's end.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The host closed it.
    Closed,
    /// The kernel or the TLS layer reports an error.
    Io(io::Error),
    /// The host violated the protocol.
    Broken(ProtocolViolation),
    /// The host reported an error of the target.
    HostTerminated(Terminate),
    /// The set-up of the connection timed out.
    Slow,
    /// The association has ended, or the queue was disconnected.
    Over,
}

/// A protocol violation of the host, with the fields of the termination request.
#[derive(Debug)]
pub(crate) struct ProtocolViolation {
    /// FES.
    pub status: FatalStatus,
    /// FEI.
    pub information: u32,
    /// The invalid header, as far as it was read.
    pub header: Vec<u8>,
    /// For the log.
    pub why: String,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

/// The header of a PDU; its data is still in the stream.
#[derive(Debug)]
pub(crate) struct Head {
    pub pdu: Pdu,
    pub layout: Layout,
    header: Vec<u8>,
}

impl Head {
    /// Creates a fault for this PDU.
    pub fn fault(&self, status: FatalStatus, information: u32, why: impl Into<String>) -> Fault {
        broken(status, information, &self.header, why)
    }
}

fn broken(status: FatalStatus, information: u32, header: &[u8], why: impl Into<String>) -> Fault {
    let (header, why) = (header.to_vec(), why.into());
    Fault::Broken(ProtocolViolation { status, information, header, why })
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Receiver<R> {
    stream: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The digests of the connection, once they are agreed.
    pub digests: Digests,
}

impl<R: AsyncRead + Unpin> Receiver<R> {
    /// Creates a receiver for `stream`.
    pub fn new(stream: R) -> Receiver<R> {
        let buffer = vec![0; BUFFER_BYTES];
        Receiver { stream, buffer, start: 0, end: 0, digests: Digests::NONE }
    }

    /// Waits until `count` bytes are in the buffer. The end of the stream is valid between PDUs.
    async fn fill(&mut self, count: usize) -> Result<&[u8], Fault> {
        if self.start + count > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < count {
            match self.stream.read(&mut self.buffer[self.end..]).await? {
                0 => return Err(Fault::Closed),
                read => self.end += read,
            }
        }
        Ok(&self.buffer[self.start..self.start + count])
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads the header of the next PDU, up to its data, which has at most `data_bytes_max(kind)`
    /// bytes.
    pub async fn head(&mut self, data_bytes_max: impl Fn(PduKind) -> usize) -> Result<Head, Fault> {
        let start = self.fill(COMMON_HEADER_BYTES).await?;
        let wrong = |error: PduError, header: &[u8]| {
            let (status, information) = error.fatal();
            broken(status, information, header, error.to_string())
        };
        let common = CommonHeader::parse(start).map_err(|error| wrong(error, start))?;
        let layout = common.layout();
        let digests = self.digests;
        let head_bytes = layout.head_bytes();
        let bytes = self.fill(head_bytes).await?;
        let header = &bytes[..layout.header_bytes];
        // The digest is verified before any field is used.
        if layout.has_header_digest && digests.header {
            check_header_digest(bytes, &layout)?;
        }
        common.agrees_with(digests, 4).map_err(|error| wrong(error, header))?;
        let pdu = Pdu::parse(&common, header).map_err(|error| wrong(error, header))?;
        let most = data_bytes_max(common.kind);
        if layout.data.len() > most {
            let why = format!("{} bytes of data where {most} are the limit", layout.data.len());
            return Err(broken(FatalStatus::LimitExceeded, 4, header, why));
        }
        let header = header.to_vec();
        self.consume(head_bytes);
        Ok(Head { pdu, layout, header })
    }

    /// Reads the data of a PDU into `into`. Returns true if its digest is correct or absent.
    pub async fn data(&mut self, layout: &Layout, into: &mut [u8]) -> Result<bool, Fault> {
        let mut crc = 0;
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let count = if self.start < self.end {
                let count = rest.len().min(self.end - self.start);
                rest[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
                self.consume(count);
                count
            } else if rest.len() >= DIRECT_BYTES {
                match self.stream.read(rest).await? {
                    0 => return Err(Fault::Closed),
                    count => count,
                }
            } else {
                self.fill(1).await?;
                continue;
            };
            if layout.has_data_digest {
                crc = unlade_aead::crc32c::update(crc, &into[done..done + count]);
            }
            done += count;
        }
        if !layout.has_data_digest {
            return Ok(true);
        }
        let sent = le32(self.fill(DIGEST_BYTES).await?);
        self.consume(DIGEST_BYTES);
        Ok(sent == crc)
    }

    /// Reads and discards bytes until the stream ends or the limit is reached.
    pub async fn drain(&mut self, bytes_max: usize) {
        let mut left = bytes_max;
        while left > 0 {
            match self.stream.read(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    }
}

fn le32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn check_header_digest(bytes: &[u8], layout: &Layout) -> Result<(), Fault> {
    let (header, rest) = bytes.split_at(layout.header_bytes);
    let sent = le32(&rest[..DIGEST_BYTES]);
    if sent == unlade_aead::crc32c::update(0, header) {
        return Ok(());
    }
    Err(broken(FatalStatus::HeaderDigest, sent, header, "a header's digest is wrong"))
}
