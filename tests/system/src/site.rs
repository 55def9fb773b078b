//! A lab whose server is stock nginx with a sidecar. A second nginx answers the requests that the balancer
//! proxies, so that each response names the way that its request went.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, Target, TlsVersions, tls_config};
use crate::counters::{Metrics, wait_for};
use crate::{Lab, Program, pool, said, unlade};

/// Time limit of a wait.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// An object that is longer than all buffers on the way.
pub const LONG: &str = "20MiB";
/// Its length.
pub const LONG_BYTES: usize = 20 << 20;
/// Paths of responses with a length, without a body, and in chunks.
pub const PATHS: [&str; 9] =
    ["1KiB", "set/00", "20MiB", "4KiB", "gzip/256KiB", "missing", "1MiB", "gzip/1KiB", "set/05"];

/// The way from the sidecar to the local server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Unix,
    /// TCP, with the PROXY protocol.
    ProxyProtocol,
}

/// A lab whose server is nginx with a sidecar. Programs end before the lab.
pub struct Site {
    /// The agent with the sidecar.
    pub agent: Option<Program>,
    /// The local server.
    pub local: Option<Program>,
    _front: Program,
    /// The lab.
    pub lab: Lab,
}

impl Site {
    /// Starts it, without an agent.
    ///
    /// # Panics
    /// A program does not start.
    #[allow(clippy::new_without_default, reason = "it starts programs")]
    pub fn new() -> Site {
        Site::with(&[])
    }

    /// As [`Site::new`], in a lab with more options.
    ///
    /// # Panics
    /// As [`Site::new`].
    pub fn with(more: &[&str]) -> Site {
        let options = ["--tls", "--servers", "1", "--objects", "small", "--fronts", "offload"];
        let lab = Lab::up(&[&options[..], more].concat());
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
    ///
    /// # Panics
    /// It does not answer.
    pub fn start_local(&mut self) {
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
    ///
    /// # Panics
    /// It does not start.
    pub fn start_agent(&mut self, way: Way) {
        match way {
            Way::Tcp => self.start_agent_before("http://127.0.0.1:8081", ""),
            Way::Unix => {
                self.start_agent_before(&format!("unix:{}", self.socket().display()), "");
            }
            Way::ProxyProtocol => {
                self.start_agent_before(
                    "",
                    "upstream = \"http://localhost:8082\"\nproxy_protocol = true\n",
                );
            }
        }
    }

    /// As [`Site::start_agent`], before the server at an address, which is not given if `more` of the
    /// configuration has it.
    ///
    /// # Panics
    /// The agent does not start.
    pub fn start_agent_before(&mut self, upstream: &str, more: &str) {
        self.agent = None;
        let file = self.lab.dir().join("config/sidecar.toml");
        let pki = |file: &str| self.lab.dir().join("pki").join(file).display().to_string();
        let text = format!(
            "admin = \"127.0.0.1:9900\"\n[sidecar]\naddress = \"{}\"\nca = {:?}\n\
             certificate = {:?}\nkey = {:?}\nworkers = 2\n{more}",
            pool::agent(&self.lab, "s1"),
            pki("pool-ca.crt"),
            pki("s1.crt"),
            pki("s1.key"),
        );
        fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let mut arguments = vec!["agent", "--config", &file];
        if !upstream.is_empty() {
            arguments.extend(["--upstream", upstream]);
        }
        self.agent = Some(self.lab.start("s1", unlade(), &arguments));
        let serves = || Metrics::read(&self.lab, "s1").is_there();
        assert!(wait_for(PATIENCE, serves), "the agent does not serve");
        self.lab.wait_channels();
    }

    /// Ends the agent in order.
    ///
    /// # Panics
    /// It does not end.
    pub fn end_agent(&mut self) {
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
    ///
    /// # Panics
    /// As the function.
    pub fn at_client<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let within = || {
                self.lab.enter("client");
                function()
            };
            let thread = scope.spawn(within);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Connects a client that asks for a host.
    ///
    /// # Panics
    /// The balancer does not accept.
    pub fn connect(&self, host: &str, tls: bool) -> Client {
        let [v4, _] = self.lab.virtual_ips();
        let config = || tls_config(&self.lab.dir().join("pki/ca.crt"), TlsVersions::Both);
        let target = Target {
            address: (v4, if tls { 443 } else { 80 }).into(),
            tls: tls.then(|| (config(), host.to_owned())),
            receive_buffer_bytes: None,
            patience: PATIENCE,
        };
        self.at_client(|| Client::connect(&target)).unwrap()
    }

    /// Returns a counter of the agent.
    pub fn sidecar(&self, metric: &str) -> u64 {
        Metrics::read(&self.lab, "s1").get(metric)
    }

    /// The lines of the local server's log: port, address, X-Forwarded-For, address of the PROXY
    /// protocol, method, path, status.
    ///
    /// # Panics
    /// It has other lines.
    pub fn log(&self) -> Vec<[String; 7]> {
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
pub struct Fetched {
    /// The heads.
    pub heads: Vec<Vec<String>>,
    /// The bodies.
    pub bodies: Vec<Option<Vec<u8>>>,
    /// The client's address.
    pub from: String,
}

impl Fetched {
    /// Returns the values of X-Way.
    pub fn ways(&self) -> BTreeSet<&str> {
        let lines = self.heads.iter().flatten();
        lines.filter_map(|line| line.strip_prefix("x-way: ")).collect()
    }

    /// Returns the heads without the lines that depend on time and way.
    pub fn lasting_heads(&self) -> Vec<Vec<&str>> {
        let lasts = |line: &&str| {
            !["date: ", "x-way: ", "connection: "].iter().any(|begin| line.starts_with(begin))
        };
        self.heads
            .iter()
            .map(|head| head.iter().map(String::as_str).filter(lasts).collect())
            .collect()
    }
}

/// Fetches all paths by one run of curl, from a node.
///
/// # Panics
/// curl fails, or a response is lacking.
pub fn fetch(lab: &Lab, node: &str, base: &str, options: &[&str]) -> Fetched {
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
