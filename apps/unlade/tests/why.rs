//! `unlade copyd why`: a Rust program with sites of several kinds, and processes that cannot be
//! explained.

use std::collections::VecDeque;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use serde_json::Value;
use unlade_copy::explain::{Board, MEMFD_NAME};
use unlade_copy::{Config, Copier, Service};

const LONG: usize = 1 << 20;
const MEDIUM: usize = 8 << 10;
const SHORT: usize = 1000;
/// Maximum number of copies until a site queues.
const COPIES_MAX: usize = 4000;
/// Number of queued copies in a row that no trial has.
const IN_A_ROW: usize = 64;
/// Another user.
const NOBODY: u32 = 65_534;

/// The clients of a process share its table and its ring of changes.
static TABLE: Mutex<()> = Mutex::new(());

fn unlade(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unlade")).args(args).output().unwrap()
}

fn why(pid: u32, args: &[&str]) -> Output {
    unlade(&[&["copyd", "why", &pid.to_string()], args].concat())
}

/// Standard output of a successful run.
fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Message of a run that failed, without a panic.
fn error(output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{error}");
    assert!(error.starts_with("unlade: ") && !error.contains("panicked"), "{error}");
    error
}

/// Lines of the three sites in this file.
struct Lines {
    long: u32,
    medium: u32,
    short: u32,
}

/// Copies until a site with a window queues. The window is there, as far as this process can see to
/// it: it ends when the bytes are copied.
fn copy(copier: &Copier) -> Lines {
    let source = vec![7; LONG];
    let mut destination = vec![0; LONG];
    let mut lines = Lines { long: 0, medium: 0, short: 0 };
    for _ in 0..300 {
        copier.scope(|scope| {
            let (first, rest) = destination.split_at_mut(SHORT);
            lines.short = line!() + 1;
            scope.copy(&source[..SHORT], first).sync(0..SHORT).unwrap();
            lines.medium = line!() + 1;
            scope.copy(&source[..MEDIUM], &mut rest[..MEDIUM]).sync(0..MEDIUM).unwrap();
        });
    }
    let mut in_a_row = 0;
    for _ in 0..COPIES_MAX {
        let before = copier.stats().read().queued;
        copier.scope(|scope| {
            lines.long = line!() + 1;
            let pending = scope.copy(&source, &mut destination);
            std::thread::sleep(Duration::from_millis(2));
            while !pending.is_ready(0..LONG) {
                std::thread::yield_now();
            }
            pending.sync(0..LONG).unwrap();
        });
        let is_queued = copier.stats().read().queued > before;
        in_a_row = if is_queued { in_a_row + 1 } else { 0 };
        if in_a_row == IN_A_ROW {
            assert!(destination == source);
            return lines;
        }
    }
    panic!("no site has queued {IN_A_ROW} copies in a row, of {COPIES_MAX}");
}

#[test]
fn each_site_has_its_reason() {
    let _table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let lines = copy(&copier);
    let pid = std::process::id();
    let place = |line: u32| format!("why.rs:{line}");

    let shown = text(&why(pid, &[]));
    let reason_of = |line: u32, state: &str| {
        let mut lines = shown.lines().skip_while(|it| {
            !(it.contains(&format!("{},", place(line))) && it.ends_with(&format!(": {state}")))
        });
        lines.nth(1).unwrap_or_else(|| panic!("{} {state}: {shown}", place(line))).trim().to_owned()
    };
    let queued = reason_of(lines.long, "queued");
    assert!(queued.contains("a queued copy takes") || queued.contains("sleeps"), "{queued}");
    let used = reason_of(lines.medium, "at once");
    assert!(used.contains("the window of") && used.contains("is shorter than the"), "{used}");
    let short = reason_of(lines.short, "at once");
    assert!(short.contains("copies of fewer than 4096 bytes are made at once"), "{short}");
    let change = format!("{}, from 1 MiB: trial -> queued: queueing pays", place(lines.long));
    assert!(shown.contains(&change), "{shown}");

    // One site only.
    let shown = text(&why(pid, &["--site", &format!("why.*:{}", lines.medium)]));
    assert!(shown.contains(&place(lines.medium)) && !shown.contains(&place(lines.long)), "{shown}");

    let shown = text(&why(pid, &["--json"]));
    let report: Value = serde_json::from_str(&shown).unwrap();
    let sites = report["sites"].as_array().unwrap();
    let site = |line: u32| {
        let found = sites.iter().find(|site| site["line"] == line);
        found.unwrap_or_else(|| panic!("{line}: {shown}"))
    };
    assert_eq!(
        (site(lines.long)["state"].as_str(), report["pid"].as_u64()),
        (Some("queued"), Some(pid.into()))
    );
    assert!(site(lines.long)["copies_queued"].as_u64().unwrap() > 0);
    assert!(site(lines.long)["window_ns"].as_f64().unwrap() > 2e6, "{shown}");
    assert_eq!(site(lines.medium)["cause"], "Forecast");
    assert_eq!(
        (&site(lines.short)["below_bytes"], &site(lines.short)["cause"]),
        (&Value::from(2048), &Value::from("Short"))
    );
    assert!(report["changes"].as_array().unwrap().iter().any(|it| it["to"] == "queued"), "{shown}");
}

#[test]
fn changes_are_followed() {
    let _table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let service = Service::start(Config::default()).unwrap();
    let pid = std::process::id();
    // The table exists with the first client.
    let first = Copier::new(service.attach().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_unlade"));
    command.args(["copyd", "why", &pid.to_string(), "--follow", "--json", "--site", "why.rs"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(report["pid"], pid);
    drop(first);
    let is_over = AtomicBool::new(false);
    let (source, mut destination) = ([1; MEDIUM], [0; MEDIUM]);
    let change: Value = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The site is new to each client, and known after some copies. The last clients are kept:
            // a change has the name of its site as long as a client has the site.
            let mut kept = VecDeque::new();
            while !is_over.load(Ordering::Relaxed) {
                kept.truncate(7);
                kept.push_front(Copier::new(service.attach().unwrap()));
                let copier = &kept[0];
                for _ in 0..10 {
                    copier.scope(|scope| {
                        let pending = scope.copy(&source, &mut destination);
                        pending.sync(0..MEDIUM).unwrap();
                    });
                }
            }
        });
        let line = lines.next().unwrap().unwrap();
        is_over.store(true, Ordering::Relaxed);
        serde_json::from_str(&line).unwrap()
    });
    assert!(change["change"].is_u64() && change["reason"].is_string(), "{change}");
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Set for a process of this test that has a table and waits for the end of its input.
const WAITING: &str = "UNLADE_WHY_WAITING";

/// Not a test in a process where the variable is not set.
#[test]
fn waiting() {
    if std::env::var_os(WAITING).is_none() {
        return;
    }
    let service = Service::start(Config::default()).unwrap();
    let _copier = Copier::new(service.attach().unwrap());
    println!("there is a table");
    let mut rest = String::new();
    std::io::stdin().read_line(&mut rest).unwrap();
}

#[test]
fn following_ends_with_the_process() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["waiting", "--exact", "--nocapture"]).env(WAITING, "1");
    let mut waiting = Other(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let output = BufReader::new(waiting.0.stdout.take().unwrap());
    let mut lines = output.lines();
    assert!(lines.any(|line| line.unwrap().contains("there is a table")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_unlade"));
    command.args(["copyd", "why", &waiting.0.id().to_string(), "--follow"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(follower.stdout.take().unwrap());
    let mut first = String::new();
    shown.read_line(&mut first).unwrap();
    assert!(first.contains("no site has made a copy, of 1 queues"), "{first}");
    drop(waiting.0.stdin.take());
    assert!(waiting.0.wait().unwrap().success());
    assert!(follower.wait().unwrap().success());
}

/// A process of another program, with a file as its input. It is ended with this value.
struct Other(Child);

impl Other {
    fn with_input(input: Stdio) -> Other {
        Other(Command::new("sleep").arg("3600").stdin(input).spawn().unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that looks like a table from outside.
fn lying(bytes: &[u8]) -> Stdio {
    let file: OwnedFd = rustix::fs::memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).unwrap();
    File::from(file.try_clone().unwrap()).write_all(bytes).unwrap();
    Stdio::from(file)
}

#[test]
fn a_process_without_the_library_has_a_clear_error() {
    let other = Other::with_input(Stdio::null());
    let message = error(&why(other.0.id(), &[]));
    assert!(message.contains("has no table of call sites"), "{message}");
    assert!(message.contains(&format!("process {}", other.0.id())), "{message}");
    // Above the kernel's limit.
    let message = error(&why(4_194_305, &[]));
    assert!(message.contains("there is none with this number"), "{message}");
    assert_eq!(unlade(&["copyd", "why", "x"]).status.code(), Some(2));
    assert_eq!(unlade(&["copyd", "why"]).status.code(), Some(2));
}

#[test]
fn a_process_that_lies_is_an_error() {
    let message_of = |bytes: &[u8]| error(&why(Other::with_input(lying(bytes)).0.id(), &[]));
    assert!(message_of(b"").contains("no table"));
    assert!(message_of(&[0xff; 5000]).contains("no table"));
    let image = Board::private(1, 2, 2).image();
    let message = message_of(&image);
    assert!(message.contains("is a child (fork) of process 1"), "{message}");
    assert!(message_of(&image[..image.len() - 1]).contains("which its header does not say"));
    assert!(message_of(&[image.clone(), vec![0; 8]].concat()).contains("does not say"));
    let changed = |word: usize, value: u64| {
        let mut image = image.clone();
        image[8 * word..][..8].copy_from_slice(&value.to_ne_bytes());
        message_of(&image)
    };
    assert!(changed(1, 9).contains("version 9"));
    assert!(changed(3, u64::MAX).contains("which its header does not say"));
    // A site whose client is 1, and whose state does not exist.
    let mut image = image.clone();
    for (word, value) in [(16 + 1, 1), (16 + 3, 0x4400_u64)] {
        image[8 * word..][..8].copy_from_slice(&value.to_ne_bytes());
    }
    let message = message_of(&image);
    assert!(message.contains("word 3 of site 0 of its table is invalid"), "{message}");
    // Longer than any table.
    assert!(message_of(&vec![1; 4 << 20]).contains("no table"));
}

#[test]
fn another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can run a program as another user");
        return;
    }
    // The program of this build may be in a directory that others cannot enter.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("unlade");
    fs::copy(env!("CARGO_BIN_EXE_unlade"), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let other = Other::with_input(Stdio::null());
    let as_nobody = |pid: u32| {
        let mut command = Command::new(&program);
        command.args(["copyd", "why", &pid.to_string()]).uid(NOBODY).gid(NOBODY);
        command.current_dir("/").output()
    };
    let refused = match as_nobody(other.0.id()) {
        Ok(refused) => error(&refused),
        Err(why) => {
            println!("skipped: the program does not run as another user: {why}");
            return;
        }
    };
    assert!(refused.contains("belongs to user 0; run this as that user, or as root"), "{refused}");
    // The same user is permitted, and root.
    let mut command = Command::new("sleep");
    let own =
        Other(command.arg("3600").uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).spawn().unwrap());
    assert!(error(&as_nobody(own.0.id()).unwrap()).contains("has no table"));
    assert!(error(&why(own.0.id(), &[])).contains("has no table"));
}
