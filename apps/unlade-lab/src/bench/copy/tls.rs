//! Records of TLS 1.3 (AES-GCM), received and opened: `SSL_read` of the paper.

use super::uses::{Paper, SIZES, Way, case, compare, heading, service, timed};
use super::wire_pair::pair;
use crate::bench::record::Sink;
use anyhow::{Context, Result, anyhow, ensure};
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::hint::black_box;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use unlade_copy::{Copier, Inbound};
use unlade_copy_adapters::tls::{Buffered, Feed, Opener, in_place};

const PAPER: Paper = Paper { least_percent: 1.4, most_percent: 8.4 };
/// Plaintext of a record, and what encryption adds.
const RECORD_BYTES: usize = 16 << 10;
const RECORD_OVERHEAD: usize = 22;

/// Most bytes that are received ahead: they should still be in a cache when it is opened. Whole records,
/// and no more than `Inbound` receives at once.
const AHEAD_BYTES: usize = 7 * (RECORD_BYTES + RECORD_OVERHEAD);

/// Parameters that both ends agree on.
struct Configs {
    sending: Arc<ServerConfig>,
    receiving: Arc<ClientConfig>,
}

impl Configs {
    fn new() -> Result<Configs> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let mut provider = default_provider();
        provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
        let provider = Arc::new(in_place(provider));
        let versions = &[&rustls::version::TLS13];
        let receiving = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let key = key.map_err(anyhow::Error::msg)?;
        let mut sending = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        sending.send_tls13_tickets = 0;
        Ok(Configs { sending: Arc::new(sending), receiving: Arc::new(receiving) })
    }

    fn name() -> Result<ServerName<'static>> {
        Ok(ServerName::try_from("localhost")?)
    }

    /// A connection over `sender`, whose other end `join` makes meanwhile.
    fn join<T>(
        &self,
        sender: TcpStream,
        join: impl FnOnce(&Configs) -> Result<T>,
    ) -> Result<(Sending, T)> {
        let mut connection = ServerConnection::new(Arc::clone(&self.sending))?;
        connection.set_buffer_limit(None);
        let mut sending = Sending { connection, socket: sender };
        std::thread::scope(|scope| {
            let shaking = scope.spawn(move || -> Result<Sending> {
                while sending.connection.is_handshaking() {
                    sending.connection.complete_io(&mut sending.socket)?;
                }
                Ok(sending)
            });
            let receiving = join(self).context("joining the connection");
            let sending = shaking.join().map_err(|_| anyhow!("the handshake panicked"))?;
            Ok((sending?, receiving?))
        })
    }
}

struct Sending {
    connection: ServerConnection,
    socket: TcpStream,
}

impl Sending {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.connection.writer().write_all(message)?;
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

/// Handles one message with rustls' own buffers: it copies records into one, their plaintext
/// into another, and that to `plain`.
fn buffered<'a>(name: &'static str, message: &'a [u8]) -> Result<Way<'a>> {
    let (sender, mut socket) = pair()?;
    let (mut sending, mut receiving) = Configs::new()?.join(sender, |configs| {
        let mut receiving =
            ClientConnection::new(Arc::clone(&configs.receiving), Configs::name()?)?;
        while receiving.is_handshaking() {
            receiving.complete_io(&mut socket)?;
        }
        Ok(receiving)
    })?;
    let mut plain = vec![0u8; message.len()];
    let work = move || -> Result<Duration> {
        sending.send(message)?;
        let (took, ()) = timed(|| receive(&mut receiving, &mut socket, &mut plain))?;
        black_box(&plain);
        Ok(took)
    };
    Ok(Way::new(name, work))
}

/// Reads until `plain` is full.
fn receive(
    receiving: &mut ClientConnection,
    socket: &mut TcpStream,
    plain: &mut [u8],
) -> Result<()> {
    let mut at = 0;
    while at < plain.len() {
        ensure!(receiving.read_tls(socket)? > 0, "the stream ended");
        let ready = receiving.process_new_packets()?.plaintext_bytes_to_read();
        if ready > 0 {
            let end = plain.len().min(at + ready);
            receiving.reader().read_exact(&mut plain[at..end])?;
            at = end;
        }
    }
    Ok(())
}

/// Handles one message by opening its records where `feeding` has received them.
fn opened<'a, F: Feed + 'a>(
    name: &'static str,
    message: &'a [u8],
    feeding: impl FnOnce(TcpStream) -> F,
) -> Result<Way<'a>> {
    let (sender, mut socket) = pair()?;
    let (mut sending, mut receiving) = Configs::new()?.join(sender, |configs| {
        let name = Configs::name()?;
        let session = UnbufferedClientConnection::new(Arc::clone(&configs.receiving), name)?;
        let mut receiving = Opener::new(session, feeding(socket.try_clone()?));
        receiving.handshake(&mut socket)?;
        Ok(receiving)
    })?;
    let work = move || -> Result<Duration> {
        sending.send(message)?;
        let (took, ()) = timed(|| {
            let mut left = message.len();
            while left > 0 {
                let plain = receiving.fill_buf()?;
                ensure!(!plain.is_empty(), "the stream ended");
                let count = black_box(plain).len();
                left = left.saturating_sub(count);
                receiving.consume(count);
            }
            Ok(())
        })?;
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
        let service = service()?;
        let copier = Arc::new(Copier::new(service.attach()?));
        let ways = vec![
            buffered("sync", &message)?,
            opened("sync-in-place", &message, |socket| Buffered::new(socket, AHEAD_BYTES))?,
            opened("offload", &message, |socket| {
                let mut inbound = Inbound::new(copier, socket, AHEAD_BYTES);
                inbound.set_first_bytes(RECORD_BYTES + RECORD_OVERHEAD);
                inbound
            })?
            .served(&service),
        ];
        let label = unlade_config::ByteSize(bytes as u64).to_string();
        let rounds = if quick { 5 } else { 21 };
        compare(&case("tls", "read", bytes), &label, rounds, PAPER, ways, sink)?;
    }
    Ok(())
}
