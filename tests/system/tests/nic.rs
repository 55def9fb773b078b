//! `unlade nic run` over the kernel's TCP, with OpenSSL, curl, nginx and rustls as peers. The wire
//! loses, reorders and duplicates frames, and every byte is compared.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use system_tests::{admin, needs, unlade};
use unlade_testkit::Random;

#[path = "nic/lives.rs"]
mod lives;
#[path = "nic/net.rs"]
mod net;

use net::*;

const NAME: &str = "peer.example";
/// Size of a body in each direction, in bytes.
const BODY_BYTES: usize = 3_000_000;
/// Impairment of the wire, in both directions.
const IMPAIRED: &str = "loss=2%,reorder=2%,duplicate=1%,seed=7";
/// Time limit of an operation.
const PATIENCE: Duration = Duration::from_secs(60);
/// Plaintext marker, the content of bodies when the wire is searched for it.
const MARKER: &[u8; 16] = b"plain-text-here:";

/// Returns a body for a seed.
fn body(seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(BODY_BYTES)
}

/// Writes a child's input while reading `bytes` bytes of its output.
fn exchange(child: &mut Child, input: Vec<u8>, bytes: usize) -> Vec<u8> {
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writer = thread::spawn(move || {
        stdin.write_all(&input).unwrap();
        stdin
    });
    let reader = thread::spawn(move || {
        let mut output = vec![0; bytes];
        stdout.read_exact(&mut output).map(|()| output)
    });
    let deadline = Instant::now() + PATIENCE;
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    if !reader.is_finished() {
        child.kill().unwrap();
    }
    let output = reader.join().unwrap().expect("the whole output comes in time");
    drop(writer.join());
    output
}

fn s_client(net: &Net, arguments: &[&str]) -> (Program, Receiver<String>) {
    let mut command = net.command(Side::Peer, "openssl");
    command.args(["s_client", "-connect", &net.at(Side::Host, 443), "-servername", NAME]);
    command.args(["-CAfile", &net.text("a.crt"), "-verify_return_error"]).args(arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let errors = child.stderr.take().unwrap();
    let seen = lines_of(errors);
    (Program(child), seen)
}

/// Returns the lines of a stream as they arrive.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, seen) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let reader = std::io::BufReader::new(stream);
        for line in std::io::BufRead::lines(reader).map_while(Result::ok) {
            // The receiver may be gone.
            let _ = lines.send(line);
        }
    });
    seen
}

/// Waits for a line that contains the text.
fn wait_line(lines: &Receiver<String>, expected: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if lines.recv_timeout(left).expect(expected) == expected {
            return;
        }
    }
}

/// Asserts that the device processed a connection with a body in each direction.
fn assert_offloaded(net: &Net) {
    assert_eq!(net.metric("connections_offloaded"), net.metric("connections_accepted"));
    // The counters are published after the bytes are sent.
    net.until("all of it sealed", || net.metric("tx_tls_encrypted_bytes") as usize > BODY_BYTES);
    assert!(net.metric("rx_tls_decrypted_packets") > 0);
    assert!(net.metric("records_offloaded") > 0);
    assert_eq!(net.metric("handshakes_failed"), 0);
}

/// Asserts that the wire was impaired as configured.
fn assert_impaired(net: &Net) {
    assert!(net.metric("impaired_lost_frames") > 0);
    assert!(net.metric("impaired_reordered_frames") > 0);
    assert!(net.metric("tx_tls_ooo") > 0);
}

fn s_client_echoes(arguments: &[&str], offloaded: bool) {
    s_client_echoes_over(Net::new(), arguments, offloaded);
}

fn s_client_echoes_over(mut net: Net, arguments: &[&str], offloaded: bool) {
    let _server = net.echo();
    net.terminate(&["--impair", IMPAIRED]);
    let (mut client, _errors) = s_client(&net, &[&["-quiet"], arguments].concat());
    let sent = body(1);
    assert!(exchange(&mut client.0, sent.clone(), sent.len()) == sent, "{arguments:?}");
    match offloaded {
        true => {
            assert_offloaded(&net);
            assert_impaired(&net);
        }
        false => assert_eq!(net.metric("connections_offloaded"), 0),
    }
}

#[test]
fn s_client_tls13_aes128() {
    needs!("ip", "openssl");
    s_client_echoes(&["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"], true);
}

#[test]
fn s_client_tls13_aes256() {
    needs!("ip", "openssl");
    s_client_echoes(&["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"], true);
}

#[test]
fn s_client_tls13_chacha_in_software() {
    needs!("ip", "openssl");
    s_client_echoes(&["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"], false);
}

#[test]
fn s_client_tls12_aes128() {
    needs!("ip", "openssl");
    s_client_echoes(&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], true);
}

#[test]
fn s_client_tls12_aes256() {
    needs!("ip", "openssl");
    s_client_echoes(&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"], true);
}

#[test]
fn s_client_changes_keys_by_its_commands() {
    needs!("ip", "openssl");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&["--impair", IMPAIRED]);
    let (mut client, errors) = s_client(&net, &["-tls1_3"]);
    let (mut stdin, stdout) = (client.0.stdin.take().unwrap(), client.0.stdout.take().unwrap());
    let lines = lines_of(stdout);
    for number in 0..20 {
        let line = format!("echo number {number}");
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        wait_line(&lines, &line);
        // K updates its key and requests an update of the peer's, k updates only its own. Input
        // together with the letter is discarded, so nothing may follow at once.
        let command = if number % 2 == 0 { "K" } else { "k" };
        stdin.write_all(format!("{command}\n").as_bytes()).unwrap();
        wait_line(&errors, "KEYUPDATE");
    }
    assert!(net.metric("rx_tls_decrypted_packets") > 0);
    assert_eq!(net.metric("connections_failed"), 0);
}

/// Runs a rustls client that updates its key repeatedly during a body in each direction.
fn rustls_echoes(net: &Net, rounds: usize) -> Vec<u8> {
    let pem = std::fs::read(net.path("a.crt")).unwrap();
    let at = net.at(Side::Host, 443);
    let client = net.inside(Side::Peer, move || {
        use rustls::pki_types::pem::PemObject;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = NAME.try_into().unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let tcp = TcpStream::connect(at).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, tcp);
        let mut all = Vec::new();
        for piece in body(2).chunks(BODY_BYTES / rounds) {
            stream.write_all(piece).unwrap();
            stream.flush().unwrap();
            let mut back = vec![0; piece.len()];
            stream.read_exact(&mut back).unwrap();
            all.extend(back);
            stream.conn.refresh_traffic_keys().unwrap();
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        let mut rest = Vec::new();
        // Expects an orderly end: close_notify and FIN.
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        all
    });
    client.join().unwrap()
}

#[test]
fn rustls_changes_keys_in_the_middle_of_a_body() {
    needs!("ip");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&["--impair", IMPAIRED]);
    assert!(rustls_echoes(&net, 30) == body(2));
    assert_offloaded(&net);
    assert_impaired(&net);
    net.until("the orderly end", || net.metric("connections_finished") == 1);
}

#[test]
fn rustls_over_a_good_wire_is_offloaded_whole() {
    needs!("ip");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&[]);
    let counts = || {
        let partial = net.metric("records_partial") + net.metric("records_software");
        (net.metric("records_offloaded"), partial)
    };
    // A busy machine drops packets, too, and counters are published after the bytes: then the next
    // connection tells.
    let is_mostly_whole = (0..6).any(|_| {
        let before = counts();
        assert!(rustls_echoes(&net, 2) == body(2));
        let (whole, partial) = counts();
        (whole - before.0) * 2 > partial - before.1
    });
    assert!(is_mostly_whole, "{:?}", counts());
    assert_offloaded(&net);
}

#[test]
fn in_software_the_same_bytes_come() {
    needs!("ip");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&["--software", "--impair", IMPAIRED]);
    assert!(rustls_echoes(&net, 10) == body(2));
    assert_eq!(net.metric("connections_offloaded"), 0);
    assert_eq!(net.metric("tx_tls_encrypted_packets"), 0);
}

/// Serves HTTP and answers a PUT with its body.
fn http_echo(mut tcp: TcpStream) {
    let mut input = Vec::new();
    let mut buffer = vec![0; 65_536];
    let end = loop {
        match tcp.read(&mut buffer) {
            Ok(got @ 1..) => input.extend_from_slice(&buffer[..got]),
            _ => return,
        }
        if let Some(at) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&input[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    while input.len() < end + length {
        match tcp.read(&mut buffer) {
            Ok(got @ 1..) => input.extend_from_slice(&buffer[..got]),
            _ => return,
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = tcp.write_all(head.as_bytes());
    let _ = tcp.write_all(&input[end..]);
}

fn curl_puts(more: &[&str]) {
    let mut net = Net::new();
    let _server = net.serve(http_echo);
    net.terminate(&["--impair", IMPAIRED, "--alpn", "http/1.1"]);
    std::fs::write(net.path("body"), body(3)).unwrap();
    let mut command = net.command(Side::Peer, "curl");
    command.args(["-sS", "--max-time", "60", "--cacert", &net.text("a.crt"), "-H", "Expect:"]);
    command.args(["--resolve", &format!("{NAME}:443:10.9.0.1"), "-T", &net.text("body")]);
    let output = command.args(more).arg(format!("https://{NAME}/body")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == body(3));
    assert_offloaded(&net);
}

#[test]
fn curl_sends_and_gets_a_body() {
    needs!("ip", "curl");
    curl_puts(&[]);
    curl_puts(&["--tls-max", "1.2"]);
}

/// Sends `sent` through the originator and returns the `bytes` bytes that come back.
fn through_originator(net: &Net, sent: Vec<u8>, bytes: usize) -> Vec<u8> {
    let client = net.inside(Side::Host, move || {
        let mut tcp = TcpStream::connect("127.0.0.1:8443").unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut other = tcp.try_clone().unwrap();
        let writer = thread::spawn(move || other.write_all(&sent).unwrap());
        let mut back = vec![0; bytes];
        tcp.read_exact(&mut back).unwrap();
        writer.join().unwrap();
        back
    });
    client.join().unwrap()
}

fn s_server_exchanges(arguments: &[&str]) {
    let mut net = Net::new();
    net.originate(&["--impair", IMPAIRED]);
    let mut command = net.command(Side::Peer, "openssl");
    command.args(["s_server", "-accept", "443", "-quiet", "-naccept", "1"]);
    command.args(["-cert", &net.text("a.crt"), "-key", &net.text("a.key")]).args(arguments);
    let log = std::fs::File::create(net.path("peer.log")).unwrap();
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut server = Program(command.spawn().unwrap());
    net.until("s_server", || {
        let mut ss = net.command(Side::Peer, "ss");
        let output = ss.args(["-Hltn", "sport = :443"]).output().unwrap();
        !output.stdout.is_empty()
    });
    let exchanged = thread::scope(|scope| {
        let server = scope.spawn(|| exchange(&mut server.0, body(5), BODY_BYTES));
        let client = through_originator(&net, body(4), BODY_BYTES);
        (client, server.join().unwrap())
    });
    assert!(exchanged == (body(5), body(4)), "{arguments:?}");
    assert_offloaded(&net);
    assert_impaired(&net);
}

#[test]
fn s_server_behind_the_originator() {
    needs!("ip", "openssl", "ss");
    s_server_exchanges(&["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"]);
    s_server_exchanges(&["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"]);
    s_server_exchanges(&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"]);
}

#[test]
fn nginx_behind_the_originator() {
    needs!("ip", "nginx", "curl");
    nginx_serves(Net::new());
}

fn nginx_serves(mut net: Net) {
    net.originate(&["--impair", IMPAIRED]);
    std::fs::write(net.path("body"), body(6)).unwrap();
    // nginx's worker runs as another user.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(net.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (dir, at) = (net.dir.path().display(), net.at(Side::Peer, 443));
    let config = format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;
         events {{}}
         http {{ access_log off; client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
         fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
         server {{ listen {at} ssl; ssl_certificate {dir}/a.crt; ssl_certificate_key {dir}/a.key;
         ssl_protocols TLSv1.2 TLSv1.3; root {dir}; }} }}"
    );
    std::fs::write(net.path("nginx.conf"), config).unwrap();
    let mut command = net.command(Side::Peer, "nginx");
    command.args(["-c", &net.text("nginx.conf"), "-e", &net.text("error.log")]);
    let _nginx = Program(command.stdin(Stdio::null()).spawn().unwrap());
    // A request of about fifteen segments, so that the wire soon loses one.
    let padding = (0..3).flat_map(|n| ["-H".into(), format!("X-{n}: {}", "a".repeat(7000))]);
    let padding: Vec<String> = padding.collect();
    let get = || {
        let mut curl = net.command(Side::Host, "curl");
        curl.args(["-sS", "--fail", "--max-time", "60"]).args(&padding);
        curl.arg("http://127.0.0.1:8443/body").output().unwrap()
    };
    net.until("nginx", || get().status.success());
    for _ in 0..3 {
        assert!(get().stdout == body(6));
    }
    assert!(net.metric("rx_tls_decrypted_bytes") > 0);
    assert!(net.metric("records_offloaded") > 0);
    // The wire loses two frames of a hundred, so several requests are needed.
    net.until("a record is sent again", || {
        assert!(get().stdout == body(6));
        net.metric("tx_tls_ooo") > 0
    });
    assert_impaired(&net);
}

#[test]
fn ipv6_terminated() {
    needs!("ip", "openssl");
    s_client_echoes_over(Net::over(IPV6, WireKind::Tap), &["-tls1_3"], true);
    s_client_echoes_over(Net::over(IPV6, WireKind::Tap), &["-tls1_2"], true);
}

#[test]
fn ipv6_in_large_segments_with_keys_that_change() {
    needs!("ip");
    let mut net = Net::over(IPV6, WireKind::Tap);
    let _server = net.echo();
    net.terminate(&[]);
    assert!(rustls_echoes(&net, 10) == body(2));
    assert_offloaded(&net);
    net.until("the orderly end", || net.metric("connections_finished") == 1);
}

#[test]
fn ipv6_originated() {
    needs!("ip", "nginx", "curl");
    nginx_serves(Net::over(IPV6, WireKind::Tap));
}

#[test]
fn an_interface_as_the_wire_terminated() {
    needs!("ip", "openssl", "ethtool", "sysctl");
    for ends in [IPV4, IPV6] {
        s_client_echoes_over(Net::over(ends, WireKind::Interface), &["-tls1_3"], true);
    }
}

#[test]
fn an_interface_as_the_wire_originated() {
    needs!("ip", "nginx", "curl", "ethtool", "sysctl");
    for ends in [IPV4, IPV6] {
        nginx_serves(Net::over(ends, WireKind::Interface));
    }
}

#[test]
fn an_interface_as_the_wire_without_loss_is_offloaded_whole() {
    needs!("ip", "ethtool", "sysctl");
    let mut net = Net::over(IPV4, WireKind::Interface);
    let _server = net.echo();
    net.terminate(&[]);
    assert!(rustls_echoes(&net, 2) == body(2));
    assert_offloaded(&net);
    let whole = net.metric("records_offloaded");
    assert!(whole * 2 > net.metric("records_partial") + net.metric("records_software"));
}

/// Searches the frames that the peer receives for plaintext, until finished.
struct Checker {
    over: Arc<AtomicBool>,
    seen_bytes: Arc<AtomicU64>,
    thread: JoinHandle<usize>,
}

impl Checker {
    fn start(net: &Net) -> Checker {
        let (over, seen_bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ended, seen) = (over.clone(), seen_bytes.clone());
        let (ready, started) = std::sync::mpsc::channel();
        let thread = net.inside(Side::Peer, move || {
            let link = unlade_sys::link::Link::by_name("unlw").unwrap();
            let port = unlade_sys::packet::PacketPort::open(link).unwrap();
            ready.send(()).unwrap();
            let mut frame = vec![0; 70_000];
            let mut found = 0;
            loop {
                // Loaded before the search, so that all frames up to the end are searched.
                let is_over = ended.load(Ordering::Relaxed);
                match port.receive(&mut frame) {
                    Ok((_, got)) => {
                        seen.fetch_add(got as u64, Ordering::Relaxed);
                        let hit = |at: &[u8]| at == MARKER;
                        found += usize::from(frame[..got].windows(MARKER.len()).any(hit));
                    }
                    Err(_) if is_over => return found,
                    Err(_) => thread::sleep(Duration::from_micros(200)),
                }
            }
        });
        started.recv_timeout(PATIENCE).unwrap();
        Checker { over, seen_bytes, thread }
    }

    /// Ends the search. Returns the number of frames with plaintext and of searched bytes.
    fn finish(self) -> (usize, u64) {
        self.over.store(true, Ordering::Relaxed);
        (self.thread.join().unwrap(), self.seen_bytes.load(Ordering::Relaxed))
    }
}

#[test]
fn plaintext_is_never_on_the_wire() {
    needs!("ip", "openssl");
    let mut net = Net::new();
    let _server = net.serve(|mut tcp| {
        let mut ask = [0; 1];
        if tcp.read_exact(&mut ask).is_ok() {
            let _ = tcp.write_all(&MARKER.repeat(BODY_BYTES / MARKER.len()));
        }
    });
    net.terminate(&["--impair", IMPAIRED]);
    let checker = Checker::start(&net);
    for version in ["-tls1_3", "-tls1_2"] {
        let (mut client, _errors) = s_client(&net, &["-quiet", version]);
        let bytes = BODY_BYTES / MARKER.len() * MARKER.len();
        let got = exchange(&mut client.0, b"?".to_vec(), bytes);
        assert!(got.chunks(MARKER.len()).all(|piece| piece == MARKER));
    }
    // A client leaves while the kernel still has plaintext records to send.
    for _ in 0..3 {
        let (mut client, _errors) = s_client(&net, &["-quiet"]);
        let mut stdin = client.0.stdin.take().unwrap();
        stdin.write_all(b"?").unwrap();
        let mut some = vec![0; 100_000];
        client.0.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    }
    net.until("the end of all", || {
        net.metric("connections_finished") + net.metric("connections_failed") == 5
    });
    let (found, searched) = checker.finish();
    assert_eq!(found, 0);
    assert!(searched as usize > BODY_BYTES, "{searched}");
}

#[test]
fn other_traffic_passes_untouched() {
    needs!("ip", "openssl", "ping");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&[]);
    // A plaintext connection of the host through the device, and protocols of the kernel.
    let bound = net.inside(Side::Host, || TcpListener::bind("10.9.0.1:0").unwrap());
    let listener = bound.join().unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let accepted = thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        tcp.read_to_end(&mut got).unwrap();
        got
    });
    let sender = net.inside(Side::Peer, move || {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(&body(7)).unwrap();
    });
    sender.join().unwrap();
    assert!(accepted.join().unwrap() == body(7));
    let mut ping = net.command(Side::Peer, "ping");
    assert!(ping.args(["-c", "2", "-W", "5", "10.9.0.1"]).output().unwrap().status.success());
    assert_eq!(net.metric("rx_tls_decrypted_packets"), 0);
}

#[test]
fn a_drain_finishes_what_is_in_work() {
    needs!("ip", "openssl");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&[]);
    let (mut client, _errors) = s_client(&net, &["-quiet"]);
    let mut stdin = client.0.stdin.take().unwrap();
    let mut stdout = client.0.stdout.take().unwrap();
    let mut back = [0; 5];
    stdin.write_all(b"first").unwrap();
    stdout.read_exact(&mut back).unwrap();
    let pid = net.program.as_ref().unwrap().0.id().to_string();
    run("kill", &["-TERM", &pid]);
    net.until("the drain", || net.inside(Side::Host, || admin::is_draining(9902)).join().unwrap());
    stdin.write_all(b"again").unwrap();
    stdout.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"again");
    drop(client);
    let mut ended = false;
    let deadline = Instant::now() + PATIENCE;
    while !ended && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
        ended = net.program.as_mut().unwrap().0.try_wait().unwrap().is_some();
    }
    assert!(ended, "the process does not end");
}

#[test]
fn a_configuration_is_checked_without_running_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nic.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let file: &Path = &file;
        Command::new(unlade()).args(["nic", "run", "--check", "--config"]).arg(file).output()
    };
    let good = "wire = \"tap:unlw@peer\"\n[[originate]]\nlisten = \"127.0.0.1:1\"\n\
                connect = \"10.0.0.1:443\"\nname = \"a\"\nca = \"ca.crt\"\n";
    assert!(check(good).unwrap().status.success());
    let bad = check(&good.replace("tap:", "tup:")).unwrap();
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("tup:unlw@peer"));
}
