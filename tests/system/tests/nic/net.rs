//! Two network namespaces with the device between them, and their programs.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use system_tests::{admin, unique_name, unlade};

use super::{NAME, PATIENCE};

/// A program, killed on drop.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two network namespaces, with the device between them while it runs. Removed on drop, also if the
/// test fails.
pub struct Net {
    pub dir: tempfile::TempDir,
    pub names: [String; 2],
    pub ends: Ends,
    pub wire: WireKind,
    pub program: Option<Program>,
}

/// Addresses of both ends, as networks and in the form for a port.
#[derive(Clone, Copy)]
pub struct Ends {
    pub networks: [&'static str; 2],
    hosts: [&'static str; 2],
}

pub const IPV4: Ends =
    Ends { networks: ["10.9.0.1/24", "10.9.0.2/24"], hosts: ["10.9.0.1", "10.9.0.2"] };
pub const IPV6: Ends =
    Ends { networks: ["fd09::1/64", "fd09::2/64"], hosts: ["[fd09::1]", "[fd09::2]"] };

/// Kind of the device's wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WireKind {
    /// A TAP device in the peer's namespace, which the program creates.
    Tap,
    /// An interface: one end of a veth pair; the peer has the other end.
    Interface,
}

/// The host, whose TCP uses the device, and the peer behind the wire.
#[derive(Clone, Copy)]
pub enum Side {
    Host,
    Peer,
}

impl Net {
    pub fn new() -> Net {
        Net::over(IPV4, WireKind::Tap)
    }

    pub fn over(ends: Ends, wire: WireKind) -> Net {
        let name = unique_name();
        let names = [format!("unlade-{name}-h"), format!("unlade-{name}-p")];
        let dir = tempfile::tempdir().unwrap();
        let net = Net { dir, names, ends, wire, program: None };
        for name in &net.names {
            run("ip", &["netns", "add", name]);
            run("ip", &["-n", name, "link", "set", "lo", "up"]);
        }
        if wire == WireKind::Interface {
            net.make_pair();
        }
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
        std::fs::write(net.path("a.crt"), made.cert.pem()).unwrap();
        std::fs::write(net.path("a.key"), made.signing_key.serialize_pem()).unwrap();
        net
    }

    /// Creates a veth pair with the kernel's default offloads.
    pub fn make_fresh_pair(&self) {
        let [host, peer] = &self.names;
        let ends = ["type", "veth", "peer", "name", "unlw", "netns", peer];
        run("ip", &[&["-n", host, "link", "add", "wire"][..], &ends].concat());
        run("ip", &["-n", host, "link", "set", "wire", "up"]);
        run("ip", &["-n", peer, "link", "set", "unlw", "up"]);
    }

    /// Creates a veth pair without offloads, so that all frames are complete.
    pub fn make_pair(&self) {
        let [host, peer] = &self.names;
        self.make_fresh_pair();
        for (name, link) in [(host, "wire"), (peer, "unlw")] {
            let set = ["netns", "exec", name, "ethtool", "-K", link];
            let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            run("ip", &[&set[..], &off].concat());
        }
        // The host answers ARP for the TAP device's address only on the TAP device.
        let quiet = ["sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"];
        run("ip", &[&["netns", "exec", host][..], &quiet].concat());
    }

    /// Returns an end's address with a port.
    pub fn at(&self, side: Side, port: u16) -> String {
        format!("{}:{port}", self.ends.hosts[side as usize])
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn command(&self, side: Side, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side as usize], program]);
        command
    }

    /// Starts the device and configures the peer's address.
    pub fn start(&mut self, arguments: &[&str]) {
        let mut command = self.command(Side::Host, &unlade().display().to_string());
        let wire = match self.wire {
            WireKind::Tap => format!("tap:unlw@{}", self.names[1]),
            WireKind::Interface => "packet:wire".to_owned(),
        };
        let [ours, theirs] = self.ends.networks;
        command.args(["nic", "run", "--address", ours, "--wire", &wire]);
        command.args(["--admin", "127.0.0.1:9902"]).args(arguments).env("UNLADE_LOG", "debug");
        let log = std::fs::File::create(self.path("log")).unwrap();
        self.program = Some(Program(command.stderr(log).stdin(Stdio::null()).spawn().unwrap()));
        let peer = self.names[1].clone();
        let mut address = vec!["-n", &peer, "addr", "add", theirs, "dev", "unlw"];
        if theirs.contains(':') {
            address.push("nodad");
        }
        self.until("the wire", || {
            Command::new("ip").args(&address).output().is_ok_and(|output| output.status.success())
        });
        self.until("the admin endpoint", || !self.metrics_text().is_empty());
    }

    pub fn terminate(&mut self, more: &[&str]) {
        let (certificate, key) = (self.text("a.crt"), self.text("a.key"));
        let at = self.at(Side::Host, 443);
        let listen = ["--listen", &at, "--backend", "127.0.0.1:8080"];
        let identity = ["--certificate", &certificate, "--key", &key];
        self.start(&[&listen[..], &identity, more].concat());
    }

    pub fn originate(&mut self, more: &[&str]) {
        let ca = self.text("a.crt");
        let at = self.at(Side::Peer, 443);
        let listen = ["--originate", "127.0.0.1:8443", "--connect", &at];
        self.start(&[&listen[..], &["--name", NAME, "--ca", &ca], more].concat());
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

    pub fn metrics_text(&self) -> String {
        let get = self.inside(Side::Host, || admin::get(9902, "/metrics").ok());
        get.join().unwrap().unwrap_or_default()
    }

    pub fn metric(&self, name: &str) -> u64 {
        self.value(&format!("{name}_total"))
    }

    pub fn gauge(&self, name: &str) -> u64 {
        self.value(name)
    }

    fn value(&self, name: &str) -> u64 {
        let text = self.metrics_text();
        let start = format!("unlade_nic_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).trim().parse().unwrap()
    }

    /// Returns the log of the program.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts a plaintext echo server.
    pub fn echo(&self) -> Server {
        self.serve(|mut tcp| {
            let mut buffer = vec![0; 65_536];
            while let Ok(got @ 1..) = tcp.read(&mut buffer) {
                if tcp.write_all(&buffer[..got]).is_err() {
                    return;
                }
            }
            let _ = tcp.shutdown(Shutdown::Write);
        })
    }

    pub fn serve(&self, serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Server {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let listening = self.inside(Side::Host, || TcpListener::bind("127.0.0.1:8080").unwrap());
        let listener = listening.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((tcp, _)) => {
                        tcp.set_nonblocking(false).unwrap();
                        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
                        let serve = serve.clone();
                        thread::spawn(move || serve(tcp));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Server(over)
    }
}

/// Handle of a server, which ends on drop.
pub struct Server(pub Arc<AtomicBool>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.program = None;
        if thread::panicking() {
            for name in ["log", "peer.log"] {
                let said = std::fs::read_to_string(self.path(name)).unwrap_or_default();
                eprintln!("== {name}\n{said}");
            }
        }
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
