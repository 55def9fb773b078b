//! TLS 1.3 with pre-shared keys, as NVMe/TCP uses it (NVMe/TCP 1.1 §3.6.1): the interchange
//! format, the key derivation, and a byte stream.
//!
//! - [`key`], the interchange format;
//! - [`derive`](mod@derive): retained key, TLS key, identity;
//! - [`stream`], handshake and records over any async byte stream, as client or server;
//! - [`acceptor`], its use by the target.

pub mod acceptor;
pub mod derive;
pub mod key;
pub mod stream;

pub use acceptor::PskAcceptor;
pub use derive::{DeriveError, IdentityVersion, find, host_of, tls_psk};
pub use key::{ConfiguredKey, KeyError};
pub use stream::{TlsError, TlsStream, accept, connect};
