//! Ordinary clients over connections that are handed over: plain and TLS, IPv4 and IPv6, with and
//! without transmit offloads of the links.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use system_tests::client::{Client, End, Target, TlsVersions, tls_config};
use system_tests::counters::Metrics;
use system_tests::play::PATIENCE;
use system_tests::{Lab, Turn, needs, said, turn};

/// Hosts whose connections are handed over, with one, eight or unlimited requests for each
/// migration.
const HOSTS: [&str; 3] = ["one.objects.lab", "eight.objects.lab", "unlimited.objects.lab"];
const LINKS: [&str; 2] = ["on", "off"];

/// A lab with the exclusive lock.
struct Place {
    lab: Lab,
    objects: PathBuf,
    ca: String,
    _turn: Turn,
}

impl Place {
    fn new(offloads: &str) -> Place {
        let turn = turn();
        let lab = Lab::up(&[
            "--tls",
            "--servers",
            "3",
            "--objects",
            "small",
            "--fronts",
            "offload",
            "--offloads",
            offloads,
        ]);
        lab.wait_channels();
        let (objects, ca) = (lab.dir().join("objects"), lab.dir().join("pki/ca.crt"));
        Place { lab, objects, ca: ca.display().to_string(), _turn: turn }
    }

    fn object(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.objects.join(name)).unwrap()
    }

    /// Runs a shell command on the client and asserts success.
    fn shell(&self, command: &str) -> String {
        let output = self.lab.exec("client", &["sh", "-c", command]);
        let lb = || Metrics::read(&self.lab, "lb").noteworthy();
        assert!(output.status.success(), "{command}: {}; balancer: {}", said(&output), lb());
        system_tests::text(&output)
    }

    /// Returns the number of migrations so far.
    fn migrations(&self) -> u64 {
        Metrics::read(&self.lab, "lb").get("unlade_lb_migrations_completed_total")
    }

    fn target(&self, v6: bool, tls: Option<TlsVersions>) -> Target {
        let ip = self.lab.virtual_ips()[usize::from(v6)];
        let port = if tls.is_some() { 443 } else { 80 };
        let config = |versions| tls_config(Path::new(&self.ca), versions);
        Target {
            address: SocketAddr::new(ip, port),
            tls: tls.map(|versions| (config(versions), "objects.lab".to_owned())),
            receive_buffer_bytes: None,
            patience: PATIENCE,
        }
    }

    /// Runs `work` on a thread inside the client's network.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.lab.enter("client");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Returns scheme and host of every front end with handoff, with the curl options for it.
fn bases(place: &Place) -> Vec<(String, String)> {
    let v6 = place.lab.virtual_ips()[1];
    let mut all = Vec::new();
    for (scheme, port) in [("http", 80), ("https", 443)] {
        for host in HOSTS {
            all.push((format!("{scheme}://{host}"), String::new()));
        }
        let host = HOSTS[0];
        all.push((format!("{scheme}://{host}"), format!("--resolve {host}:{port}:[{v6}]")));
    }
    let tls12 = "--tls-max 1.2".to_owned();
    all.push((format!("https://{}", HOSTS[0]), tls12.clone()));
    all.push((format!("https://{}", HOSTS[2]), tls12));
    all
}

fn curl(place: &Place) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().display();
    let objects = place.objects.display();
    for (number, (base, options)) in bases(place).into_iter().enumerate() {
        let curl = format!("curl -sS --max-time 30 {options}");
        let before = place.migrations();
        // Several requests on one connection.
        let names = ["4KiB", "set/21", "1MiB", "1KiB", "set/00", "256KiB", "64KiB"];
        let many: String =
            names.iter().enumerate().map(|(at, n)| format!(" -o {out}/{at} {base}/{n}")).collect();
        let facts = place.shell(&format!("{curl} -w '%{{http_code}} %{{num_connects}}\\n'{many}"));
        let expected: Vec<&str> =
            (0..names.len()).map(|at| if at == 0 { "200 1" } else { "200 0" }).collect();
        assert_eq!(facts.lines().collect::<Vec<_>>(), expected, "{base} {options}");
        for (at, name) in names.iter().enumerate() {
            let got = std::fs::read(dir.path().join(at.to_string())).unwrap();
            assert!(got == place.object(name), "{base}/{name} {options}");
        }
        let head = place.shell(&format!("{curl} -I {base}/64KiB"));
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("65536"), "{head}");
        let part = format!("cmp -i 0:1000 -n 49001 - {objects}/64KiB");
        place.shell(&format!("{curl} -f -r 1000-50000 {base}/64KiB | {part}"));
        let missing = place.shell(&format!("{curl} -o /dev/null -w '%{{http_code}}' {base}/none"));
        assert_eq!(missing, "404", "{base} {options}");
        // Upload, read back, remove; `-T` sends Expect for a long body.
        for name in ["16KiB", "1MiB"] {
            let own = format!("{base}/curl-{number}-{name}");
            let put =
                format!("{curl} -f -o /dev/null -w '%{{http_code}}' -T {objects}/{name} {own}");
            assert_eq!(place.shell(&put), "201", "{own} {options}");
            place.shell(&format!("{curl} -f {own} | cmp - {objects}/{name}"));
            place.shell(&format!("{curl} -f -X DELETE {own}"));
        }
        assert!(place.migrations() > before, "{base} {options}: nothing was handed over");
    }
}

fn wrk(place: &Place) {
    for (scheme, host) in [("http", HOSTS[0]), ("http", HOSTS[2]), ("https", HOSTS[1])] {
        let before = place.migrations();
        let url = format!("{scheme}://{host}/16KiB");
        let report = place.shell(&format!("wrk -t1 -c8 -d1s --timeout 10s {url}"));
        assert!(!report.contains("Socket errors"), "{url}: {report}");
        assert!(!report.contains("Non-2xx"), "{url}: {report}");
        let requests = report.lines().find_map(|line| line.trim().split_once(" requests in "));
        let requests: u64 = requests.expect(&report).0.parse().unwrap();
        let moved = place.migrations() - before;
        assert!(requests >= 8 && moved >= 8, "{requests} requests, {moved} migrations: {report}");
    }
}

fn python(place: &Place) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/keep_alive.py");
    let (script, objects, ca) = (script.display(), place.objects.display(), &place.ca);
    for base in HOSTS.iter().flat_map(|host| [format!("http://{host}"), format!("https://{host}")])
    {
        let before = place.migrations();
        let names = "4KiB set/05 64KiB set/00 256KiB set/33 1KiB set/48";
        let said = place.shell(&format!("python3 {script} {base} {ca} {objects} 50 {names}"));
        assert_eq!(said, "50", "{base}");
        assert!(place.migrations() > before, "{base}: nothing was handed over");
    }
}

fn go(place: &Place) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("client");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(source);
    build.env("GOPROXY", "off").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
    build.env("CGO_ENABLED", "0");
    let built = build.output().unwrap();
    assert!(built.status.success(), "{}", said(&built));
    let (program, objects, ca) = (program.display(), place.objects.display(), &place.ca);
    for (number, host) in HOSTS.iter().enumerate() {
        for scheme in ["http", "https"] {
            let before = place.migrations();
            let names = "4KiB set/05 64KiB set/00 256KiB set/33 1MiB 1KiB set/48";
            let options = format!("-base {scheme}://{host} -ca {ca} -objects {objects}");
            let own = format!("-own go-{number}-{scheme}");
            let said = place.shell(&format!("{program} {options} {own} -parallel 3 {names}"));
            // One of the three workers may use an idle connection of another.
            let (connections, requests) = said.split_once(" requests ").unwrap_or_default();
            let connections = connections.strip_prefix("connections ").unwrap_or_default();
            assert!(matches!(connections, "1" | "2" | "3"), "{scheme}://{host}: {said}");
            assert_eq!(requests, "150", "{scheme}://{host}: {said}");
            assert!(place.migrations() > before, "{scheme}://{host}: nothing was handed over");
        }
    }
}

/// Sends sixteen requests in one write and compares the responses in order.
fn pipelining(place: &Place) {
    let names = [
        "4KiB", "set/01", "1KiB", "set/00", "16KiB", "set/17", "64KiB", "set/33", "1KiB", "set/48",
        "256KiB", "set/50", "4KiB", "set/63", "set/07", "1MiB",
    ];
    for host in HOSTS {
        for (v6, tls) in [
            (false, None),
            (true, None),
            (false, Some(TlsVersions::Both)),
            (true, Some(TlsVersions::Both)),
            (false, Some(TlsVersions::Tls12)),
        ] {
            let what = format!("{host}, IPv6 {v6}, TLS {tls:?}");
            let before = place.migrations();
            let target = place.target(v6, tls);
            let request = |name: &&str| format!("GET /{name} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let requests: String = names.iter().map(request).collect();
            place.inside(|| {
                let mut client = Client::connect(&target).unwrap();
                for round in 0..3 {
                    client.send(requests.as_bytes()).unwrap();
                    for (at, name) in names.iter().enumerate() {
                        let response = client.response(false);
                        let response = response.unwrap_or_else(|broken| {
                            panic!("{what}: round {round}, response {at}: {broken:?}")
                        });
                        assert_eq!(response.status(), 200, "{what}: {response:?}");
                        assert!(response.body == place.object(name), "{what}: {name} differs");
                    }
                }
                client.finish_sending().unwrap();
                assert_eq!(client.wait_end(), End::Closed, "{what}");
            });
            assert!(place.migrations() > before, "{what}: nothing was handed over");
        }
    }
}

/// Reads a pipe on a separate thread, which allows waiting with a time limit.
fn pump(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// An interactive `openssl s_client`, killed on drop.
struct Terminal {
    child: Child,
    out: Receiver<Vec<u8>>,
    seen: Vec<u8>,
    /// Output for its commands.
    errors: Receiver<Vec<u8>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    fn new(place: &Place, options: &[&str]) -> Terminal {
        let namespace = format!("unlade-{}-client", place.lab.name);
        let ip = place.lab.virtual_ips()[0];
        let mut child = Command::new("ip")
            .args(["netns", "exec", &namespace, "openssl", "s_client", "-connect"])
            .arg(format!("{ip}:443"))
            .args(["-servername", "objects.lab", "-CAfile", &place.ca, "-verify_return_error"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = pump(child.stdout.take().unwrap());
        let errors = pump(child.stderr.take().unwrap());
        Terminal { child, out, seen: Vec::new(), errors }
    }

    fn type_in(&mut self, text: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Triggers a key update with a command and waits until it was read: s_client discards input
    /// that it reads together with a command.
    fn change_keys(&mut self, command: &str) {
        // Discards the output for the handshake and earlier commands.
        while self.errors.try_recv().is_ok() {}
        self.type_in(command);
        let (deadline, mut said) = (Instant::now() + PATIENCE, Vec::new());
        while !said.windows(10).any(|window| window == b"KEYUPDATE\n") {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.errors.recv_timeout(left) {
                Ok(some) => said.extend(some),
                Err(_) => panic!("no change of keys: {}", String::from_utf8_lossy(&said)),
            }
        }
    }

    /// Waits for `pattern` and `bytes` bytes after it, and returns the input up to there.
    fn wait(&mut self, pattern: &[u8], bytes: usize, what: &str) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = self.seen.windows(pattern.len()).position(|window| window == pattern);
            let end = at.map(|at| at + pattern.len() + bytes);
            if let Some(end) = end.filter(|end| *end <= self.seen.len()) {
                return self.seen.drain(..end).collect();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.out.recv_timeout(left) {
                Ok(some) => self.seen.extend(some),
                Err(_) => {
                    let seen = String::from_utf8_lossy(&self.seen[..self.seen.len().min(2000)]);
                    panic!("{what}: no more than {} bytes: {seen}", self.seen.len())
                }
            }
        }
    }

    /// Requests an object and compares it.
    fn get(&mut self, place: &Place, host: &str, name: &str, what: &str) {
        self.type_in(&format!("GET /{name} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let content = place.object(name);
        self.wait(b"HTTP/1.1 200 OK\r\n", 0, what);
        let answer = self.wait(b"\r\n\r\n", content.len(), what);
        assert!(answer.ends_with(&content), "{what}: {name} differs");
    }
}

fn openssl(place: &Place) {
    for host in HOSTS {
        let before = place.migrations();
        let mut terminal = Terminal::new(place, &["-tls1_3"]);
        terminal.wait(b"Verify return code: 0 (ok)", 0, "handshake");
        terminal.get(place, host, "64KiB", &format!("{host}, first"));
        for (key, what) in [("k", "own keys changed"), ("K", "keys of both changed")] {
            for round in 0..2 {
                terminal.change_keys(&format!("{key}\n"));
                terminal.get(place, host, "16KiB", &format!("{host}, {what}, {round}"));
                terminal.get(place, host, "set/33", &format!("{host}, {what}, {round}, again"));
            }
        }
        drop(terminal);
        assert!(place.migrations() > before, "{host}: nothing was handed over");
        let mut old = Terminal::new(place, &["-tls1_2"]);
        old.wait(b"Verify return code: 0 (ok)", 0, "handshake");
        old.get(place, host, "64KiB", &format!("{host}, TLS 1.2"));
        old.get(place, host, "4KiB", &format!("{host}, TLS 1.2, again"));
    }
}

#[test]
fn curl_is_served() {
    needs!("ip", "setsid", "curl", "cmp", "ethtool");
    LINKS.iter().for_each(|links| curl(&Place::new(links)));
}

#[test]
fn wrk_is_served() {
    needs!("ip", "setsid", "curl", "wrk", "ethtool");
    LINKS.iter().for_each(|links| wrk(&Place::new(links)));
}

#[test]
fn python_is_served() {
    needs!("ip", "setsid", "curl", "python3", "ethtool");
    LINKS.iter().for_each(|links| python(&Place::new(links)));
}

#[test]
fn go_is_served() {
    needs!("ip", "setsid", "curl", "go", "ethtool");
    LINKS.iter().for_each(|links| go(&Place::new(links)));
}

#[test]
fn a_pipelining_client_is_served() {
    needs!("ip", "setsid", "curl", "ethtool");
    LINKS.iter().for_each(|links| pipelining(&Place::new(links)));
}

#[test]
fn openssl_changes_keys_on_the_way() {
    needs!("ip", "setsid", "curl", "openssl");
    openssl(&Place::new("on"));
}
