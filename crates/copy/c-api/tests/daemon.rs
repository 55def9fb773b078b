//! C programs with the copy daemon: memory shared with it, and sockets passed to it.
//!
//! `UNLADE_SEED` repeats a failed seed.

use std::path::Path;
use std::process::Command;

use support::{ROOT, has, libraries, program, run};
use unlade_copy_service::daemon::{Daemon, DaemonConfig};
use unlade_testkit::seed;

// It has more than this test needs.
#[allow(dead_code)]
mod support;

/// A daemon on a thread of this process, which ends with this value.
struct Running {
    stop: Box<dyn Fn()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(directory: &Path) -> Running {
        let config =
            DaemonConfig { socket: directory.join("copyd.sock"), ..DaemonConfig::default() };
        let daemon = Daemon::bind(config.clone()).unwrap();
        let control = daemon.control();
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        Running { stop: Box::new(move || control.drain()), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

#[test]
fn messages_through_the_daemon_are_those_of_recv_and_send() {
    if !has("cc") {
        println!("skipped: no cc");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("program");
    // The program looks for the library by its version.
    let library = libraries().join("libunlade_copier.so");
    std::os::unix::fs::symlink(library, directory.path().join("libunlade_copier.so.0")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-UNDEBUG", "-pthread"]);
    cc.arg(format!("-I{ROOT}/include")).arg("-o").arg(&binary);
    cc.arg(format!("{ROOT}/corpus/daemon.c")).arg("-L").arg(libraries());
    cc.arg("-lunlade_copier").arg(format!("-Wl,-rpath,{}", directory.path().display()));
    run(&mut cc);
    let _running = Running::start(directory.path());
    let socket = directory.path().join("copyd.sock");
    let seed = seed().to_string();
    for options in ["", "enabled=0"] {
        let mut command = program(&binary);
        command.arg(&socket).arg(&seed).env("COPIER_OPTIONS", options);
        assert_eq!(run(&mut command).stdout, b"right\n", "UNLADE_SEED={seed}");
    }
}
