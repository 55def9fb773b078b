//! A daemon follows the weight of its client: a changed weight of its cgroup, and a move to another
//! one. In a tree of files as the kernel has them, and in the kernel's own where it can be written.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unlade_copy::{Copier, Remote};
use unlade_copy_service::daemon::{Daemon, DaemonConfig, KernelFiles};

/// Longest wait for the daemon.
const PATIENCE: Duration = Duration::from_secs(120);
const BYTES: usize = 64 << 10;

/// A client in this process.
struct Client {
    copier: Copier,
    buffers: [unlade_copy::SharedMemory; 2],
}

/// A daemon on a thread of this process, with its clients.
struct Served {
    clients: Vec<Client>,
    admin: SocketAddr,
    stop: Box<dyn Fn()>,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start(files: KernelFiles, clients: usize) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let config = DaemonConfig {
            socket: directory.path().join("copyd.sock"),
            admin: Some("127.0.0.1:0".parse().unwrap()),
            ..DaemonConfig::default()
        };
        let daemon = Daemon::bind_with(config.clone(), files).unwrap();
        let (control, admin) = (daemon.control(), daemon.admin().unwrap());
        let socket = config.socket.clone();
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        let connect = |_| {
            let remote = Remote::connect(&socket).unwrap();
            let buffers = [remote.memory(BYTES).unwrap(), remote.memory(BYTES).unwrap()];
            Client { copier: Copier::new(remote), buffers }
        };
        let clients = (0..clients).map(connect).collect();
        let stop = Box::new(move || control.drain());
        Served { clients, admin, stop, thread: Some(thread), _directory: directory }
    }

    /// Makes a queued copy of each client: the daemon looks at the weights of clients that copy.
    fn copy(&mut self) {
        for Client { copier, buffers: [source, destination] } in &mut self.clients {
            copier.scope(|scope| {
                scope.queue(source, destination).sync(0..BYTES).unwrap();
            });
        }
    }

    /// Number of changes of weights that the daemon has noticed.
    fn changes(&self) -> u64 {
        self.metric("unlade_copyd_weight_changes_total ")
    }

    fn groups(&self) -> u64 {
        self.metric("unlade_copyd_groups ")
    }

    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|it| it.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
    }

    /// Copies until the daemon has noticed `count` changes, and no more.
    fn copy_until(&mut self, count: u64) {
        let begin = Instant::now();
        while self.changes() < count {
            assert!(begin.elapsed() < PATIENCE, "{} of {count} changes", self.changes());
            self.copy();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.changes(), count);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Never half written, as in the kernel.
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::rename(&fresh, path).unwrap();
}

#[test]
fn a_changed_weight_and_a_move_are_followed() {
    let tree = tempfile::tempdir().unwrap();
    let files =
        KernelFiles { processes: tree.path().join("proc"), cgroups: tree.path().join("cgroup") };
    let weight = |cgroup: &str, text: &str| {
        write(&files.cgroups.join(cgroup).join("cpu.weight"), text);
    };
    let place = |cgroup: &str| {
        let process = files.processes.join(std::process::id().to_string());
        write(&process.join("cgroup"), &format!("0::/{cgroup}\n"));
    };
    weight("tenant/a", "100\n");
    weight("tenant/b", "300\n");
    place("tenant/a");
    let mut served = Served::start(files.clone(), 1);
    served.copy();
    assert_eq!(served.changes(), 0);
    weight("tenant/a", "50\n");
    served.copy_until(1);
    place("tenant/b");
    served.copy_until(2);
    // A cgroup that is gone has the weight of its parent, then the default, which is no change.
    weight("tenant", "100\n");
    fs::remove_dir_all(files.cgroups.join("tenant/b")).unwrap();
    served.copy_until(3);
    fs::remove_dir_all(files.cgroups.join("tenant")).unwrap();
    weight("tenant/a", "7\n");
    place("tenant/a");
    served.copy_until(4);
}

#[test]
fn clients_of_a_cgroup_are_a_group() {
    let tree = tempfile::tempdir().unwrap();
    let files =
        KernelFiles { processes: tree.path().join("proc"), cgroups: tree.path().join("cgroup") };
    let process = files.processes.join(std::process::id().to_string()).join("cgroup");
    write(&files.cgroups.join("tenant/a/cpu.weight"), "100\n");
    write(&process, "0::/tenant/a/below\n");
    let mut served = Served::start(files.clone(), 3);
    assert_eq!(served.groups(), 1);
    // Without a cgroup with a weight each is a group of its own.
    write(&process, "0::/tenant/b\n");
    served.copy_until(3);
    assert_eq!(served.groups(), 3);
    write(&process, "0::/tenant/a\n");
    served.copy_until(6);
    assert_eq!(served.groups(), 1);
    served.clients.clear();
    let begin = Instant::now();
    while served.groups() > 0 {
        assert!(begin.elapsed() < PATIENCE, "{} groups", served.groups());
        std::thread::yield_now();
    }
}

/// A cgroup of the kernel, which this process leaves and removes at the end.
struct RealCgroup {
    path: PathBuf,
    before: PathBuf,
}

impl RealCgroup {
    /// Creates one below that of this process; the reason if there is none to write.
    fn create() -> Result<(RealCgroup, PathBuf), String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let root = Path::new("/sys/fs/cgroup");
        let mut reasons = vec!["no hierarchy with the cpu controller is mounted".to_owned()];
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (directory, file) = match controllers {
                "" => (root.to_owned(), "cpu.weight"),
                _ if controllers.split(',').any(|it| it == "cpu") => {
                    (root.join(controllers), "cpu.shares")
                }
                _ => continue,
            };
            let before = directory.join(path.trim_start_matches('/'));
            let path = before.join(format!("unlade-weights-{}", std::process::id()));
            if let Err(error) = fs::create_dir(&path) {
                reasons.push(format!("{}: {error}", path.display()));
                continue;
            }
            let cgroup = RealCgroup { path, before };
            let value = cgroup.path.join(file);
            match fs::write(cgroup.path.join("cgroup.procs"), std::process::id().to_string()) {
                Ok(()) if value.exists() => return Ok((cgroup, value)),
                Ok(()) => reasons.push(format!("{}: not there", value.display())),
                Err(error) => reasons.push(format!("{}: {error}", cgroup.path.display())),
            }
        }
        Err(reasons.pop().unwrap_or_default())
    }
}

impl Drop for RealCgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn the_kernels_own_cgroups_are_followed() {
    let (cgroup, value) = match RealCgroup::create() {
        Ok(created) => created,
        Err(why) => {
            println!("skipped: no cgroup of this machine can be written: {why}");
            return;
        }
    };
    let mut served = Served::start(KernelFiles::default(), 1);
    served.copy();
    assert_eq!(served.changes(), 0);
    fs::write(&value, "3000").unwrap();
    served.copy_until(1);
    drop(cgroup);
    // Its parent has another weight, or the default.
    served.copy_until(2);
}
