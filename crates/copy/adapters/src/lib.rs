//! Adapters that let unmodified libraries work on bytes that are still being copied or received.
//! They use only the extension points of these libraries, which do not depend on the copy service.
//!
//! Modules, in the order of the data flow:
//!
//! - [`Source`]: bytes of which any range can be waited for: a copy of a scope, a receive;
//! - [`Reader`]: a source as sequential `bytes::Buf`, `Read` and `BufRead`: for decoders and
//!   compressors;
//! - [`Stream`]: a socket as `Read`, with receives ahead of the reader;
//! - [`tls`]: TLS records decrypted by rustls in their receive buffer;
//! - [`decode()`]: Protocol Buffers;
//! - [`parcel`]: typed values, from a copy or from another process ([`unlade_copy::channel`]).
//!
//! These adapters change no trust boundary: they return the bytes of the source unchanged. A
//! stream that decrypts (rustls) returns only authenticated bytes, wherever its records come from.
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
