//! Speed of sealing and opening records, beside rustls' own buffered connection in the same run.
//!
//! `cargo run --release -p unlade-tls --example seal_speed [ROUNDS]` prints one JSON line per
//! result: medians over the rounds; each round runs all methods.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use rustls::crypto::aws_lc_rs as provider;
use rustls::crypto::{CryptoProvider, aws_lc_rs::cipher_suite as suites};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use rustls::{ServerConfig, SupportedCipherSuite};
use unlade_tls::{Handshake, Progress, RecordLayer, client};

/// Plaintext per turn: 16 records of 16 KiB, about the size of one write to a socket.
const TURN_BYTES: usize = 256 * 1024;
/// Turns of one method before the next method runs.
const TURNS: usize = 64;
const NAME: &str = "speed.test";

/// One suite for each AEAD, and TLS 1.2.
pub const SUITES: [SupportedCipherSuite; 4] = [
    suites::TLS13_AES_128_GCM_SHA256,
    suites::TLS13_AES_256_GCM_SHA384,
    suites::TLS13_CHACHA20_POLY1305_SHA256,
    suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
];

/// The methods, in the order in which they run.
const METHODS: [(&str, &str); 6] = [
    ("seal", "offload"),
    ("seal_in_place", "offload"),
    ("seal", "rustls-buffered"),
    ("receive", "offload"),
    ("receive_spare", "offload"),
    ("receive", "rustls-buffered"),
];

/// Our two ends and rustls' two ends under the same suite.
struct Bench {
    ours: (RecordLayer, RecordLayer),
    rustls: (ServerConnection, ClientConnection),
    content: Vec<u8>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    plaintext: Vec<u8>,
}

fn configs(suite: SupportedCipherSuite) -> (Arc<ServerConfig>, ClientConfig) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate: CertificateDer<'static> = rcgen::CertificateParams::new(vec![NAME.into()])
        .and_then(|params| params.self_signed(&key))
        .expect("a certificate")
        .into();
    let private: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let server =
        unlade_tls::server_config(vec![certificate.clone()], private, &[]).expect("a server");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let provider = CryptoProvider { cipher_suites: vec![suite], ..provider::default_provider() };
    let client = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[suite.version()])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, client)
}

fn start_client(config: ClientConfig) -> ClientConnection {
    let name = ServerName::try_from(NAME).expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a client")
}

fn send(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).expect("memory");
    }
    bytes
}

fn take(client: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).expect("memory");
        client.process_new_packets().expect("a server");
    }
}

fn our_ends(server: Arc<ServerConfig>, mut config: ClientConfig) -> (RecordLayer, RecordLayer) {
    let log = client::capture(&mut config);
    let mut far = start_client(config);
    let mut handshake = Handshake::new(server).expect("a configuration");
    loop {
        let mut out = Vec::new();
        let progress = handshake.advance(&send(&mut far), &mut out).expect("a client");
        take(&mut far, &out);
        if let Progress::Complete(done) = progress {
            return (done.record, client::from_rustls(far, &log, &[]).expect("secrets"));
        }
    }
}

fn rustls_ends(
    server: Arc<ServerConfig>,
    config: ClientConfig,
) -> (ServerConnection, ClientConnection) {
    let mut server = ServerConnection::new(server).expect("a configuration");
    let mut far = start_client(config);
    server.set_buffer_limit(None);
    while server.is_handshaking() || far.is_handshaking() || server.wants_write() {
        let bytes = send(&mut far);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).expect("memory");
            server.process_new_packets().expect("a client");
        }
        let mut out = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut out).expect("memory");
        }
        take(&mut far, &out);
    }
    (server, far)
}

impl Bench {
    fn new(suite: SupportedCipherSuite) -> Bench {
        let (server, client) = configs(suite);
        let ours = our_ends(server.clone(), client.clone());
        let rustls = rustls_ends(server, client);
        let content = (0..TURN_BYTES).map(|at| (at * 31) as u8).collect();
        let buffer = vec![0; ours.0.layout(TURN_BYTES).sealed_bytes()];
        let (out, plaintext) = (Vec::new(), Vec::new());
        Bench { ours, rustls, content, out, buffer, plaintext }
    }

    /// Seals one turn's content with rustls into `out`.
    fn rustls_seal(&mut self) {
        self.out.clear();
        let server = &mut self.rustls.0;
        server.writer().write_all(&self.content).expect("no limit");
        while server.wants_write() {
            server.write_tls(&mut self.out).expect("memory");
        }
    }

    /// Runs one turn of one method; returns its duration in seconds. Its input is made before.
    fn turn(&mut self, method: usize) -> f64 {
        match METHODS[method] {
            ("seal", "offload") => {
                let start = Instant::now();
                self.out.clear();
                self.ours.0.seal(&self.content, &mut self.out).expect("a key");
                let seconds = start.elapsed().as_secs_f64();
                // The receiver keeps up, so that both ends count the same records.
                self.plaintext.clear();
                self.ours.1.receive(&self.out, &mut self.plaintext).expect("a record");
                seconds
            }
            ("seal_in_place", _) => {
                let layout = self.ours.0.layout(TURN_BYTES);
                self.out.clear();
                self.ours.0.take_output(&mut self.out);
                let start = Instant::now();
                let sealed =
                    self.ours.0.seal_in_place(&mut self.buffer, &layout, TURN_BYTES).expect("room");
                let seconds = start.elapsed().as_secs_f64();
                self.out.extend_from_slice(&self.buffer[..sealed]);
                self.plaintext.clear();
                self.ours.1.receive(&self.out, &mut self.plaintext).expect("a record");
                seconds
            }
            ("seal", _) => {
                let start = Instant::now();
                self.rustls_seal();
                let seconds = start.elapsed().as_secs_f64();
                self.rustls_receive();
                seconds
            }
            ("receive", "offload") => {
                self.out.clear();
                self.ours.0.seal(&self.content, &mut self.out).expect("a key");
                let start = Instant::now();
                self.plaintext.clear();
                self.ours.1.receive(&self.out, &mut self.plaintext).expect("a record");
                start.elapsed().as_secs_f64()
            }
            ("receive_spare", _) => {
                self.out.clear();
                self.ours.0.seal(&self.content, &mut self.out).expect("a key");
                self.ours.1.receive_spare().extend_from_slice(&self.out);
                let start = Instant::now();
                self.plaintext.clear();
                self.ours.1.process(&mut self.plaintext).expect("a record");
                start.elapsed().as_secs_f64()
            }
            _ => {
                self.rustls_seal();
                let start = Instant::now();
                self.rustls_receive();
                start.elapsed().as_secs_f64()
            }
        }
    }

    fn rustls_receive(&mut self) {
        let far = &mut self.rustls.1;
        let mut rest = &self.out[..];
        self.plaintext.resize(TURN_BYTES, 0);
        let mut at = 0;
        while at < TURN_BYTES {
            if !rest.is_empty() {
                far.read_tls(&mut rest).expect("memory");
                far.process_new_packets().expect("a record");
            }
            while let Ok(count) = far.reader().read(&mut self.plaintext[at..]) {
                at += count;
                if count == 0 || at == TURN_BYTES {
                    break;
                }
            }
        }
    }
}

fn main() {
    let rounds = match std::env::args().nth(1).map(|text| text.parse::<usize>()) {
        None => 21,
        Some(Ok(rounds)) if rounds > 0 => rounds,
        Some(_) => {
            eprintln!("usage: seal_speed [ROUNDS]; ROUNDS is a number above 0");
            std::process::exit(2);
        }
    };
    for suite in SUITES {
        for line in measure(suite, rounds, TURNS) {
            println!("{line}");
        }
    }
}

/// The results for `suite`, one JSON line each: medians of `rounds`, with `turns` of each method
/// per round.
pub fn measure(suite: SupportedCipherSuite, rounds: usize, turns: usize) -> Vec<String> {
    let mut bench = Bench::new(suite);
    let mut speeds: [Vec<f64>; METHODS.len()] = Default::default();
    // The first round warms up buffers and the allocator and is not counted.
    for round in 0..=rounds {
        for (method, speeds) in speeds.iter_mut().enumerate() {
            let seconds: f64 = (0..turns).map(|_| bench.turn(method)).sum();
            if round > 0 {
                speeds.push((TURN_BYTES * turns) as f64 / seconds);
            }
        }
        black_box(&bench.plaintext);
    }
    let line = |((what, mode), mut speeds): ((&str, &str), Vec<f64>)| {
        speeds.sort_by(f64::total_cmp);
        let median = speeds[speeds.len() / 2];
        format!(
            "{{\"bench\":\"record\",\"case\":{{\"suite\":\"{:?}\",\"operation\":\"{what}\",\
             \"record_bytes\":16384}},\"mode\":\"{mode}\",\
             \"metrics\":{{\"throughput_bytes_per_s\":{median:.0},\
             \"throughput_gib_per_s\":{:.2}}}}}",
            suite.suite(),
            median / f64::from(1 << 30),
        )
    };
    METHODS.into_iter().zip(speeds).map(line).collect()
}
