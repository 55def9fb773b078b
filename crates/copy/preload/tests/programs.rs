//! Programs with the library and without it: the same results.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

const OPTIONS: &str = "UNLADE_PRELOAD_OPTIONS";
const ALWAYS: &str = "reads=always:loop=always:from=65536";

/// The library of this build.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let deps = program.parent().unwrap();
    let mut candidates = [deps, deps.parent().unwrap()].map(|at| at.join("libunlade_preload.so"));
    candidates.sort_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    let found = candidates.into_iter().rev().find(|path| path.exists());
    found.expect("cargo builds the library before its tests")
}

/// The command, with the library and the options.
fn with<'a>(command: &'a mut Command, options: &str) -> &'a mut Command {
    command.env("LD_PRELOAD", library()).env(OPTIONS, options)
}

/// A command that is ended if it hangs.
fn limited(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120"]).arg(program.as_ref());
    command
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

fn compile(name: &str, flags: &[&str]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    let program = directory.path().join("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-fno-builtin", "-pthread"]).args(flags);
    run(compiler.arg("-o").arg(&program).arg(source));
    (directory, program)
}

/// A seed of this run; printed, and repeated with UNLADE_SEED.
fn seed() -> String {
    let seed = std::env::var("UNLADE_SEED").unwrap_or_else(|_| {
        (std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos() | 1).to_string()
    });
    eprintln!("UNLADE_SEED={seed}");
    seed
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("which").arg(program).output().is_ok_and(|out| out.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Value of a counter in the statistics that a program has written to standard error.
fn counter(output: &Output, name: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("unlade_preload_{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
}

#[test]
fn random_copies_are_the_same() {
    let seed = seed();
    for flags in [&[] as &[&str], &["-fbuiltin", "-D_FORTIFY_SOURCE=2"]] {
        let (_directory, program) = compile("random.c", flags);
        let plain = run(limited(&program).arg(&seed)).stdout;
        let mut command = limited(&program);
        let options = format!("{ALWAYS}:statistics=stderr");
        let always = run(with(command.arg(&seed), &options));
        assert_eq!(always.stdout, plain);
        assert!(counter(&always, "copies_rep") > 20);
        let auto = run(with(limited(&program).arg(&seed), "statistics=stderr"));
        assert_eq!(auto.stdout, plain);
        assert!(counter(&auto, "copies_rep") > 0, "samples of the contest");
        let off = run(with(limited(&program).arg(&seed), "enabled=0:statistics=stderr"));
        assert_eq!(counter(&off, "copies_rep"), 0);
        assert_eq!(off.stdout, plain);
    }
}

#[test]
fn messages_are_the_same_and_reads_are_shortened_where_allowed() {
    let (_directory, program) = compile("messages.c", &[]);
    let first: u64 = seed().parse().unwrap();
    for seed in [first, first + 1].map(|seed| seed.to_string()) {
        for mode in ["level", "edge", "hang-up", "low-water", "packets"] {
            let plain = run(limited(&program).args([&seed, mode])).stdout;
            let mut command = limited(&program);
            let options = format!("{ALWAYS}:statistics=stderr");
            let output = run(with(command.args([&seed, mode]), &options));
            assert_eq!(output.stdout, plain, "{mode}");
            let shortened = counter(&output, "reads_shortened");
            match mode {
                "hang-up" => assert_eq!(shortened, 0),
                "edge" => assert_eq!((shortened, counter(&output, "edge_triggered")), (0, 1)),
                "low-water" => assert_eq!((shortened, counter(&output, "low_water_marks")), (0, 1)),
                _ => assert!(shortened > 20 && counter(&output, "placed_bytes") > 1 << 20),
            }
        }
    }
}

#[test]
fn a_packet_is_never_cut() {
    let (_directory, program) = compile("messages.c", &[]);
    let mut cut = 0;
    // Only a last message that is long leaves the descriptor in the state of interest.
    for seed in 1..6 {
        let mut command = limited(&program);
        let options = format!("{ALWAYS}:statistics=stderr");
        let output = run(with(command.args([&seed.to_string(), "packets"]), &options));
        cut += counter(&output, "not_stream");
    }
    assert!(cut > 0, "no read of a packet met a descriptor with long messages");
}

#[test]
fn wrong_options_are_reported_and_change_nothing() {
    let output = run(with(Command::new("cat").arg("/dev/null"), "reads=perhaps:loop=never"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("`reads=perhaps` is ignored"), "{text}");
}

#[test]
fn statistics_go_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let options = format!("statistics={}", directory.path().join("counts").display());
    let child = with(&mut Command::new("true"), &options).spawn().unwrap();
    let path = directory.path().join(format!("counts.{}", child.id()));
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(fs::read_to_string(path).unwrap().contains("unlade_preload_shifts 0\n"));
}

/// A server that is killed at the end.
struct Server(Child);
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(port: u16) -> TcpStream {
    for _ in 0..200 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            return stream;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no server at port {port}");
}

/// Sends a command; returns a status, or the bytes of a bulk string.
fn redis(stream: &mut BufReader<TcpStream>, words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend(format!("${}\r\n", word.len()).bytes());
        command.extend_from_slice(word);
        command.extend(b"\r\n");
    }
    let mut writer = stream.get_ref().try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&command).unwrap());
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    sender.join().unwrap();
    let Some(length) = line.strip_prefix('$') else { return line.into_bytes() };
    let mut bytes = vec![0; length.trim().parse::<usize>().unwrap() + 2];
    stream.read_exact(&mut bytes).unwrap();
    bytes.truncate(bytes.len() - 2);
    bytes
}

#[test]
fn redis_answers_the_same() {
    if !is_installed("redis-server") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for options in [ALWAYS, ""] {
        let port = free_port();
        let counts = directory.path().join("counts");
        let mut command = Command::new("redis-server");
        command.args(["--save", "", "--port", &port.to_string(), "--loglevel", "warning"]);
        command.current_dir(directory.path()).stdout(Stdio::null());
        let options = format!("{options}:statistics={}", counts.display());
        let mut server = Server(with(&mut command, &options).spawn().unwrap());
        let mut stream = BufReader::new(connect(port));
        let mut bytes: Vec<u8> =
            (0..(1_u32 << 20) + 2).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        for length in [1, 100, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20] {
            for change in [0, 1, 2, 3] {
                let length = length + change - usize::from(change == 3 && length > 3) * 4;
                bytes.rotate_left(1 + change);
                let value = &bytes[..length.min(bytes.len())];
                assert_eq!(redis(&mut stream, &[b"SET", b"key", value]), b"+OK\r\n");
                assert!(redis(&mut stream, &[b"GET", b"key"]) == value, "{length}");
            }
            assert_eq!(redis(&mut stream, &[b"PING"]), b"+PONG\r\n");
        }
        drop(stream);
        let id = server.0.id();
        run(Command::new("kill").arg(id.to_string()));
        assert!(server.0.wait().unwrap().success());
        let text = fs::read_to_string(format!("{}.{id}", counts.display())).unwrap();
        assert!(!text.contains("unlade_preload_shifts 0\n"), "{text}");
        let shortened = !text.contains("unlade_preload_reads_shortened 0\n");
        assert!(shortened || !options.starts_with(ALWAYS), "{text}");
    }
}

#[test]
fn tar_and_sqlite_give_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    let bytes: Vec<u8> = (0..3_000_000_u64).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    if is_installed("tar") {
        let tar = || {
            let mut command = limited("tar");
            command.args(["-c", "--mtime=@0", "-C"]).arg(directory.path()).arg("file");
            command
        };
        assert_eq!(run(with(&mut tar(), ALWAYS)).stdout, run(&mut tar()).stdout);
    }
    if is_installed("sqlite3") {
        let script = "create table t(a integer primary key, b blob);
            with recursive n(i) as (select 1 union all select i + 1 from n where i < 60)
            insert into t select i, zeroblob(i * 30000) || hex(i * i) from n;
            select sum(length(b)), hex(max(substr(b, -8))) from t;
            update t set b = b || b where a % 3 = 0; delete from t where a % 5 = 0; vacuum;
            select count(*), sum(length(b)) from t;";
        let sqlite = || {
            let mut command = limited("sqlite3");
            command.args([":memory:", script]);
            command
        };
        let plain = run(&mut sqlite()).stdout;
        assert!(!plain.is_empty());
        assert_eq!(run(with(&mut sqlite(), ALWAYS)).stdout, plain);
    }
}

#[test]
fn nginx_serves_the_same_bytes() {
    if !is_installed("nginx") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let bytes: Vec<u8> = (0..2_000_000_u64).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
    fs::write(root.join("file"), &bytes).unwrap();
    let port = free_port();
    let configuration = format!(
        "daemon off; master_process off; pid {0}/pid; error_log {0}/error;
        events {{}} http {{ access_log off; sendfile off; output_buffers 1 1m;
        server {{ listen 127.0.0.1:{port}; root {0}; }} }}",
        root.display()
    );
    fs::write(root.join("nginx.conf"), configuration).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(root.join("nginx.conf")).stderr(Stdio::null());
    let _server = Server(with(&mut command, ALWAYS).spawn().unwrap());
    let mut stream = connect(port);
    stream.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(answer.ends_with(&bytes));
}
