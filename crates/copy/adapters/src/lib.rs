//! Adapters that let unmodified libraries work on bytes that are still being copied or received.
//!
//! Use them with a decoder, a decompressor, rustls or `prost`: the work begins with the first bytes
//! while the copy service brings the rest. The adapters use only the extension points of these
//! libraries, which do not depend on the copy service.
//!
//! Modules, in the order of the data flow:
//! - [`Source`]: bytes of which any range can be waited for: a copy of a scope, a receive;
//! - [`Reader`]: a source as sequential `bytes::Buf`, `Read` and `BufRead`: for decoders and
//!   compressors;
//! - [`Stream`]: a socket as `Read`, with receives ahead of the reader;
//! - [`tls`]: TLS records decrypted by rustls in their receive buffer;
//! - [`decode()`]: Protocol Buffers;
//! - [`parcel`]: typed values, from a copy or from another process ([`unlade_copy::channel`]).
//!
//! ```
//! use std::io::Read;
//!
//! use unlade_copy::{Config, Copier, Service};
//! use unlade_copy_adapters::{ParcelReader, ParcelWriter, Reader};
//!
//! let service = Service::start(Config::default())?;
//! let copier = Copier::new(service.attach()?);
//!
//! let mut message = ParcelWriter::new(Vec::new());
//! message.i32(7)?.string("a name")?.bytes(&[1; 100_000])?;
//! let source = message.into_inner();
//! let mut destination = vec![0; source.len()];
//!
//! copier.scope(|scope| {
//!     let pending = scope.copy(&source, &mut destination);
//!     let mut parcel = ParcelReader::new(&pending); // waits for the bytes of each value only
//!     assert_eq!((parcel.i32()?, parcel.string()?.as_str()), (7, "a name"));
//!
//!     let mut head = [0; 4];
//!     Reader::new(&pending).read_exact(&mut head)?; // the same for any library that takes `Read`
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! A small message gains nothing: its copy is made at once. These adapters change no trust
//! boundary: they return the bytes of the source unchanged. A stream that decrypts (rustls) returns
//! only authenticated bytes, wherever its records come from. Reads block; there is no async form.
//! No `unsafe`.
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
