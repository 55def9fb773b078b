//! `unlade-lab bench record`: speed of sealing and opening TLS records, beside rustls' own buffered
//! connection in the same run.

use super::figures::median;
use super::record::Sink;
use anyhow::Result;
use clap::Args;
use rustls::crypto::aws_lc_rs as provider;
use rustls::crypto::{CryptoProvider, aws_lc_rs::cipher_suite as suites};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use rustls::{ServerConfig, SupportedCipherSuite};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use unlade_command::output::line;
use unlade_tls::{Handshake, Progress, RecordLayer, client};

/// Plaintext per turn: 16 records of 16 KiB, about the size of one write to a socket.
const TURN_BYTES: usize = 256 * 1024;
const RECORD_BYTES: usize = 16 * 1024;
/// Turns of one method before the next method runs.
const TURNS: usize = 64;
const NAME: &str = "speed.test";

/// One suite for each AEAD, and TLS 1.2.
const SUITES: [SupportedCipherSuite; 4] = [
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

const LONG_ABOUT: &str = "\
Seals and opens records of 16 KiB, 256 KiB at a time, with the record layer of moved connections \
(into a vector, and in place) and with rustls' buffered connection; one suite for each AEAD, and \
TLS 1.2. Each round runs all methods. Figures are medians over rounds.";

const AFTER_HELP: &str = "\
Examples:
  unlade-lab bench record --quick
  unlade-lab bench record --rounds 5 --json record.jsonl";

/// TLS records, beside rustls' buffered connection
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct RecordArgs {
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Write results there, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds of all methods
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

/// Runs the experiment.
///
/// # Errors
/// Results cannot be written.
pub fn run(args: &RecordArgs) -> Result<()> {
    let mut sink = Sink::new("record", args.json.as_deref(), 0)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 5 } else { 21 });
    line(format_args!("{:<44}{:<16}{:<18}{:>8}", "suite", "operation", "mode", "GiB/s"))?;
    for suite in SUITES {
        let speeds = measure(suite, rounds, TURNS);
        tell(suite, &speeds, &mut sink)?;
    }
    Ok(())
}

/// Bytes a second of each method: medians of `rounds`, with `turns` of each method per round.
fn measure(suite: SupportedCipherSuite, rounds: u32, turns: usize) -> [f64; METHODS.len()] {
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
    speeds.map(median)
}

fn tell(suite: SupportedCipherSuite, speeds: &[f64; METHODS.len()], sink: &mut Sink) -> Result<()> {
    let suite = format!("{:?}", suite.suite());
    let map =
        |value: Value| -> Map<String, Value> { value.as_object().cloned().unwrap_or_default() };
    let case =
        |what| map(json!({ "suite": suite, "operation": what, "record_bytes": RECORD_BYTES }));
    for ((what, mode), speed) in METHODS.into_iter().zip(speeds) {
        let gib_per_s = speed / f64::from(1 << 30);
        let metrics = json!({ "throughput_bytes_per_s": speed, "throughput_gib_per_s": gib_per_s });
        sink.write(case(what), mode, map(metrics))?;
        line(format_args!("{suite:<44}{what:<16}{mode:<18}{gib_per_s:>8.2}"))?;
    }
    let [seal, in_place, their_seal, receive, spare, their_receive] = *speeds;
    for (what, ours, theirs) in [
        ("seal", seal, their_seal),
        ("seal_in_place", in_place, their_seal),
        ("receive", receive, their_receive),
        ("receive_spare", spare, their_receive),
    ] {
        let ratio = json!({ "throughput_ratio_vs_rustls": ours / theirs });
        sink.write(case(what), "ratio", map(ratio))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_measured() {
        let speeds = measure(SUITES[0], 1, 2);
        assert!(speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0), "{speeds:?}");
        let mut sink = Sink::new("record", None, 0).unwrap();
        tell(SUITES[0], &speeds, &mut sink).unwrap();
        assert_eq!(sink.ratios().len(), 4);
        assert_eq!(sink.ratios()[0].0["suite"], "TLS13_AES_128_GCM_SHA256");
    }
}
