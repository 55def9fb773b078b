//! A connection of `unlade-runtime` over a device: its records are taken back, it moves to another
//! socket, is offloaded again, and loses its device.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use system_tests::needs;
use tokio::net::TcpStream;
use unlade_metrics::OpenMetrics;
use unlade_net::FlowKey;
use unlade_net::state::{SocketOptions, TcpSnapshot};
use unlade_nic_inline::device::attached::Attached;
use unlade_nic_inline::device::thread::Running;
use unlade_nic_inline::tls_proxy::{Config, devices};
use unlade_runtime::handshake;
use unlade_runtime::listen;
use unlade_runtime::listen::ListenOptions;
use unlade_runtime::stream::{Parts, Stream, TakeBack};
use unlade_sys::repair::{self, Accept, Known};
use unlade_testkit::Random;
use unlade_tls::RecordLayer;
use unlade_tls::device::{Begin, Device};

use crate::net::{self, Checker, HOST, IMPAIRED, MARKER, Net, PATIENCE, Side};

/// Size of a message, which the server sends back, in bytes.
const MESSAGE_BYTES: usize = 200_000;
/// Number of bytes of a message that a waiting client sends first.
const FIRST_BYTES: usize = 20_000;
/// Interval of polling.
const PAUSE: Duration = Duration::from_millis(2);

fn message(round: usize) -> Vec<u8> {
    Random::new(40 + round as u64).bytes(MESSAGE_BYTES)
}

/// Attaches a device in this thread's namespace.
fn attach(wire: &str, impair: &str) -> (Arc<Attached>, Running) {
    let (addresses, wire) = (vec![format!("{HOST}/24")], wire.to_owned());
    let config = Config { addresses, wire, impair: impair.to_owned(), ..Config::default() };
    let (device, running) = devices::attach(&config).unwrap();
    (Arc::new(device), running)
}

fn counted(device: &dyn Device, name: &str) -> u64 {
    let mut text = OpenMetrics::new();
    device.add_metrics(&mut text);
    let text = text.finish();
    let start = format!("unlade_nic_{name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

/// Runs the server side `work` with a device in the host's namespace.
fn host<F: Future<Output = ()>>(
    net: &Net,
    wire: String,
    impair: &'static str,
    work: impl FnOnce(Arc<Attached>, Running, Arc<rustls::ServerConfig>, Sender<u16>) -> F
    + Send
    + 'static,
) -> (JoinHandle<()>, Receiver<u16>) {
    let (certificate, key) = (net.path("a.crt"), net.path("a.key"));
    let (ready, port) = channel();
    let thread = net.inside(Side::Host, move || {
        let (certificate, key) = (std::fs::read(certificate), std::fs::read(key));
        let pem = unlade_tls::config::identity_from_pem(&certificate.unwrap(), &key.unwrap());
        let (chain, key) = pem.unwrap();
        let tls = unlade_tls::server_config(chain, key, &[]).unwrap();
        let (device, running) = attach(&wire, impair);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(device, running, tls, ready));
    });
    (thread, port)
}

/// Accepts one connection and offloads its records to the device.
async fn accept(device: &dyn Device, tls: Arc<rustls::ServerConfig>, ready: Sender<u16>) -> Stream {
    let options =
        ListenOptions { device: Some(device.interface().to_owned()), ..ListenOptions::default() };
    let address: SocketAddr = format!("{HOST}:0").parse().unwrap();
    let listener = listen::tcp(address, &options).unwrap();
    ready.send(listener.local_addr().unwrap().port()).unwrap();
    let (tcp, _) = listener.accept().await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let established = handshake::accept(tcp, tls).await.unwrap();
    let bytes = (established.read_bytes, established.written_bytes);
    let mut stream = established.into_stream();
    stream.offload(device, Begin::Seen, bytes).await.unwrap();
    assert!(stream.is_offloaded());
    stream
}

/// Reads a message and sends it back.
async fn echo(stream: &mut Stream, round: usize) {
    while stream.input().len() < MESSAGE_BYTES {
        assert_ne!(stream.fill().await.unwrap(), 0);
    }
    let got = stream.input()[..MESSAGE_BYTES].to_vec();
    assert!(got == message(round), "round {round}");
    stream.consume(MESSAGE_BYTES);
    stream.write_all(&got, false).await.unwrap();
}

/// Takes the records back; the client may send meanwhile.
async fn take_back(stream: &mut Stream) {
    while stream.take_back().await.unwrap() != TakeBack::Done {
        tokio::time::sleep(PAUSE).await;
    }
    assert!(!stream.is_offloaded());
}

/// Runs the client, which sends a message in each round and reads it back. With `go`, it waits for
/// a signal before the first part of each message, and again before the rest.
fn client(net: &Net, port: u16, rounds: usize, go: Option<Receiver<()>>) -> JoinHandle<()> {
    let config = net.client_config();
    net.inside(Side::Peer, move || {
        let mut stream = net::connect(config, port);
        // Performs the handshake; the server sends first.
        stream.flush().unwrap();
        for round in 0..rounds {
            let sent = message(round);
            let (first, rest) = sent.split_at(FIRST_BYTES);
            for part in [first, rest] {
                if let Some(go) = &go {
                    go.recv_timeout(PATIENCE).unwrap();
                }
                stream.write_all(part).unwrap();
                stream.flush().unwrap();
            }
            let mut back = vec![0; MESSAGE_BYTES];
            stream.read_exact(&mut back).unwrap();
            assert!(back == sent, "round {round}");
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    })
}

#[test]
fn records_that_are_taken_back_go_on_in_software() {
    needs!("ip");
    let net = Net::new();
    let rounds = 6;
    let (server, port) =
        host(&net, net.tap_wire(), IMPAIRED, move |device, running, tls, ready| {
            async move {
                let _running = running;
                let mut stream = accept(&*device, tls, ready).await;
                for round in 0..rounds {
                    if round == rounds / 2 {
                        take_back(&mut stream).await;
                    }
                    echo(&mut stream, round).await;
                }
                assert_eq!(stream.fill().await.unwrap(), 0);
                let sealed = counted(&*device, "tx_tls_encrypted_bytes_total") as usize;
                // Only retransmitted records are encrypted again.
                assert!(sealed >= rounds / 2 * MESSAGE_BYTES, "{sealed}");
                assert!(counted(&*device, "records_offloaded_total") > 0);
                assert!(counted(&*device, "impaired_lost_frames_total") > 0);
                // The device keeps a flow until it has seen the last acknowledgement of its records.
                let deadline = Instant::now() + PATIENCE;
                while counted(&*device, "flows_offloaded") > 0 {
                    assert!(Instant::now() < deadline, "a flow is left");
                    tokio::time::sleep(PAUSE).await;
                }
                assert_eq!(counted(&*device, "tx_dropped_frames_total"), 0);
            }
        });
    net.address_peer();
    let client = client(&net, port.recv_timeout(PATIENCE).unwrap(), rounds, None);
    client.join().unwrap();
    server.join().unwrap();
}

/// Freezes a connection in software and takes its state, including unread input.
async fn snapshot(stream: &Stream, unread_bytes: usize) -> TcpSnapshot {
    let known = Known {
        flow: FlowKey::new(stream.peer(), stream.local()),
        socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
        mss_bytes: None,
        algorithm: "cubic".to_owned(),
    };
    loop {
        repair::freeze(stream.tcp()).unwrap();
        let taken = repair::snapshot(stream.tcp(), &known, Accept::PeerClosed).unwrap();
        if taken.receive_queue.len() >= unread_bytes && taken.send_queue.is_empty() {
            return taken;
        }
        repair::thaw(stream.tcp()).unwrap();
        tokio::time::sleep(PAUSE).await;
    }
}

/// Restores the connection in another socket and offloads its records with the snapshot's numbers.
async fn restore(device: &dyn Device, stream: Stream, taken: TcpSnapshot) -> Stream {
    let Parts { tcp, record, input, ended } = stream.into_parts();
    let secrets = record.unwrap().to_snapshot();
    drop(tcp);
    let restored = repair::restore(&taken, || ()).unwrap();
    let tcp = TcpStream::from_std(restored.activate().unwrap().into()).unwrap();
    let record = Some(Box::new(RecordLayer::from_snapshot(&secrets).unwrap()));
    let mut stream = Stream::from_parts(Parts { tcp, record, input, ended });
    let read_bytes = secrets.ciphertext.len();
    let begin = Begin::Restored {
        send_seq: taken.send_seq,
        receive_seq: taken.receive_seq - read_bytes as u32,
        delivered_bytes_max: (read_bytes + taken.receive_queue.len()) as u64
            + u64::from(taken.windows.rcv_wnd),
    };
    let bytes = (read_bytes as u64, taken.send_queue.len() as u64);
    stream.offload(device, begin, bytes).await.unwrap();
    assert!(stream.is_offloaded());
    stream
}

#[test]
fn a_restored_connection_is_offloaded_by_what_its_snapshot_says() {
    needs!("ip");
    let net = Net::new();
    let rounds = 6;
    let (go, gone) = channel();
    // The wire is lossless and the client waits, so no frame arrives while there is no socket.
    let (server, port) =
        host(&net, net.tap_wire(), "", move |device, running, tls, ready| async move {
            let _running = running;
            let mut stream = accept(&*device, tls, ready).await;
            for round in 0..rounds {
                let sealed = counted(&*device, "tx_tls_encrypted_bytes_total") as usize;
                if round > 0 {
                    take_back(&mut stream).await;
                }
                go.send(()).unwrap();
                if round > 0 {
                    let taken = snapshot(&stream, FIRST_BYTES).await;
                    stream = restore(&*device, stream, taken).await;
                }
                go.send(()).unwrap();
                echo(&mut stream, round).await;
                // The engine may still be encrypting.
                let (begin, name) = (Instant::now(), "tx_tls_encrypted_bytes_total");
                while (counted(&*device, name) as usize) < sealed + MESSAGE_BYTES {
                    assert!(
                        begin.elapsed() < PATIENCE,
                        "round {round} was not sealed by the device"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
            assert_eq!(stream.fill().await.unwrap(), 0);
            assert_eq!(counted(&*device, "tx_dropped_frames_total"), 0);
        });
    net.address_peer();
    let client = client(&net, port.recv_timeout(PATIENCE).unwrap(), rounds, Some(gone));
    client.join().unwrap();
    server.join().unwrap();
}

#[test]
fn without_its_device_nothing_of_a_connection_leaves() {
    needs!("ip", "ethtool", "sysctl");
    let net = Net::new();
    let wire = net.veth_wire();
    net.address_peer();
    let checker = Checker::start(&net);
    let namespace = net.names[0].clone();
    let (server, port) = host(&net, wire, "", move |device, running, tls, ready| async move {
        let mut stream = accept(&*device, tls, ready).await;
        stream.set_stall_limit(Duration::from_millis(300));
        let marked = MARKER.repeat(MESSAGE_BYTES / MARKER.len());
        for _ in 0..10 {
            stream.write_all(&marked, true).await.unwrap();
        }
        // The client has received them.
        assert_ne!(stream.fill().await.unwrap(), 0);
        // Another route to the peer, which the kernel could use.
        net::run("ip", &["-n", &namespace, "addr", "add", "10.9.0.3/24", "dev", "w0"]);
        drop(running);
        let mut written = Ok(());
        for _ in 0..1000 {
            written = stream.write_all(&marked, true).await;
            if written.is_err() {
                break;
            }
        }
        assert!(written.is_err(), "it went on");
        // The device is gone, so taking the records back fails.
        assert!(stream.take_back().await.is_err() || stream.is_offloaded());
        // The other route works.
        let other = std::net::TcpStream::connect("10.9.0.2:9").unwrap_err();
        assert_eq!(other.kind(), std::io::ErrorKind::ConnectionRefused);
    });
    let (config, port) = (net.client_config(), port.recv_timeout(PATIENCE).unwrap());
    let client = net.inside(Side::Peer, move || {
        let mut stream = net::connect(config, port);
        stream.flush().unwrap();
        let mut got = vec![0; 8 * MESSAGE_BYTES];
        stream.read_exact(&mut got).unwrap();
        stream.write_all(b"?").unwrap();
        stream.flush().unwrap();
        assert!(got.chunks(MARKER.len()).all(|piece| piece == MARKER));
        stream
    });
    server.join().unwrap();
    drop(client.join().unwrap());
    let (found, searched) = checker.finish();
    assert_eq!(found, 0);
    // Proves that the wire was searched.
    assert!(searched as usize > MESSAGE_BYTES, "{searched}");
}
