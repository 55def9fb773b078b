//! A second process on an address in use.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use system_tests::unlade;

/// A server, killed on drop.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Server {
    fn start(arguments: &[String]) -> Server {
        let mut child = Command::new(unlade())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .env("UNLADE_LOG", "info")
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        Server { child, lines }
    }

    /// Returns the address on which the server listens, or its output if it ended.
    fn address(&mut self) -> Result<String, String> {
        let mut said = String::new();
        for line in self.lines.by_ref().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once("address=") {
                return Ok(rest.split_whitespace().next().unwrap_or_default().to_owned());
            }
            said.push_str(&line);
            said.push('\n');
        }
        Err(said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on any port, and a second one on the same port, which fails. Starts the second
/// one again after the first is killed.
fn second_is_refused(arguments: impl Fn(&str) -> Vec<String>) {
    // A private loopback address, whose ports stay free between two servers.
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut first = Server::start(&arguments(&format!("127.94.{high}.{low}:0")));
    let address = first.address().expect("the first listens");
    let mut second = Server::start(&arguments(&address));
    let said = second.address().expect_err("nothing but the first listens");
    let status = second.child.wait().unwrap();
    assert!(!status.success(), "{status}: {said}");
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");
    let holder = format!("by PID {} (unlade)", first.child.id());
    assert!(said.contains(&holder), "{holder}: {said}");
    drop(first);
    assert_eq!(Server::start(&arguments(&address)).address(), Ok(address));
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns the arguments of a command with a configuration file; replaces `ADDRESS` in the file.
fn configured(directory: &Path, command: &str, text: &str) -> impl Fn(&str) -> Vec<String> {
    let (file, text) = (directory.join(format!("{command}.toml")), text.to_owned());
    let command = command.to_owned();
    move |address| {
        fs::write(&file, text.replace("ADDRESS", address)).unwrap();
        vec![command.clone(), "--config".to_owned(), file.display().to_string()]
    }
}

#[test]
fn a_second_nvme_target_on_the_same_port_does_not_start() {
    second_is_refused(|address| {
        words(&format!("nvme target --namespace ram:1MiB --workers 2 --listen {address}"))
    });
}

#[test]
fn a_second_balancer_on_the_same_port_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let text = "workers = 2\n[[listener]]\naddress = \"ADDRESS\"\n[[route]]\nprefix = \"/\"\n\
                pool = \"objects\"\n[pool.objects]\nservers = [\"127.0.0.1\"]\nhttp_port = 1\n";
    second_is_refused(configured(directory.path(), "lb", text));
}

#[test]
fn a_second_backend_on_the_same_port_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("root = {:?}\nhttp = \"ADDRESS\"\nworkers = 2\n", directory.path());
    second_is_refused(configured(directory.path(), "backend", &text));
}
