//! Ordinary libraries at work on bytes that are still being copied or received, through what they
//! offer to be extended with: no library is changed, and none knows of the copy service.
//!
//! In the order in which bytes meet them:
//!
//! - [`Source`]: bytes of which any range can be waited for: a copy of a scope, a receive;
//! - [`Reader`]: a source from front to back, as `bytes::Buf`, `Read` and `BufRead`: for decoders
//!   and compressors;
//! - [`Stream`]: a socket as `Read`, received ahead of who reads;
//! - [`tls`]: records opened in the buffer that they are received into, by rustls;
//! - [`decode()`]: Protocol Buffers;
//! - [`parcel`]: typed values, from a copy or from another process ([`unlade_copy::channel`]).
//!
//! Nothing here is about trust: bytes that are there are what they are in the source. A stream that
//! decrypts (rustls) gives out nothing that is not authenticated, wherever its records come from.
#![forbid(unsafe_code)]

mod decode;
pub mod parcel;
mod reader;
mod source;
mod stream;
pub mod tls;

pub use decode::{DecodeError, decode, decode_range};
pub use parcel::{ParcelError, ParcelReader, ParcelWriter, ReadAt};
pub use reader::Reader;
pub use source::Source;
pub use stream::Stream;
