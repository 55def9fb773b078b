//! `unlade backend` with `tls = "nic"`: curl, OpenSSL and rustls as clients.

use std::io::{Read, Write};
use std::process::Stdio;

use system_tests::{admin, needs, unlade};
use unlade_testkit::Random;

use crate::net::{self, Checker, HOST, IMPAIRED, MARKER, NAME, Net, Program, Side};

/// Size of an object, in bytes.
const OBJECT_BYTES: usize = 3_000_000;

impl Net {
    /// Starts the server and waits until clients can connect.
    fn serve(&mut self, impair: &str) {
        let wire = self.tap_wire();
        std::fs::create_dir_all(self.path("objects")).unwrap();
        let text = format!(
            r#"
            http = "127.0.0.1:8080"
            admin = "127.0.0.1:9902"
            root = "objects"
            workers = 2
            tls = "nic"
            [https]
            address = "{HOST}:443"
            certificate = "a.crt"
            key = "a.key"
            [nic]
            addresses = ["{HOST}/24"]
            wire = "{wire}"
            impair = "{impair}"
            "#
        );
        std::fs::write(self.path("backend.toml"), text).unwrap();
        let mut command = self.command(Side::Host, &unlade().display().to_string());
        command.args(["backend", "--config"]).arg(self.path("backend.toml"));
        let log = std::fs::File::create(self.path("log")).unwrap();
        self.program = Some(Program(command.stderr(log).stdin(Stdio::null()).spawn().unwrap()));
        self.address_peer();
        self.until("the admin endpoint", || !self.metrics().is_empty());
    }

    fn metrics(&self) -> String {
        let get = self.inside(Side::Host, || admin::get(9902, "/metrics").ok());
        get.join().unwrap().unwrap_or_default()
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics();
        let start = format!("{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).trim().parse().unwrap()
    }

    /// Runs curl at the peer and returns its output.
    fn curl(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = self.command(Side::Peer, "curl");
        let to = format!("{NAME}:443:{HOST}");
        command.args(["-sS", "--fail", "--max-time", "60", "--resolve", &to, "--cacert"]);
        let output = command.arg(self.path("a.crt")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}\n{}", self.metrics());
        output.stdout
    }

    /// Asserts that all connections so far were offloaded.
    fn assert_offloaded(&self) {
        let handshakes = self.metric("unlade_backend_tls_handshakes_total");
        assert_eq!(self.metric("unlade_backend_records_offloaded_total"), handshakes);
        assert!(self.metric("unlade_nic_tx_tls_encrypted_bytes_total") as usize > OBJECT_BYTES);
        assert!(self.metric("unlade_nic_rx_tls_decrypted_packets_total") > 0);
        // Retransmissions of acknowledged segments or ended connections are dropped. The bodies
        // would not have arrived if other frames were dropped.
        let dropped = self.metric("unlade_nic_tx_dropped_frames_total");
        assert!(dropped < 50, "{dropped} frames were dropped");
    }
}

fn object(seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(OBJECT_BYTES)
}

#[test]
fn curl_puts_and_gets_objects_through_the_device() {
    needs!("ip", "curl");
    for more in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let mut net = Net::new();
        net.serve(IMPAIRED);
        let sent = object(1);
        std::fs::write(net.path("sent"), &sent).unwrap();
        let url = format!("https://{NAME}/one");
        let put = net.path("sent").display().to_string();
        net.curl(&[more, &["-T", &put, &url]].concat());
        assert!(std::fs::read(net.path("objects/one")).unwrap() == sent, "{more:?}");
        assert!(net.curl(&[more, &[&url]].concat()) == sent, "{more:?}");
        // Several requests on one connection, with ranges.
        let part = net.curl(&[more, &["-r", "1000-70999", &url, &url]].concat());
        assert!(part == [&sent[1000..71_000], &sent[1000..71_000]].concat(), "{more:?}");
        net.assert_offloaded();
        assert!(net.metric("unlade_nic_records_offloaded_total") > 0);
        assert!(net.metric("unlade_nic_impaired_lost_frames_total") > 0);
        assert!(net.metric("unlade_nic_tx_tls_ooo_total") > 0);
    }
}

#[test]
fn what_the_device_refuses_is_served_in_software() {
    needs!("ip", "openssl");
    let mut net = Net::new();
    net.serve(IMPAIRED);
    let sent = object(2);
    std::fs::write(net.path("objects/two"), &sent).unwrap();
    let mut command = net.command(Side::Peer, "openssl");
    command.args(["s_client", "-quiet", "-connect", &format!("{HOST}:443"), "-servername", NAME]);
    command.args(["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256", "-CAfile"]);
    command.arg(net.path("a.crt")).arg("-verify_return_error");
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = Program(piped.spawn().unwrap());
    let request = format!("GET /two HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    client.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    client.0.stdout.take().unwrap().read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&sent));
    let refused = "unlade_backend_records_refused_total{reason=\"unsuited\"}";
    assert_eq!(net.metric(refused), 1);
    assert_eq!(net.metric("unlade_backend_records_offloaded_total"), 0);
    assert_eq!(net.metric("unlade_nic_tx_tls_encrypted_bytes_total"), 0);
}

#[test]
fn keys_change_between_requests_of_one_connection() {
    needs!("ip");
    let mut net = Net::new();
    net.serve(IMPAIRED);
    let sent = object(3);
    std::fs::write(net.path("objects/three"), &sent).unwrap();
    let config = net.client_config();
    let client = net.inside(Side::Peer, move || {
        let mut stream = net::connect(config, 443);
        let piece = OBJECT_BYTES / 20;
        let mut all = Vec::new();
        for start in (0..OBJECT_BYTES).step_by(piece) {
            let request = format!(
                "GET /three HTTP/1.1\r\nHost: a\r\nRange: bytes={start}-{}\r\n\r\n",
                start + piece - 1
            );
            stream.write_all(request.as_bytes()).unwrap();
            stream.flush().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            assert!(head.starts_with(b"HTTP/1.1 206 "), "{}", String::from_utf8_lossy(&head));
            let mut got = vec![0; piece];
            stream.read_exact(&mut got).unwrap();
            all.extend(got);
            stream.conn.refresh_traffic_keys().unwrap();
        }
        all
    });
    assert!(client.join().unwrap() == sent);
    net.assert_offloaded();
}

#[test]
fn plaintext_is_never_on_the_wire() {
    needs!("ip", "curl");
    let mut net = Net::new();
    net.serve(IMPAIRED);
    let sent = MARKER.repeat(OBJECT_BYTES / MARKER.len());
    std::fs::write(net.path("objects/marked"), &sent).unwrap();
    let checker = Checker::start(&net);
    let url = format!("https://{NAME}/marked");
    assert!(net.curl(&[&url]) == sent);
    // Clients leave early, while the kernel still has plaintext records to send.
    for _ in 0..3 {
        let config = net.client_config();
        let client = net.inside(Side::Peer, move || {
            let mut stream = net::connect(config, 443);
            stream.write_all(b"GET /marked HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream.flush().unwrap();
            let mut some = vec![0; 100_000];
            stream.read_exact(&mut some).unwrap();
        });
        client.join().unwrap();
    }
    net.until("the end of all", || net.metric("unlade_backend_open_connections") == 0);
    // The server also ends.
    net.program = None;
    let (found, searched) = checker.finish();
    assert_eq!(found, 0);
    assert!(searched as usize > OBJECT_BYTES, "{searched}");
}
