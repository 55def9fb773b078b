//! TLS with movable state: a record layer over extracted secrets, and the server handshake that
//! produces it. Bytes in, bytes out.
//!
//! Use it where an established TLS connection has to move to another process or host, or where
//! records are sealed and opened by something other than the handshake library: a device, another
//! thread. The handshake is rustls', with its configuration. Use rustls alone for a connection that
//! stays where it is.
//!
//! ```text
//!  ClientHello … Finished ─► Handshake (rustls, unbuffered) ─► Established
//!                                                               │
//!  ciphertext ─► RecordLayer::receive_spare / process ─► plaintext
//!  plaintext  ─► RecordLayer::seal | layout + seal_in_place ─► ciphertext
//!                RecordLayer::to_snapshot ⇄ unlade_net::state::TlsSnapshot ⇄ from_snapshot
//! ```
//!
//! The stages, in the order in which a connection passes them:
//! 1. [`config`]: the server's configuration (suites, ALPN, tickets), with secrets extraction on;
//! 2. `capture`: the traffic secrets, which rustls passes only to a key log;
//! 3. [`handshake`]: the server handshake up to the first application record;
//! 4. `suite`, `keys`, [`expand`]: the negotiated parameters, and the keys of one direction;
//! 5. `deframe`, `seal`: opening one record, sealing one record;
//! 6. `control`: alerts and post-handshake messages;
//! 7. [`layer`]: both directions, and the snapshot;
//! 8. [`client`]: the same layer at the client's end, for tools and tests;
//! 9. [`psk`]: the handshake of two ends with a shared key, for NVMe over TCP.
//!
//! A server end moves in the middle of a connection; the client is rustls and notices nothing:
//!
//! ```
//! # use std::io::Read;
//! # use std::sync::Arc;
//! # use rustls::{ClientConfig, ClientConnection, RootCertStore};
//! use unlade_tls::{Handshake, Progress, RecordLayer};
//!
//! # let key = rcgen::KeyPair::generate()?;
//! # let params = rcgen::CertificateParams::new(vec!["objects.lab".into()])?;
//! # let certificate = params.self_signed(&key)?;
//! # let (certificate_pem, key_pem) = (certificate.pem(), key.serialize_pem());
//! # let mut roots = RootCertStore::empty();
//! # roots.add(certificate.der().clone())?;
//! # let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
//! # let client = ClientConfig::builder_with_provider(provider);
//! # let client = client.with_safe_default_protocol_versions()?;
//! # let client = client.with_root_certificates(roots).with_no_client_auth();
//! # let mut client = ClientConnection::new(Arc::new(client), "objects.lab".try_into()?)?;
//! let (chain, key) =
//!     unlade_tls::config::identity_from_pem(certificate_pem.as_bytes(), key_pem.as_bytes())?;
//! let config = unlade_tls::server_config(chain, key, &[b"http/1.1"])?;
//! let mut handshake = Handshake::new(config)?;
//! # let mut deliver = |client: &mut ClientConnection, mut bytes: &[u8]| {
//! #     while !bytes.is_empty() {
//! #         client.read_tls(&mut bytes)?;
//! #         client.process_new_packets()?;
//! #     }
//! #     Ok::<(), Box<dyn std::error::Error>>(())
//! # };
//! let established = loop {
//!     let mut input = Vec::new(); // from a socket; here from the client
//! #   while client.wants_write() {
//! #       client.write_tls(&mut input)?;
//! #   }
//!     let mut output = Vec::new();
//!     let progress = handshake.advance(&input, &mut output);
//!     deliver(&mut client, &output)?; // to a socket; an alert, if the handshake failed
//!     if let Progress::Complete(established) = progress? {
//!         break established;
//!     }
//! };
//! // On another host, from a snapshot that was sent over an encrypted channel:
//! let mut record = RecordLayer::from_snapshot(&established.record.to_snapshot())?;
//! let mut output = Vec::new();
//! record.seal(b"HTTP/1.1 204 No Content\r\n\r\n", &mut output)?;
//! record.close_notify(&mut output);
//! deliver(&mut client, &output)?;
//!
//! let mut answer = String::new();
//! client.reader().read_to_string(&mut answer)?;
//! assert_eq!(answer, "HTTP/1.1 204 No Content\r\n\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules for the caller
//! - If [`RecordLayer::process`] returns [`Received::output_pending`], take the output and send it.
//!   [`RecordLayer::seal`] and [`RecordLayer::seal_with`] prepend it themselves;
//!   [`RecordLayer::seal_in_place`] refuses until it is taken.
//! - Bytes appended to an output buffer must reach the transport, in order and completely: each
//!   record has used a sequence number.
//! - After an error caused by the peer, take the output once more, send it, and close.
//! - Move a connection only if [`RecordLayer::is_movable`] returns true, and drop the old layer.
//!
//! # Limits
//! - No I/O, no clock, no thread, no `unsafe`, no kTLS: the caller transfers the bytes.
//! - No handshake with certificates: rustls does that, and this crate never sees a certificate's
//!   key. External pre-shared keys, which rustls lacks, are in [`psk`].
//! - No renegotiation (refused with a warning), no post-handshake client authentication, no 0-RTT,
//!   no compression, no CBC suites, no DTLS, no QUIC.
//! - No detection of truncation: only the caller sees a TCP FIN without close_notify, and checks
//!   [`Received::close_notify`].
//! - No protection against restoring one snapshot twice, which would repeat nonces: the code that
//!   moves the state must ensure that it has one owner.

#![forbid(unsafe_code)]

mod capture;
pub mod client;
pub mod config;
mod control;
mod deframe;
pub mod delegation;
pub mod device;
mod device_keys;
mod error;
pub mod expand;
pub mod handshake;
mod keys;
pub mod layer;
pub mod piece;
pub mod psk;
mod record;
mod seal;
mod suite;

pub use config::{ConfigError, server_config};
pub use error::{Fault, RecordError};
pub use handshake::{Established, Handshake, HandshakeError, Progress};
pub use layer::{Received, RecordLayer};
pub use record::PLAINTEXT_BYTES_MAX;
pub use seal::Layout;
pub use suite::Cipher;
