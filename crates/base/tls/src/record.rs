//! Numbers of the record format.

/// Content types (RFC 8446 §5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// Length of a record header.
pub(crate) const HEADER_BYTES: usize = 5;
/// Most bytes of plaintext in one record (RFC 8446 §5.1).
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
