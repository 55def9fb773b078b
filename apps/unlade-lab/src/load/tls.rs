//! TLS of one connection over rustls' unbuffered interface: ciphertext in, plaintext to a sink,
//! ciphertext out, no socket.

use anyhow::{Context, Result, anyhow, bail};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Most bytes that a record adds to its plaintext (RFC 5246, section 6.2.3).
const RECORD_OVERHEAD_BYTES: usize = 5 + 256;

/// The configuration of all connections of a run.
///
/// # Errors
/// `ca` cannot be read or holds no certificate.
pub fn config(ca: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let read = || format!("reading {}", ca.display());
    for certificate in CertificateDer::pem_file_iter(ca).with_context(read)? {
        roots.add(certificate.with_context(read)?).with_context(read)?;
    }
    if roots.is_empty() {
        bail!("{} holds no certificate", ca.display());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    // Seeding the generator takes a tenth of a second: now, not while something is measured.
    let mut seeded = [0u8; 1];
    provider.secure_random.fill(&mut seeded).map_err(|_| anyhow!("no random numbers"))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Result of the peer's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Ciphertext that is done with.
    pub consumed_bytes: usize,
    /// Application data may be sent.
    pub established: bool,
    /// The peer has closed its side in the orderly way.
    pub closed: bool,
}

/// One connection.
pub struct Tls {
    connection: UnbufferedClientConnection,
    /// Ciphertext of a record that has not arrived completely.
    pub leftover: Vec<u8>,
    /// Application data may be sent.
    pub established: bool,
}

impl Tls {
    /// A connection that has sent nothing yet; the first [`Tls::advance`] says hello.
    ///
    /// # Errors
    /// The configuration does not allow a connection.
    pub fn new(config: &Arc<ClientConfig>, name: &ServerName<'static>) -> Result<Tls> {
        let connection = UnbufferedClientConnection::new(config.clone(), name.clone())?;
        Ok(Tls { connection, leftover: Vec::new(), established: false })
    }

    /// Takes in `incoming`, which starts with the earlier leftover; what is due for the peer is
    /// appended to `out`. Application data go to `sink`; the plaintext in `request` is encrypted as
    /// soon as the connection allows, then cleared.
    ///
    /// # Errors
    /// A fault found by TLS or `sink`; the connection is of no further use.
    pub fn advance<E>(
        &mut self,
        incoming: &mut [u8],
        request: &mut Vec<u8>,
        out: &mut Vec<u8>,
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Progress, Fault<E>> {
        let mut progress = Progress { consumed_bytes: 0, established: false, closed: false };
        loop {
            let input = incoming.get_mut(progress.consumed_bytes..).unwrap_or_default();
            let status = self.connection.process_tls_records(input);
            let discard = status.discard;
            let mut waits = false;
            match status.state.map_err(Fault::Tls)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        sink(record.map_err(Fault::Tls)?.payload).map_err(Fault::Sink)?;
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => append(out, 0, |room| {
                    data.encode(room).map_err(|error| match error {
                        EncodeError::InsufficientSize(size) => Some(size.required_size),
                        EncodeError::AlreadyEncoded => None,
                    })
                })
                .ok_or(Fault::Encode)?,
                // The caller sends `out`, in order, before it waits for more input.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::BlockedHandshake => waits = true,
                ConnectionState::WriteTraffic(mut traffic) => {
                    progress.established = true;
                    waits = true;
                    if !request.is_empty() {
                        append(out, request.len() + RECORD_OVERHEAD_BYTES, |room| {
                            traffic.encrypt(request, room).map_err(|error| match error {
                                EncryptError::InsufficientSize(size) => Some(size.required_size),
                                EncryptError::EncryptExhausted => None,
                            })
                        })
                        .ok_or(Fault::Encode)?;
                        request.clear();
                    }
                }
                ConnectionState::PeerClosed => progress.closed = true,
                ConnectionState::Closed => {
                    progress.closed = true;
                    waits = true;
                }
                _ => return Err(Fault::Encode),
            }
            progress.consumed_bytes += discard;
            if waits {
                return Ok(progress);
            }
        }
    }

    /// Appends the orderly close to `out`, if the connection is at a point where it can be said.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
            self.connection.process_tls_records(&mut []).state
        {
            // A close that cannot be encoded is as good as none: the socket closes anyway.
            let _ = append(out, RECORD_OVERHEAD_BYTES, |room| {
                traffic.queue_close_notify(room).map_err(|error| match error {
                    EncryptError::InsufficientSize(size) => Some(size.required_size),
                    EncryptError::EncryptExhausted => None,
                })
            });
        }
    }
}

/// Appends what `encode` writes; it is given more room when it says how much it needs.
fn append(
    out: &mut Vec<u8>,
    first_guess_bytes: usize,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Option<()> {
    let start = out.len();
    let mut room_bytes = first_guess_bytes;
    for _ in 0..2 {
        out.resize(start + room_bytes, 0);
        match encode(out.get_mut(start..)?) {
            Ok(bytes) => {
                out.truncate(start + bytes);
                return Some(());
            }
            Err(Some(required_bytes)) => room_bytes = required_bytes,
            Err(None) => break,
        }
    }
    out.truncate(start);
    None
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub enum Fault<E> {
    /// The peer's or our TLS.
    Tls(rustls::Error),
    /// Nothing more can be encoded.
    Encode,
    /// The taker of the plaintext refused it.
    Sink(E),
}
