//! The protocol of the simulated programs: a request is an identifier and a length, a response is a
//! head of HTTP with the length and that many bytes, which the identifier determines.

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 12;
/// A response's head, without the status and the length.
const HEAD: &[u8] = b"HTTP/1.1 ... OK\r\nContent-Length: ..........\r\n\r\n";
const STATUS_AT: usize = 9;
const LENGTH_AT: usize = 33;
const LENGTH_DIGITS: usize = 10;
/// Bytes of a response's head.
pub const HEAD_BYTES: usize = HEAD.len();

/// Bytes of the header in front of a sealed response.
pub const HEADER_BYTES: u32 = 40;
const HEADER_BYTE: u8 = 0xee;
/// In the length: the response is to have a header.
const SEALED: u32 = 1 << 31;

/// Returns true if the payload is the header of a sealed response, and nothing else.
pub fn is_header(payload: &[u8]) -> bool {
    payload.len() == HEADER_BYTES as usize && payload.iter().all(|byte| *byte == HEADER_BYTE)
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The identifier, unique in a simulation.
    pub id: u64,
    /// Length of the response's body, bytes.
    pub body_bytes: u32,
    /// The balancer asks for a header in front of the response.
    pub is_sealed: bool,
}

impl Request {
    /// Returns the request's bytes.
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_be_bytes());
        let sealed = if self.is_sealed { SEALED } else { 0 };
        bytes[8..].copy_from_slice(&(self.body_bytes | sealed).to_be_bytes());
        bytes
    }

    /// Returns the request at the start of `bytes`, if it is complete.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (id, rest) = bytes.split_first_chunk::<8>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        let (id, length) = (u64::from_be_bytes(*id), u32::from_be_bytes(*length));
        Some(Request { id, body_bytes: length & !SEALED, is_sealed: length & SEALED != 0 })
    }

    /// Returns the length of the response with its head, bytes.
    pub fn response_bytes(self) -> u32 {
        self.body_bytes + HEAD_BYTES as u32
    }

    /// Returns the response's head. One of four is not fit for the client.
    pub fn head(self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(HEAD);
        let status = if self.id.is_multiple_of(4) { b"404" } else { b"200" };
        head[STATUS_AT..STATUS_AT + status.len()].copy_from_slice(status);
        let mut left = self.body_bytes;
        for digit in head[LENGTH_AT..LENGTH_AT + LENGTH_DIGITS].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        head
    }

    /// Returns the length of what the server writes, bytes.
    pub fn written_bytes(self) -> u32 {
        self.response_bytes() + if self.is_sealed { HEADER_BYTES } else { 0 }
    }

    /// Returns a byte of what the server writes.
    pub fn written_byte(self, offset: u32) -> u8 {
        match (self.is_sealed, offset.checked_sub(HEADER_BYTES)) {
            (true, None) => HEADER_BYTE,
            (true, Some(offset)) => self.response_byte(offset),
            (false, _) => self.response_byte(offset),
        }
    }

    /// Returns the length of the first segment of a response that comes in parts, bytes: a header comes
    /// alone, and one of three servers' programs writes the head in two.
    pub fn first_part_bytes(self) -> Option<u32> {
        if self.is_sealed {
            return Some(HEADER_BYTES);
        }
        self.id.is_multiple_of(3).then_some(HEAD_BYTES as u32 / 2)
    }

    /// Returns a byte of the response.
    pub fn response_byte(self, offset: u32) -> u8 {
        match HEAD.get(offset as usize) {
            Some(_) => self.head()[offset as usize],
            None => {
                let mixed = (self.id << 32 | u64::from(offset)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 40) as u8
            }
        }
    }
}
