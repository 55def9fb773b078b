//! Peers and helpers for the tests: everything in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self as provider, ALL_CIPHER_SUITES};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedCipherSuite};
use unlade_net::state::TlsSnapshot;
use unlade_tls::{Established, Handshake, HandshakeError, Progress, RecordLayer, client};

pub const NAME: &str = "objects.test";

/// Certificate and key of the test server.
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    pub key: Vec<u8>,
}

impl Identity {
    fn new(key: rcgen::KeyPair) -> Identity {
        let params = rcgen::CertificateParams::new(vec![NAME.to_string()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Identity { certificate: certificate.der().clone(), key: key.serialize_der() }
    }

    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }

    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }
}

pub fn ecdsa() -> &'static Identity {
    static ONCE: OnceLock<Identity> = OnceLock::new();
    ONCE.get_or_init(|| Identity::new(rcgen::KeyPair::generate().unwrap()))
}

pub fn rsa() -> &'static Identity {
    static ONCE: OnceLock<Identity> = OnceLock::new();
    ONCE.get_or_init(|| {
        let (algorithm, size) = (&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        Identity::new(rcgen::KeyPair::generate_rsa_for(algorithm, size).unwrap())
    })
}

/// Every suite of rustls. A test of `src/suite.rs` shows that the server offers them all.
pub fn suites() -> Vec<SupportedCipherSuite> {
    ALL_CIPHER_SUITES.to_vec()
}

pub fn identity_for(suite: SupportedCipherSuite) -> &'static Identity {
    if format!("{suite:?}").contains("_RSA_") { rsa() } else { ecdsa() }
}

pub fn server_config(identity: &Identity, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    unlade_tls::server_config(identity.chain(), identity.private_key(), alpn).unwrap()
}

/// A client that supports only `suites`.
pub fn client_config(identity: &Identity, suites: &[SupportedCipherSuite]) -> ClientConfig {
    let provider =
        CryptoProvider { cipher_suites: suites.to_vec(), ..provider::default_provider() };
    let versions: Vec<_> = [&rustls::version::TLS12, &rustls::version::TLS13]
        .into_iter()
        .filter(|version| suites.iter().any(|suite| suite.version().version == version.version))
        .collect();
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(identity.roots())
        .with_no_client_auth()
}

pub fn client_of(config: ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config), ServerName::try_from(NAME).unwrap()).unwrap()
}

/// All pending output of `client`.
pub fn client_output(client: &mut ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut out).unwrap();
    }
    out
}

/// Passes bytes from the server to `client`; returns their plaintext.
pub fn client_input(client: &mut ClientConnection, mut bytes: &[u8]) -> Vec<u8> {
    let mut plaintext = Vec::new();
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets().unwrap();
        let mut chunk = vec![0; 1 << 16];
        loop {
            match client.reader().read(&mut chunk) {
                Ok(0) | Err(_) => break,
                Ok(count) => plaintext.extend_from_slice(&chunk[..count]),
            }
        }
    }
    plaintext
}

/// The bytes that `client` sends for `plaintext`.
pub fn client_seal(client: &mut ClientConnection, plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = plaintext;
    while !rest.is_empty() {
        let count = client.writer().write(rest).unwrap();
        rest = &rest[count..];
        out.extend(client_output(client));
    }
    out
}

/// Runs a handshake in which the server receives the client's bytes `step` at a time; the client
/// sends `early` together with the end of its handshake.
pub fn handshake(
    server: Arc<ServerConfig>,
    client: &mut ClientConnection,
    step: usize,
    early: &[u8],
) -> Result<Established, HandshakeError> {
    let mut server = Handshake::new(server).unwrap();
    let mut early_sent = early.is_empty();
    let mut established = None;
    for _ in 0..10 {
        let mut input = client_output(client);
        if !client.is_handshaking() && !early_sent {
            input.extend(client_seal(client, early));
            early_sent = true;
        }
        let mut out = Vec::new();
        for part in input.chunks(step.max(1)) {
            match established.as_mut() {
                None => match server.advance(part, &mut out)? {
                    Progress::NeedsInput => {}
                    Progress::Complete(done) => established = Some(*done),
                },
                Some(done) => {
                    done.record.receive(part, &mut done.plaintext).unwrap();
                }
            }
        }
        client_input(client, &out);
        if established.is_some() && !client.is_handshaking() && early_sent {
            break;
        }
    }
    let mut established = established.expect("the handshake ends");
    established.record.process(&mut established.plaintext)?;
    Ok(established)
}

/// A server's and a rustls client's end of a connection under `suite`.
pub fn connect(suite: SupportedCipherSuite) -> (RecordLayer, ClientConnection) {
    let identity = identity_for(suite);
    let mut client = client_of(client_config(identity, &[suite]));
    let server = server_config(identity, &[]);
    let established = handshake(server, &mut client, usize::MAX, b"").unwrap();
    assert!(established.plaintext.is_empty());
    (established.record, client)
}

/// The snapshots of both ends, server first, of a connection under `suite`.
pub fn snapshots(suite: SupportedCipherSuite) -> (TlsSnapshot, TlsSnapshot) {
    let identity = identity_for(suite);
    let mut config = client_config(identity, &[suite]);
    let log = client::capture(&mut config);
    let mut client = client_of(config);
    let server = server_config(identity, &[]);
    let established = handshake(server, &mut client, usize::MAX, b"").unwrap();
    let client = client::from_rustls(client, &log, &[]).unwrap();
    (established.record.to_snapshot(), client.to_snapshot())
}

/// One pair of snapshots for each suite, generated once.
pub fn all_snapshots() -> &'static [(TlsSnapshot, TlsSnapshot)] {
    static ONCE: OnceLock<Vec<(TlsSnapshot, TlsSnapshot)>> = OnceLock::new();
    ONCE.get_or_init(|| suites().into_iter().map(snapshots).collect())
}

/// Both ends, server first, restored.
pub fn pair(index: usize) -> (RecordLayer, RecordLayer) {
    let (server, client) = &all_snapshots()[index];
    (RecordLayer::from_snapshot(server).unwrap(), client::from_snapshot(client).unwrap())
}

pub fn pair_of(name: &str) -> (RecordLayer, RecordLayer) {
    let index = suites().iter().position(|suite| format!("{suite:?}").contains(name)).unwrap();
    pair(index)
}

/// The same state in a new record layer, as if it had moved to another host.
pub fn moved(layer: &RecordLayer) -> RecordLayer {
    RecordLayer::from_snapshot(&layer.to_snapshot()).unwrap()
}

pub fn seal(layer: &mut RecordLayer, plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    layer.seal(plaintext, &mut out).unwrap();
    out
}

pub fn open(layer: &mut RecordLayer, ciphertext: &[u8]) -> Vec<u8> {
    let mut plaintext = Vec::new();
    layer.receive(ciphertext, &mut plaintext).unwrap();
    plaintext
}

/// Bytes that differ from position to position.
pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[1] ^ seed).collect()
}
