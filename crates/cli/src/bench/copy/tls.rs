//! Records of TLS 1.3 (AES-GCM), received and opened: `SSL_read` of the paper.

use super::uses::{Paper, SIZES, Way, case, compare, heading, service, timed};
use super::wire_pair::pair;
use crate::bench::record::Sink;
use anyhow::{Result, ensure};
use copier::{Copier, Inbound};
use overlap::Stream;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::hint::black_box;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

const PAPER: Paper = Paper { least_percent: 1.4, most_percent: 8.4 };
/// Plaintext of a record, and what encryption adds.
const RECORD_BYTES: usize = 16 << 10;
const RECORD_OVERHEAD: usize = 22;

/// What is received ahead, at most: it should still be in a cache when it is opened.
const AHEAD_BYTES: usize = 8 * (RECORD_BYTES + RECORD_OVERHEAD);

/// Both ends of a connection after the handshake, each without its socket.
struct Ends {
    sending: ServerConnection,
    receiving: ClientConnection,
}

impl Ends {
    fn new() -> Result<Ends> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        let provider = Arc::new(provider);
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let key = key.map_err(anyhow::Error::msg)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        server.send_tls13_tickets = 0;
        let name = ServerName::try_from("localhost")?;
        let mut receiving = ClientConnection::new(Arc::new(client), name)?;
        let mut sending = ServerConnection::new(Arc::new(server))?;
        sending.set_buffer_limit(None);
        let mut flight = Vec::new();
        while receiving.is_handshaking() || sending.is_handshaking() {
            flight.clear();
            receiving.write_tls(&mut flight)?;
            sending.read_tls(&mut &flight[..])?;
            sending.process_new_packets()?;
            flight.clear();
            sending.write_tls(&mut flight)?;
            receiving.read_tls(&mut &flight[..])?;
            receiving.process_new_packets()?;
        }
        Ok(Ends { sending, receiving })
    }

    fn send(&mut self, message: &[u8], socket: &mut TcpStream) -> Result<()> {
        self.sending.writer().write_all(message)?;
        while self.sending.wants_write() {
            self.sending.write_tls(socket)?;
        }
        Ok(())
    }

    /// Reads until `plain` is full.
    fn receive(&mut self, socket: &mut impl Read, plain: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < plain.len() {
            ensure!(self.receiving.read_tls(socket)? > 0, "the stream ended");
            let ready = self.receiving.process_new_packets()?.plaintext_bytes_to_read();
            if ready > 0 {
                let end = plain.len().min(at + ready);
                self.receiving.reader().read_exact(&mut plain[at..end])?;
                at = end;
            }
        }
        Ok(())
    }
}

/// What does one message, over a new connection that reads from what `reading` makes of a socket.
fn way<'a, R: Read + 'a>(
    name: &'static str,
    message: &'a [u8],
    reading: impl FnOnce(TcpStream) -> R,
) -> Result<Way<'a>> {
    let mut ends = Ends::new()?;
    let (mut sender, receiver) = pair()?;
    let mut socket = reading(receiver);
    let mut plain = vec![0u8; message.len()];
    let work = move || -> Result<Duration> {
        ends.send(message, &mut sender)?;
        let (took, ()) = timed(|| ends.receive(&mut socket, &mut plain))?;
        black_box(&plain);
        Ok(took)
    };
    Ok(Way::new(name, work))
}

/// Measures receiving and opening.
///
/// # Errors
/// The service's, the sockets', or the sink's.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    heading("TLS 1.3 AES-128-GCM, received and opened", PAPER)?;
    for bytes in SIZES {
        let message = vec![7u8; bytes];
        let wire_bytes = bytes + bytes.div_ceil(RECORD_BYTES) * RECORD_OVERHEAD;
        let wire_bytes = wire_bytes.min(AHEAD_BYTES);
        let service = service()?;
        let copier = Arc::new(Copier::new(service.attach()?));
        let ways = vec![
            way("sync", &message, |socket| socket)?,
            way("sync-buffered", &message, |socket| BufReader::with_capacity(wire_bytes, socket))?,
            way("offload", &message, |socket| {
                let mut inbound = Inbound::new(copier, socket, wire_bytes);
                inbound.set_first_bytes(RECORD_BYTES + RECORD_OVERHEAD);
                Stream::new(inbound)
            })?
            .served(&service),
        ];
        let label = settings::ByteSize(bytes as u64).to_string();
        let rounds = if quick { 5 } else { 21 };
        compare(&case("tls", "read", bytes), &label, rounds, PAPER, ways, sink)?;
    }
    Ok(())
}
