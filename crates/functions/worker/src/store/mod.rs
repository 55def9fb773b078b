//! The transport to the store: sends a request with a body, and streams the body of the response.
//!
//! - [`transport`]: the interface;
//! - [`body`]: request bodies and their digests, each computed once;
//! - `digest`: incremental checksums;
//! - [`checked`]: a body reader that verifies a checksum;
//! - [`credentials`]: keys, which never leave the worker;
//! - [`sign`]: Signature Version 4;
//! - [`chunked`]: a body in signed chunks;
//! - [`connection`]: one connection, plain or TLS;
//! - [`pool`]: idle connections;
//! - [`http`]: the transport over HTTP/1.1;
//! - [`upload`]: a body that is streamed to the store.

pub mod body;
pub mod checked;
pub mod chunked;
pub mod connection;
pub mod credentials;
mod digest;
pub mod http;
pub mod pool;
pub mod sign;
pub mod transport;
pub mod upload;

pub use body::Body;
pub use http::HttpStore;
pub use transport::{
    Form, Incoming, Into, Local, Outgoing, Reader, Transport, TransportError, read_all,
};
