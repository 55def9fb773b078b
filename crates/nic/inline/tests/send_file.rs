//! Files over the kernel's TCP and the device, to curl, over a wire that loses frames: none of
//! their bytes passes through user space, and a change of one during the transfer ends its
//! connection.

#[path = "../examples/serve_files.rs"]
#[allow(dead_code)]
mod serve_files;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serve_files::Options;
use tokio::sync::Notify;
use unlade_nic_inline::device::Device;
use unlade_nic_inline::tls_proxy::config::Config;

const NAME: &str = "files.example";
/// Timeout of every step.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a file.
const FILE_BYTES: usize = 6_000_001;

/// Two network namespaces, and a server in one of them while it runs.
struct Net {
    dir: tempfile::TempDir,
    names: [String; 2],
    device: Device,
    over: Arc<Notify>,
    server: Option<JoinHandle<()>>,
}

impl Net {
    /// `None` if this machine lacks the privileges, with a message.
    fn new(impair: &str) -> Option<Net> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |end| format!("unlade-file-{}-{number}-{end}", std::process::id());
        let mut net = Net {
            dir: tempfile::tempdir().unwrap(),
            names: [name("h"), name("p")],
            device: Device::new().unwrap(),
            over: Arc::default(),
            server: None,
        };
        let made = net.names.iter().all(|name| ip(&["netns", "add", name]));
        let curl = Command::new("curl").arg("--version").output();
        if !made || curl.is_err() || File::open("/dev/net/tun").is_err() {
            println!("skipped: needs root, network namespaces, /dev/net/tun and curl");
            return None;
        }
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
        std::fs::write(net.path("a.crt"), made.cert.pem()).unwrap();
        std::fs::write(net.path("a.key"), made.signing_key.serialize_pem()).unwrap();
        net.start(impair);
        Some(net)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&mut self, impair: &str) {
        let options = Options {
            config: Config {
                addresses: vec!["10.9.0.1/24".to_owned()],
                wire: format!("tap:unlw@{}", self.names[1]),
                impair: impair.to_owned(),
                ..Config::default()
            },
            listen: ([10, 9, 0, 1], 443).into(),
            directory: self.dir.path().to_owned(),
            identity: (self.path("a.crt"), self.path("a.key")),
        };
        let namespace = File::open(format!("/run/netns/{}", self.names[0])).unwrap();
        let (device, over) = (self.device.clone(), self.over.clone());
        self.server = Some(thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network).unwrap();
            serve_files::serve(&options, &device, &over).unwrap();
        }));
        let peer = self.names[1].clone();
        until("the wire", || ip(&["-n", &peer, "addr", "add", "10.9.0.2/24", "dev", "unlw"]));
        until("the server", || self.get("nothing.there", &[]).stdout.starts_with(b"HTTP/1.1 404"));
    }

    /// The output of curl, or the response head if there is no body.
    fn get(&self, file: &str, more: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[1], "curl", "-sS", "--max-time", "60"]);
        command.arg("--cacert").arg(self.path("a.crt"));
        command.args(["--resolve", &format!("{NAME}:443:10.9.0.1")]).args(more);
        if more.is_empty() {
            command.arg("-i");
        }
        command.arg(format!("https://{NAME}/{file}")).output().unwrap()
    }

    fn until_counted(
        &self,
        what: &str,
        count: impl Fn(&unlade_nic_inline::device::DeviceCounters) -> u64,
        least: u64,
    ) {
        until(what, || count(&self.device.counters()) >= least);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.over.notify_one();
        if let Some(server) = self.server.take() {
            let ended = server.join();
            assert!(ended.is_ok() || thread::panicking(), "the server has panicked");
        }
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of a file, different at each place.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn curl_gets_a_file_over_a_wire_that_loses_frames() {
    let Some(net) = Net::new("loss=2%,reorder=2%,duplicate=1%,seed=5") else { return };
    let whole = content(FILE_BYTES);
    for bytes in [0, 1, 16_384, 16_385, FILE_BYTES] {
        std::fs::write(net.path("file"), &whole[..bytes]).unwrap();
        let wanted = &whole[..bytes];
        for version in ["1.2", "1.3"] {
            let output = net.get("file", &["--tls-max", version]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == wanted, "{bytes} bytes, TLS {version}");
        }
    }
    net.until_counted("sealed", |now| now.device.tx_tls_encrypted_bytes, 2 * FILE_BYTES as u64);
    let counted = net.device.counters();
    assert!(counted.device.tx_tls_ooo > 0 && counted.device.tx_replayed_bytes > 0);
    assert!(counted.impaired[0] > 0);
    assert_eq!(counted.engine.changed_file_frames, 0);
}

#[test]
fn a_file_that_changes_meanwhile_ends_the_connection_and_nothing_else_is_sealed() {
    let Some(net) = Net::new("loss=8%,seed=6") else { return };
    std::fs::write(net.path("file"), content(FILE_BYTES)).unwrap();
    let file = File::options().write(true).open(net.path("file")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let changing = thread::spawn(move || {
        let mut value = 0;
        while !seen.load(Ordering::Relaxed) {
            value += 1;
            file.write_all_at(&vec![value as u8; FILE_BYTES], 0).unwrap();
        }
    });
    let mut failed = 0;
    until("a frame of a changed file", || {
        let output = net.get("file", &["-o", "/dev/null"]);
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!said.contains("mac") && !said.contains("decrypt"), "{said}");
        failed += usize::from(!output.status.success());
        net.device.counters().engine.changed_file_frames > 0
    });
    over.store(true, Ordering::Relaxed);
    changing.join().unwrap();
    assert!(failed > 0);
    // The next connection is unaffected.
    let output = net.get("file", &["-o", net.path("got").to_str().unwrap()]);
    assert!(output.status.success());
    assert!(std::fs::read(net.path("got")).unwrap() == std::fs::read(net.path("file")).unwrap());
}

#[test]
fn a_file_that_becomes_shorter_ends_the_connection_behind_what_was_sent() {
    let Some(net) = Net::new("loss=1%,seed=7") else { return };
    // Far more than socket buffers hold.
    let bytes = 64 << 20;
    let whole = content(bytes);
    std::fs::write(net.path("file"), &whole).unwrap();
    let got = net.path("got").display().to_string();
    thread::scope(|scope| {
        let curl = scope.spawn(|| net.get("file", &["--limit-rate", "16M", "-o", &got]));
        net.until_counted("some of it", |now| now.device.tx_tls_encrypted_bytes, 1 << 20);
        let file = File::options().write(true).open(net.path("file")).unwrap();
        // Pages that the kernel has taken already are unaffected, or are found to be changed.
        file.set_len(bytes as u64 - 100_000).unwrap();
        let output = curl.join().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!said.contains("mac") && !said.contains("decrypt"), "{said}");
    });
    let got = std::fs::read(&got).unwrap();
    assert!(!got.is_empty() && got.len() < bytes && whole.starts_with(&got));
}
