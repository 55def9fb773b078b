//! Two network namespaces with a wire between them, and their programs.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use system_tests::unique_name;

/// Name of the server.
pub const NAME: &str = "peer.example";
/// Address of the server, on the TAP device.
pub const HOST: &str = "10.9.0.1";
/// Impairment of the wire, in both directions.
pub const IMPAIRED: &str = "loss=2%,reorder=2%,duplicate=1%,seed=11";
/// Time limit of an operation.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Plaintext marker, which must not appear on the wire.
pub const MARKER: &[u8; 16] = b"plain-text-here:";

/// The host, whose TCP uses the device, and the peer behind the wire.
#[derive(Clone, Copy)]
pub enum Side {
    Host,
    Peer,
}

/// A program, killed on drop.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The namespaces, removed on drop, also if the test fails.
pub struct Net {
    dir: tempfile::TempDir,
    pub names: [String; 2],
    pub program: Option<Program>,
}

impl Net {
    pub fn new() -> Net {
        let name = unique_name();
        let names = [format!("unlade-{name}-h"), format!("unlade-{name}-p")];
        let net = Net { dir: tempfile::tempdir().unwrap(), names, program: None };
        for name in &net.names {
            run("ip", &["netns", "add", name]);
            run("ip", &["-n", name, "link", "set", "lo", "up"]);
        }
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
        std::fs::write(net.path("a.crt"), made.cert.pem()).unwrap();
        std::fs::write(net.path("a.key"), made.signing_key.serialize_pem()).unwrap();
        net
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the wire of a TAP device in the peer's namespace, which the engine creates.
    pub fn tap_wire(&self) -> String {
        format!("tap:unlw@{}", self.names[1])
    }

    /// Creates a veth pair between both namespaces; the engine uses the host's end, `w0`.
    pub fn veth_wire(&self) -> String {
        let [host, peer] = &self.names;
        let pair = ["link", "add", "w0", "netns", host, "type", "veth", "peer", "unlw", "netns"];
        run("ip", &[&pair[..], &[peer]].concat());
        run("ip", &["-n", host, "link", "set", "w0", "up"]);
        // Frames as on a wire: with complete checksums and within the MTU.
        let plain =
            ["exec", peer, "ethtool", "-K", "unlw", "tx", "off", "tso", "off", "gso", "off"];
        run("ip", &[&["netns"][..], &plain].concat());
        // w0 must not answer ARP requests for the TAP device's address.
        let quiet = "net.ipv4.conf.w0.arp_ignore=1";
        run("ip", &["netns", "exec", host, "sysctl", "-q", "-w", quiet]);
        "packet:w0".to_owned()
    }

    /// Configures the peer's address, once the wire exists.
    pub fn address_peer(&self) {
        let address = ["-n", &self.names[1], "addr", "add", "10.9.0.2/24", "dev", "unlw"];
        self.until("the wire", || {
            Command::new("ip").args(address).output().is_ok_and(|output| output.status.success())
        });
        run("ip", &["-n", &self.names[1], "link", "set", "unlw", "up"]);
    }

    pub fn command(&self, side: Side, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side as usize], program]);
        command
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "{what} is not there: {log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `work` on a thread in a namespace.
    pub fn inside<T: Send + 'static>(
        &self,
        side: Side,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.names[side as usize]);
        thread::spawn(move || {
            let file = std::fs::File::open(path).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        })
    }

    /// Returns a client configuration that trusts the server.
    pub fn client_config(&self) -> Arc<rustls::ClientConfig> {
        use rustls::pki_types::pem::PemObject;
        let pem = std::fs::read(self.path("a.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.program = None;
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// Connects to the server from the peer's namespace.
pub fn connect(
    config: Arc<rustls::ClientConfig>,
    port: u16,
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let connection = rustls::ClientConnection::new(config, NAME.try_into().unwrap()).unwrap();
    let tcp = TcpStream::connect((HOST, port)).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    rustls::StreamOwned::new(connection, tcp)
}

/// Searches the frames that the peer receives for [`MARKER`], until finished.
pub struct Checker {
    over: Arc<AtomicBool>,
    seen_bytes: Arc<AtomicU64>,
    thread: JoinHandle<usize>,
}

impl Checker {
    pub fn start(net: &Net) -> Checker {
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
                match port.receive(&mut frame) {
                    Ok((_, got)) => {
                        seen.fetch_add(got as u64, Ordering::Relaxed);
                        let hit = |at: &[u8]| at == MARKER;
                        found += usize::from(frame[..got].windows(MARKER.len()).any(hit));
                    }
                    Err(_) if ended.load(Ordering::Relaxed) => return found,
                    Err(_) => thread::sleep(Duration::from_micros(200)),
                }
            }
        });
        started.recv_timeout(PATIENCE).unwrap();
        Checker { over, seen_bytes, thread }
    }

    /// Ends the search. Returns the number of frames with plaintext and of searched bytes.
    pub fn finish(self) -> (usize, u64) {
        self.over.store(true, Ordering::Relaxed);
        (self.thread.join().unwrap(), self.seen_bytes.load(Ordering::Relaxed))
    }
}
