//! `unlade copyd` and its clients in separate processes, killed during copies.
//!
//! `UNLADE_KILL_ROUNDS` is the number of kills; `UNLADE_SEED` repeats a failed seed.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use system_tests::variables::env_number;
use system_tests::{admin, said, unlade};
use unlade_copy::{Copier, Remote, SharedMemory};
use unlade_testkit::{Random, seed};

/// Size of each shared region, in bytes.
const REGION_BYTES: usize = 1 << 20;
/// Number of copies between two comparisons of all bytes.
const REPEATS: usize = 16;
/// Variable with a socket's path, which turns this test binary into an endless client.
const CLIENT: &str = "UNLADE_COPYD_CLIENT";

/// A daemon, killed on drop.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(directory: &Path, extra: &str) -> Daemon {
        let (socket, config) = (directory.join("copyd.sock"), directory.join("copyd.toml"));
        let text = format!("socket = \"copyd.sock\"\n{extra}\n[log]\nlevel = \"warn\"\n");
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(unlade());
        command.arg("copyd").arg("--config").arg(config);
        let child = command.stdin(Stdio::null()).spawn().expect("the daemon starts");
        let daemon = Daemon { child, socket };
        eventually("the daemon listens", || Remote::connect(&daemon.socket).is_ok());
        daemon
    }

    fn connect(&self) -> Remote {
        Remote::connect(&self.socket).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// Returns a port for the admin endpoint that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Returns a value of `/metrics`.
fn figure(port: u16, name: &str) -> u64 {
    let text = admin::get(port, "/metrics").unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{name} in {text}")).trim().parse().unwrap()
}

/// Copies the first range to the second, and the second to the third if both have the same length.
fn copy_in_pieces(
    copier: &Copier,
    first: &[u8],
    second: &mut [u8],
    third: &mut [u8],
    piece: usize,
) {
    copier.scope(|scope| {
        let parts = first.chunks(piece).zip(second.chunks_mut(piece));
        let copies: Vec<_> = parts.map(|(from, to)| scope.queue(from, to)).collect();
        let parts = copies.iter().zip(third.chunks_mut(piece));
        let ends: Vec<_> = parts.map(|(from, to)| scope.copy_on(from, to)).collect();
        for copy in [copies.last(), ends.last()].into_iter().flatten() {
            assert_eq!(copy.sync(0..1).unwrap()[0], first[first.len() - copy.len()]);
        }
    });
}

/// Copies, `rounds` times, and compares with what `memcpy` would have done.
fn copy_and_verify(
    copier: &Copier,
    regions: &mut [SharedMemory; 3],
    random: &mut Random,
    rounds: u32,
) {
    for _ in 0..rounds {
        let [first, second, third] = regions;
        let (len, fill) = (1 + random.below(REGION_BYTES), random.next() as u8);
        let start = random.below(REGION_BYTES - len + 1);
        let range = start..start + len;
        first[range.clone()].iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 ^ fill);
        let (mut middle, mut last) = (second.to_vec(), third.to_vec());
        middle[range.clone()].copy_from_slice(&first[range.clone()]);
        let is_chain = random.percent(70);
        if is_chain {
            last[range.clone()].copy_from_slice(&first[range.clone()]);
        }
        // Repeated, so that copying takes most of the time.
        for _ in 0..REPEATS {
            let third = if is_chain { &mut third[range.clone()] } else { &mut [] };
            let piece = 1 + random.below(len);
            copy_in_pieces(copier, &first[range.clone()], &mut second[range.clone()], third, piece);
        }
        assert!(second[..] == middle[..] && third[..] == last[..], "{range:?}");
    }
}

fn client(remote: Remote) -> (Copier, [SharedMemory; 3]) {
    let regions = [0; 3].map(|_| remote.memory(REGION_BYTES).unwrap());
    (Copier::new(remote), regions)
}

#[test]
fn a_daemon_that_is_killed_costs_no_byte() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut taken_back = 0;
    for round in 0..env_number("UNLADE_KILL_ROUNDS", 50) {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(directory.path(), "polling = \"always\"");
        let clients: Vec<_> = (0..2).map(|_| client(daemon.connect())).collect();
        let delay = Duration::from_micros(random.below(20_000) as u64);
        let numbers = [random.next(), random.next()];
        taken_back += std::thread::scope(|scope| {
            let threads =
                clients.into_iter().zip(numbers).map(|((copier, mut regions), number)| {
                    scope.spawn(move || {
                        let mut random = Random::new(number);
                        while copier.remote().unwrap().is_served() {
                            copy_and_verify(&copier, &mut regions, &mut random, 4);
                        }
                        // Also without the daemon.
                        copy_and_verify(&copier, &mut regions, &mut random, 4);
                        copier.remote().unwrap().taken_back()
                    })
                });
            let threads: Vec<_> = threads.collect();
            // A random moment of the copies.
            std::thread::sleep(delay);
            daemon.signal("KILL");
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        drop(daemon);
        println!("round {round}: {taken_back} segments taken back so far");
    }
}

/// The client process that the next test kills; not a test of its own.
#[test]
fn client_process() {
    let Some(socket) = std::env::var_os(CLIENT) else { return };
    let (copier, mut regions) = client(Remote::connect(Path::new(&socket)).unwrap());
    let mut random = Random::new(std::process::id().into());
    // If the test process dies, the daemon dies with it, and the client ends.
    while copier.remote().unwrap().is_served() {
        copy_and_verify(&copier, &mut regions, &mut random, 1);
    }
}

#[test]
fn clients_that_are_killed_leave_nothing() {
    let seed = seed();
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = Daemon::start(directory.path(), &format!("admin = \"127.0.0.1:{port}\""));
    let (copier, mut regions) = client(daemon.connect());
    for _ in 0..env_number("UNLADE_KILL_ROUNDS", 50) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "client_process", "--nocapture"]).stdout(Stdio::null());
        let mut child = command.env(CLIENT, &daemon.socket).process_group(0).spawn().unwrap();
        eventually("the client is served", || figure(port, "unlade_copyd_clients") == 2);
        copy_and_verify(&copier, &mut regions, &mut random, 2);
        std::thread::sleep(Duration::from_micros(random.below(10_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        copy_and_verify(&copier, &mut regions, &mut random, 2);
        eventually("the client is gone", || figure(port, "unlade_copyd_clients") == 1);
        let bytes = figure(port, "unlade_copyd_region_bytes");
        assert_eq!(bytes, 3 * REGION_BYTES as u64);
    }
    assert!(copier.remote().unwrap().is_served());
    let maps = PathBuf::from(format!("/proc/{}/maps", daemon.child.id()));
    eventually("all but the regions of the living are unmapped", || {
        let maps = std::fs::read_to_string(&maps).unwrap();
        maps.lines().filter(|line| line.contains("/memfd:unlade-shared")).count() == 3
    });
}

#[test]
fn a_daemon_that_is_told_to_ends_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(directory.path(), "");
    let (copier, mut regions) = client(daemon.connect());
    let mut random = Random::new(1);
    copy_and_verify(&copier, &mut regions, &mut random, 20);
    daemon.signal("TERM");
    let mut was_served = true;
    eventually("the daemon ends", || {
        copy_and_verify(&copier, &mut regions, &mut random, 1);
        was_served = was_served && copier.remote().unwrap().is_served();
        !was_served
    });
    assert!(daemon.child.wait().unwrap().success());
    assert!(!daemon.socket.exists());
    copy_and_verify(&copier, &mut regions, &mut random, 5);
    assert_eq!(copier.remote().unwrap().taken_back(), 0, "nothing was claimed at its end");
}

#[test]
fn a_reload_changes_limits_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(directory.path(), "");
    let config = directory.path().join("copyd.toml");
    std::fs::write(&config, "socket = \"copyd.sock\"\nregions_max = 7\n[log]\nlevel = \"warn\"\n")
        .unwrap();
    daemon.signal("HUP");
    eventually("the limit is the new one", || daemon.connect().limits().regions_max == 7);
    std::fs::write(&config, "threads_max = 0\n").unwrap();
    daemon.signal("HUP");
    assert!(daemon.connect().is_served());
    assert!(daemon.child.try_wait().unwrap().is_none());
}

fn check(text: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("copyd.toml");
    std::fs::write(&config, text).unwrap();
    Command::new(unlade()).args(["copyd", "--check", "--config"]).arg(config).output().unwrap()
}

#[test]
fn a_configuration_is_checked() {
    let good = check("threads_max = 2\n[weights]\nuid.1000 = 300\n");
    assert!(good.status.success(), "{}", said(&good));
    for (text, named) in [("thread_max = 2", "threads_max"), ("clients_max = 0", "clients_max")] {
        let bad = check(text);
        assert_eq!(bad.status.code(), Some(1));
        assert!(said(&bad).contains(named), "{}", said(&bad));
    }
}
