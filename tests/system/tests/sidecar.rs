//! The sidecar: `unlade agent` adopts connections beside stock nginx, which answers over TCP or a
//! Unix socket. A second nginx answers the requests that the balancer proxies, so that each response
//! names the way that its request went.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use system_tests::client::{Client, Response, Target, TlsVersions, tls_config};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, Program, needs, pool, said, turn, unlade};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// The host whose connections stay at a server for all of their requests.
const HOST: &str = "unlimited.objects.lab";
/// An object that is longer than all buffers on the way.
const LONG: &str = "20MiB";
const LONG_BYTES: usize = 20 << 20;
/// Paths of responses with a length, without a body, and in chunks.
const PATHS: [&str; 9] =
    ["1KiB", "set/00", "20MiB", "4KiB", "gzip/256KiB", "missing", "1MiB", "gzip/1KiB", "set/05"];

/// The way from the sidecar to the local server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcp,
    Unix,
    ProxyProtocol,
}

/// A lab whose server is nginx with a sidecar. Programs end before the lab.
struct Site {
    agent: Option<Program>,
    local: Option<Program>,
    _front: Program,
    lab: Lab,
}

impl Site {
    fn new() -> Site {
        let lab =
            Lab::up(&["--tls", "--servers", "1", "--objects", "small", "--fronts", "offload"]);
        let long: Vec<u8> = (0..LONG_BYTES).map(|at| (at / 3 + at / 1021) as u8).collect();
        fs::write(lab.dir().join("objects").join(LONG), long).unwrap();
        fs::create_dir(lab.dir().join("uploads")).unwrap();
        lab.end("s1", "TERM");
        let front = nginx(&lab, "front", "listen 8080; listen [::]:8080;");
        let mut site = Site { agent: None, local: None, _front: front, lab };
        site.start_local();
        site
    }

    fn socket(&self) -> PathBuf {
        self.lab.dir().join("app.sock")
    }

    /// Starts the local server.
    fn start_local(&mut self) {
        // A killed nginx leaves its socket.
        let _ = fs::remove_file(self.socket());
        let unix = format!("listen unix:{};", self.socket().display());
        let tcp = "listen 127.0.0.1:8081; listen 127.0.0.1:8082 proxy_protocol;";
        self.local = Some(nginx(&self.lab, "local", &format!("{tcp} {unix}")));
        let answers = || {
            let curl = ["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:8081/1KiB"];
            self.lab.exec("s1", &curl).status.success()
        };
        assert!(wait_for(PATIENCE, answers), "nginx does not answer");
    }

    /// Starts an agent with a sidecar, in place of an earlier one.
    fn start_agent(&mut self, way: Way) {
        self.agent = None;
        let file = self.lab.dir().join("config/sidecar.toml");
        let pki = |file: &str| self.lab.dir().join("pki").join(file).display().to_string();
        let mut text = format!(
            "admin = \"127.0.0.1:9900\"\n[sidecar]\naddress = \"{}\"\nca = {:?}\n\
             certificate = {:?}\nkey = {:?}\nworkers = 2\n",
            pool::agent(&self.lab, "s1"),
            pki("pool-ca.crt"),
            pki("s1.crt"),
            pki("s1.key"),
        );
        let mut arguments = vec!["agent".to_owned(), "--config".to_owned()];
        arguments.push(file.display().to_string());
        match way {
            Way::Tcp => {
                arguments.extend(["--upstream", "http://127.0.0.1:8081"].map(str::to_owned))
            }
            Way::Unix => {
                let address = format!("unix:{}", self.socket().display());
                arguments.extend(["--upstream".to_owned(), address]);
            }
            Way::ProxyProtocol => {
                text.push_str("upstream = \"http://localhost:8082\"\nproxy_protocol = true\n");
            }
        }
        fs::write(&file, text).unwrap();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.agent = Some(self.lab.start("s1", unlade(), &arguments));
        let serves = || Metrics::read(&self.lab, "s1").is_there();
        assert!(wait_for(PATIENCE, serves), "the agent does not serve");
        self.lab.wait_channels();
    }

    /// Ends the agent in order.
    fn end_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        let pid = Pid::from_raw(i32::try_from(agent.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let mut status = None;
        let ended = wait_for(PATIENCE, || {
            status = agent.ended();
            status.is_some()
        });
        assert!(ended && status.unwrap().success(), "{status:?}");
    }

    /// Runs a function in the client's network.
    fn at_client<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let within = || {
                self.lab.enter("client");
                function()
            };
            let thread = scope.spawn(within);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn connect(&self, tls: bool) -> Client {
        let [v4, _] = self.lab.virtual_ips();
        let config = || tls_config(&self.lab.dir().join("pki/ca.crt"), TlsVersions::Both);
        let target = Target {
            address: (v4, if tls { 443 } else { 80 }).into(),
            tls: tls.then(|| (config(), HOST.to_owned())),
            receive_buffer_bytes: None,
            patience: PATIENCE,
        };
        self.at_client(|| Client::connect(&target)).unwrap()
    }

    fn sidecar(&self, metric: &str) -> u64 {
        Metrics::read(&self.lab, "s1").get(metric)
    }

    /// The lines of the local server's log: port, address, X-Forwarded-For, address of the PROXY
    /// protocol, method, path, status.
    fn log(&self) -> Vec<[String; 7]> {
        let text = fs::read_to_string(self.lab.dir().join("logs/local-access.log")).unwrap();
        text.lines()
            .map(|line| {
                let words: Vec<String> = line.split('|').map(str::to_owned).collect();
                words.try_into().unwrap_or_else(|words| panic!("{words:?}"))
            })
            .collect()
    }
}

/// Starts nginx with a server that listens as told.
fn nginx(lab: &Lab, name: &str, listen: &str) -> Program {
    let dir = lab.dir();
    let file = dir.join(format!("config/{name}.conf"));
    let text = format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {dir}/{name}.pid;\nevents {{}}\n\
         http {{\n  log_format ways '$server_port|$remote_addr|$http_x_forwarded_for|\
         $proxy_protocol_addr|$request_method|$uri|$status';\n  \
         access_log {dir}/logs/{name}-access.log ways;\n  client_max_body_size 0;\n  \
         client_body_temp_path {dir}/{name}-body;\n  gzip_types *;\n  gzip_min_length 1;\n  \
         server {{\n    {listen}\n    add_header X-Way {name} always;\n    root {dir}/objects;\n    \
         location /gzip/ {{ alias {dir}/objects/; gzip on; }}\n    \
         location /slow/ {{ alias {dir}/objects/; limit_rate 4k; }}\n    \
         location /uploads/ {{ root {dir}; dav_methods PUT; }}\n  }}\n}}\n",
        dir = dir.display(),
    );
    fs::write(&file, text).unwrap();
    let error_log = dir.join(format!("logs/{name}.log")).display().to_string();
    lab.start("s1", Path::new("nginx"), &["-c", &file.display().to_string(), "-e", &error_log])
}

/// Responses of one run of curl: heads as sorted lines, and bodies.
#[derive(Debug, PartialEq, Eq)]
struct Fetched {
    heads: Vec<Vec<String>>,
    bodies: Vec<Option<Vec<u8>>>,
    /// The client's address.
    from: String,
}

impl Fetched {
    /// The values of X-Way.
    fn ways(&self) -> BTreeSet<&str> {
        let lines = self.heads.iter().flatten();
        lines.filter_map(|line| line.strip_prefix("x-way: ")).collect()
    }

    /// The heads without the lines that depend on time and way.
    fn lasting_heads(&self) -> Vec<Vec<&str>> {
        let lasts = |line: &&str| {
            !["date: ", "x-way: ", "connection: "].iter().any(|begin| line.starts_with(begin))
        };
        self.heads
            .iter()
            .map(|head| head.iter().map(String::as_str).filter(lasts).collect())
            .collect()
    }
}

/// Fetches all paths by one run of curl.
fn fetch(lab: &Lab, node: &str, base: &str, options: &[&str]) -> Fetched {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let outputs: Vec<String> = (0..PATHS.len()).map(|at| file(&at.to_string())).collect();
    let urls: Vec<String> = PATHS.iter().map(|path| format!("{base}/{path}")).collect();
    let heads = file("heads");
    let mut curl = vec!["curl", "-sS", "--max-time", "60", "-D", &heads, "-w", "%{local_ip}\\n"];
    curl.extend(["-H", "Accept-Encoding: gzip"]);
    curl.extend(options);
    for (url, output) in urls.iter().zip(&outputs) {
        curl.extend(["-o", output, url]);
    }
    let output = lab.exec(node, &curl);
    assert!(output.status.success(), "{base} {options:?}: {}", said(&output));
    let text = fs::read_to_string(&heads).unwrap();
    let heads: Vec<Vec<String>> = text
        .split_terminator("\r\n\r\n")
        .map(|head| {
            let mut lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
            for line in &mut lines {
                if let Some((name, value)) = line.split_once(": ") {
                    *line = format!("{}: {value}", name.to_ascii_lowercase());
                }
            }
            lines.sort();
            lines
        })
        .collect();
    assert_eq!(heads.len(), PATHS.len(), "{text}");
    let from =
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
    Fetched { heads, bodies: outputs.iter().map(|output| fs::read(output).ok()).collect(), from }
}

/// Compares the responses to a client with those of the server, until all have come through the
/// sidecar. Returns the client's addresses.
fn assert_same(site: &Site, host: &str, options: &[&str]) -> BTreeSet<String> {
    let lab = &site.lab;
    let own = fetch(lab, "s1", "http://127.0.0.1:8081", options);
    assert_eq!(own.ways(), BTreeSet::from(["local"]));
    let ca = lab.dir().join("pki/ca.crt").display().to_string();
    let mut addresses = BTreeSet::new();
    for (scheme, port) in [("http", 80), ("https", 443)] {
        for address in lab.virtual_ips() {
            let to = match address.is_ipv4() {
                true => format!("{host}:{port}:{address}"),
                false => format!("{host}:{port}:[{address}]"),
            };
            let options = [&["--cacert", &ca, "--resolve", &to][..], options].concat();
            let all_came = wait_for(PATIENCE, || {
                let fetched = fetch(lab, "client", &format!("{scheme}://{host}"), &options);
                assert_eq!(fetched.lasting_heads(), own.lasting_heads(), "{scheme} {address}");
                for (at, path) in PATHS.iter().enumerate() {
                    // For HEAD, curl writes the head there.
                    let same = options.contains(&"--head") || fetched.bodies[at] == own.bodies[at];
                    assert!(same, "{scheme} {address} {options:?} {path}: other bytes");
                }
                addresses.insert(fetched.from.clone());
                fetched.ways() == BTreeSet::from(["local"])
            });
            let balancer = Metrics::read(lab, "lb");
            assert!(all_came, "{scheme} {address}: proxied; {}", balancer.noteworthy());
        }
    }
    addresses
}

#[test]
fn responses_are_those_of_nginx_and_its_log_has_the_clients_address() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    for way in [Way::Tcp, Way::Unix, Way::ProxyProtocol] {
        site.start_agent(way);
        let before = site.log().len();
        let addresses = assert_same(&site, HOST, &[]);
        if way == Way::Tcp {
            assert_same(&site, HOST, &["--head"]);
            assert_same(&site, HOST, &["--range", "100-900000"]);
            // A handover for each request.
            assert_same(&site, "one.objects.lab", &[]);
        }
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        // Requests without X-Forwarded-For are those of this test.
        let log = site.log();
        let forwarded: Vec<_> = log[before..].iter().filter(|line| line[2] != "-").collect();
        assert!(forwarded.len() >= 4 * PATHS.len(), "{way:?}: {log:?}");
        for [port, remote, forwarded, named, method, path, status] in forwarded {
            let line = format!("{way:?}: {port} {remote} {named} {method} {path} {status}");
            assert!(addresses.contains(forwarded), "{line}: {forwarded} of {addresses:?}");
            match way {
                Way::Tcp => assert_eq!((&port[..], &remote[..]), ("8081", "127.0.0.1"), "{line}"),
                Way::Unix => assert_eq!(remote, "unix:", "{line}"),
                Way::ProxyProtocol => {
                    assert_eq!((&port[..], &remote[..]), ("8082", "127.0.0.1"), "{line}");
                    assert_eq!(named, forwarded, "{line}");
                }
            }
        }
        assert!(site.sidecar("unlade_sidecar_connects_total") > 0, "{way:?}");
        assert!(site.sidecar("unlade_sidecar_reuses_total") > 0, "{way:?}");
        assert!(site.sidecar("unlade_backend_direct_bytes_total") > LONG_BYTES as u64, "{way:?}");
        // Idle ones are kept for other clients, or belong to clients that are gone.
        let none = wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") == 0);
        assert!(none, "{way:?}");
        let idle = site.sidecar("unlade_sidecar_idle_connections");
        assert_eq!(idle > 0, way != Way::ProxyProtocol, "{way:?}: {idle}");
        site.end_agent();
    }
}

#[test]
fn uploads_reach_nginx() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    let objects = site.lab.dir().join("objects");
    let ca = site.lab.dir().join("pki/ca.crt").display().to_string();
    for way in [Way::Tcp, Way::Unix] {
        site.start_agent(way);
        let [v4, v6] = site.lab.virtual_ips();
        for (scheme, to) in
            [("http", format!("{HOST}:80:{v4}")), ("https", format!("{HOST}:443:[{v6}]"))]
        {
            for (name, options) in [
                ("1KiB", &[][..]),
                ("set/00", &[]),
                (LONG, &[]),
                (LONG, &["-H", "Transfer-Encoding: chunked"]),
                ("1MiB", &["-H", "Transfer-Encoding: chunked", "-H", "Expect:"]),
            ] {
                let (source, path) = (objects.join(name), format!("uploads/{way:?}-{scheme}"));
                let source = source.display().to_string();
                let (get, put) =
                    (format!("{scheme}://{HOST}/1KiB"), format!("{scheme}://{HOST}/{path}"));
                let curl = ["curl", "-sS", "--max-time", "60", "--cacert", &ca, "--resolve", &to];
                // The request before it hands the connection over; a second upload is for nothing.
                let uploads = ["-o", "/dev/null", &get, "--next", "-sS", "--cacert", &ca];
                let uploads = [&uploads[..], &["--resolve", &to, "-D", "-"], options].concat();
                let command = [&curl[..], &uploads, &["-T", &source, &put]].concat();
                let stored = site.lab.dir().join(&path);
                let came = wait_for(PATIENCE, || {
                    let _ = fs::remove_file(&stored);
                    let output = site.lab.exec("client", &command);
                    assert!(output.status.success(), "{command:?}: {}", said(&output));
                    let head = String::from_utf8_lossy(&output.stdout).into_owned();
                    assert!(head.contains("HTTP/1.1 201 "), "{way:?} {scheme} {name}: {head}");
                    let same = fs::read(&stored).unwrap() == fs::read(&source).unwrap();
                    assert!(same, "{way:?} {scheme} {name} {options:?}: other bytes");
                    head.contains("X-Way: local\r\n")
                });
                assert!(came, "{way:?} {scheme} {name} {options:?}: proxied");
            }
        }
        site.end_agent();
    }
}

/// Sends a request and returns its response.
fn ask(site: &Site, client: &mut Client, path: &str) -> Response {
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    site.at_client(|| {
        client.send(request.as_bytes()).unwrap();
        client.response(false).unwrap_or_else(|broken| panic!("{path}: {broken:?}"))
    })
}

/// Returns true if a response came through the sidecar, or is the sidecar's own.
fn is_sidecars(response: &Response) -> bool {
    response.header("x-way").is_none_or(|way| way == "local")
}

#[test]
fn a_server_that_is_down_costs_the_client_a_response_and_no_connection() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    for way in [Way::Tcp, Way::Unix] {
        site.start_agent(way);
        for tls in [false, true] {
            let mut client = site.connect(tls);
            let served = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                assert_eq!(response.status(), 200, "{response:?}");
                is_sidecars(&response)
            });
            assert!(served, "{way:?}, TLS {tls}: proxied");
            site.local = None;
            let refused = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                if response.status() == 502 {
                    assert_eq!(response.body, b"the local server cannot be reached\n");
                    assert!(!response.closes(), "{response:?}");
                }
                response.status() == 502
            });
            assert!(refused, "{way:?}, TLS {tls}: no 502");
            site.start_local();
            let served = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                response.status() == 200 && is_sidecars(&response)
            });
            assert!(served, "{way:?}, TLS {tls}: not served again");
        }
        let failures = "unlade_sidecar_failures_total{reason=\"connect\"}";
        assert!(site.sidecar(failures) >= 2, "{way:?}");
        site.end_agent();
    }
}

#[test]
fn a_client_that_aborts_ends_its_request_at_nginx() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    site.start_agent(Way::Tcp);
    let abandoned = "unlade_sidecar_abandoned_total";
    for tls in [false, true] {
        let before = site.sidecar(abandoned);
        let counted = wait_for(PATIENCE, || {
            let mut client = site.connect(tls);
            ask(&site, &mut client, "1KiB");
            let request = format!("GET /slow/1MiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
            site.at_client(|| {
                client.send(request.as_bytes()).unwrap();
                // The response has begun, and would take minutes.
                client.budget_bytes = Some(1024);
                client.response(false).unwrap_err();
                client.abort();
            });
            wait_for(Duration::from_secs(5), || site.sidecar(abandoned) > before)
        });
        assert!(counted, "TLS {tls}: {}", Metrics::read(&site.lab, "lb").noteworthy());
        let none = wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") == 0);
        assert!(none, "TLS {tls}: the request goes on at the local server");
    }
    site.end_agent();
}

#[test]
fn an_agent_that_ends_gives_its_connections_back() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    site.start_agent(Way::Unix);
    let mut clients: Vec<Client> = [false, true, false, true].map(|tls| site.connect(tls)).into();
    let away = wait_for(PATIENCE, || {
        let responses = clients.iter_mut().map(|client| ask(&site, client, "64KiB"));
        let all: Vec<bool> = responses.map(|response| is_sidecars(&response)).collect();
        all.iter().all(|is| *is)
    });
    assert!(away, "{}", Metrics::read(&site.lab, "lb").noteworthy());
    site.end_agent();
    for client in &mut clients {
        let response = ask(&site, client, "64KiB");
        assert_eq!((response.status(), response.header("x-way")), (200, Some("front")));
    }
    assert_eq!(Metrics::read(&site.lab, "lb").get("unlade_resets_sent_total"), 0);
}
