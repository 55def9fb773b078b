//! The protocol of the simulated programs: a request is an identifier and a length, a response is a
//! head with the length and that many bytes, which the identifier determines.

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 12;
/// Bytes of a response's head.
pub const HEAD_BYTES: usize = 4;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The identifier, unique in a simulation.
    pub id: u64,
    /// Length of the response's body, bytes.
    pub body_bytes: u32,
}

impl Request {
    /// Returns the request's bytes.
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8..].copy_from_slice(&self.body_bytes.to_be_bytes());
        bytes
    }

    /// Returns the request at the start of `bytes`, if it is complete.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (id, rest) = bytes.split_first_chunk::<8>()?;
        let (length, _) = rest.split_first_chunk::<4>()?;
        Some(Request { id: u64::from_be_bytes(*id), body_bytes: u32::from_be_bytes(*length) })
    }

    /// Returns the length of the response with its head, bytes.
    pub fn response_bytes(self) -> u32 {
        self.body_bytes + HEAD_BYTES as u32
    }

    /// Returns a byte of the response.
    pub fn response_byte(self, offset: u32) -> u8 {
        let head = self.body_bytes.to_be_bytes();
        match head.get(offset as usize) {
            Some(byte) => *byte,
            None => {
                let mixed = (self.id << 32 | u64::from(offset)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (mixed >> 40) as u8
            }
        }
    }
}
