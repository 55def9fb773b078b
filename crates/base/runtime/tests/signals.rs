//! Signals to a process: this test starts itself as a child and signals it.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use unlade_runtime::{Control, Ended, Phase, Watch, WorkersConfig, run_workers};

const CHILD: &str = "UNLADE_TEST_SIGNALS_CHILD";

/// The child: prints the events that it receives. Without the variable it does nothing.
#[test]
fn child() {
    let Ok(how) = std::env::var(CHILD) else { return };
    let config = WorkersConfig {
        threads: 2,
        drain_timeout: Duration::from_secs(60),
        ..WorkersConfig::new("signals")
    };
    let mut reloads = 0;
    let reload = || {
        reloads += 1;
        if reloads == 1 {
            println!("refused");
            return Err("the first file is bad");
        }
        Ok(reloads)
    };
    let obedient = how == "obedient";
    let main = move |_, mut watch: Watch<i32>| async move {
        println!("ready");
        let reloaded = watch.reloaded().await;
        println!("reloaded {reloaded}");
        watch.reached(Phase::Draining).await;
        println!("draining");
        if !obedient {
            std::future::pending::<()>().await;
        }
        Ok::<(), String>(())
    };
    match run_workers(&config, &Control::new(0), reload, main).unwrap() {
        Ended::Finished => println!("finished"),
        Ended::Dropped => println!("dropped"),
    }
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(how: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, how)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the child has printed `line` `times` times.
    fn wait_for(&mut self, line: &str, times: usize) {
        let mut seen = 0;
        let mut text = String::new();
        while seen < times {
            text.clear();
            let read = self.output.read_line(&mut text).unwrap();
            assert_ne!(read, 0, "the child ended before it said `{line}`");
            seen += usize::from(text.trim_end().ends_with(line));
        }
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn drained(how: &str) -> Process {
        let mut process = Process::start(how);
        process.wait_for("ready", 2);
        // The first reload fails and changes nothing.
        process.signal(Signal::HUP);
        process.wait_for("refused", 1);
        process.signal(Signal::HUP);
        process.wait_for("reloaded 2", 2);
        process.signal(Signal::TERM);
        process.wait_for("draining", 2);
        process
    }
}

#[test]
fn a_hangup_reloads_and_a_termination_drains() {
    let mut process = Process::drained("obedient");
    process.wait_for("finished", 1);
    process.ends_well();
}

#[test]
fn a_second_signal_stops_what_does_not_drain() {
    let mut process = Process::drained("stubborn");
    process.signal(Signal::INT);
    process.wait_for("dropped", 1);
    process.ends_well();
}
