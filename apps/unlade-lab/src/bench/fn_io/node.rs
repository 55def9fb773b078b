//! A node: a gateway with its workers, its store, its functions.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unlade_command::program;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use unlade_fn_model::isolation::Usage;

use super::catalogue::Mode;
use super::http::{Answer, Caller};
use super::place::{Packages, Place};
use crate::lab::process::{cpu_ns, log_tail};

/// How long a drain may take.
const END_WAIT: Duration = Duration::from_secs(40);

/// A gateway; it ends when this does.
pub struct Node {
    child: Child,
    /// Where callers connect.
    pub address: SocketAddr,
    state: PathBuf,
    log: PathBuf,
}

/// How the store is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub endpoint: String,
    pub access_key_id: String,
    pub secret_access_key: String,
}

/// The state that a gateway reports, as far as it is used here.
#[derive(Debug, Deserialize)]
pub struct State {
    pub gateway_pid: u32,
    pub workers: Vec<Worker>,
    pub templates: Vec<TemplateState>,
    pub instances: Vec<InstanceState>,
}

/// A tenant's worker.
#[derive(Debug, Deserialize)]
pub struct Worker {
    pub tenant: String,
    pub pid: Option<u32>,
}

/// Contents of a template.
#[derive(Debug, Deserialize)]
pub struct TemplateState {
    pub function: String,
    pub usage: Usage,
}

/// An instance.
#[derive(Debug, Deserialize)]
pub struct InstanceState {
    pub id: u64,
    pub function: String,
    pub usage: Option<Usage>,
}

impl State {
    /// The process of a mode's worker.
    pub fn worker_pid(&self, mode: Mode) -> Option<u32> {
        self.workers.iter().find(|worker| worker.tenant == mode.name()).and_then(|it| it.pid)
    }

    /// The instances of a function.
    pub fn instances_of<'a>(
        &'a self,
        function: &'a str,
    ) -> impl Iterator<Item = &'a InstanceState> {
        self.instances.iter().filter(move |instance| instance.function == function)
    }

    /// Returns true if its function is in this mode.
    fn is_of(function: &str, mode: Mode) -> bool {
        function.rsplit_once("--").is_some_and(|(_, name)| name == mode.name())
    }

    /// Memory of everything that a mode needs, with its share of what is shared: instances,
    /// templates, the gateway, and the worker, which stock functions do not need.
    pub fn pss_bytes(&self, mode: Mode) -> u64 {
        let instances = self.instances.iter().filter(|it| State::is_of(&it.function, mode));
        let instances = instances.filter_map(|it| it.usage).map(|usage| usage.pss_bytes);
        let templates = self.templates.iter().filter(|it| State::is_of(&it.function, mode));
        let templates = templates.map(|it| it.usage.pss_bytes);
        let worker = self.worker_pid(mode).filter(|_| !mode.is_stock());
        let processes = worker.into_iter().chain([self.gateway_pid]).map(pss_bytes);
        instances.chain(templates).chain(processes).sum()
    }
}

/// Memory of a process, with its share of what is shared; 0 where it has gone.
pub fn pss_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Processor time of what serves instances: the gateway, and a mode's worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTime {
    pub gateway_ns: u64,
    pub worker_ns: u64,
}

impl HostTime {
    pub fn now(state: &State, mode: Mode) -> HostTime {
        HostTime {
            gateway_ns: cpu_ns(state.gateway_pid),
            worker_ns: state.worker_pid(mode).map_or(0, cpu_ns),
        }
    }

    pub fn since(self, before: HostTime) -> HostTime {
        HostTime {
            gateway_ns: self.gateway_ns.saturating_sub(before.gateway_ns),
            worker_ns: self.worker_ns.saturating_sub(before.worker_ns),
        }
    }
}

impl Node {
    /// Starts a gateway over a directory of functions, with a tenant a mode.
    ///
    /// # Errors
    /// It does not start; with what it said.
    pub fn start(home: &Path, functions: &Path, place: &Place) -> Result<Node> {
        let state = home.join("state");
        let text = settings_text(&state, functions, &place.packages);
        Node::spawn(home, &state, &text)
    }

    /// Starts a gateway with a configuration.
    ///
    /// # Errors
    /// It does not start; with what it said.
    pub fn spawn(home: &Path, state: &Path, text: &str) -> Result<Node> {
        let config = home.join("fn.toml");
        fs::write(&config, text)?;
        let log = home.join("log");
        let file = fs::File::create(&log)?;
        let executable = program::find(program::UNLADE)?;
        let mut child = Command::new(executable)
            .args(["fn", "serve", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .context("starting the gateway")?;
        let stdout = child.stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(stdout).take(1024).read_line(&mut line)?;
        let address = line.trim().strip_prefix("http://").and_then(|text| text.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the gateway does not start; its log says:\n{}", log_tail(&log));
        };
        Ok(Node { child, address, state: state.to_owned(), log })
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        log_tail(&self.log)
    }

    /// How its store is reached.
    ///
    /// # Errors
    /// It has no store of its own.
    pub fn access(&self) -> Result<Access> {
        let path = self.state.join("env");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        access(&text).with_context(|| format!("{} does not name the store", path.display()))
    }

    /// A caller.
    pub fn caller(&self) -> Caller {
        Caller::new(self.address)
    }

    /// The state that it reports.
    ///
    /// # Errors
    /// It does not answer.
    pub fn state(&self, caller: &mut Caller) -> Result<State> {
        let answer = caller.ask("GET", "/unlade/v1/state", b"")?;
        serde_json::from_slice(&answer.body).context("the gateway's state")
    }

    /// Ends it.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(mut self) -> Result<()> {
        match self.stop() {
            true => Ok(()),
            false => bail!("the gateway did not end in time; its log says:\n{}", self.said()),
        }
    }

    fn stop(&mut self) -> bool {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < END_WAIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        false
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

fn settings_text(state: &Path, functions: &Path, packages: &Packages) -> String {
    let quoted = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let mut text = format!(
        "listen = \"127.0.0.1:0\"\nstore_listen = \"127.0.0.1:0\"\nstate = {}\nfunctions = {}\npython = {}\n\
         authentication = \"off\"\ncheck_imports = false\n\
         packages = [{}]\nmemory_max = \"1TiB\"\ninstances_max = 10000\n[log]\nlevel = \"warn\"\n",
        quoted(state),
        quoted(functions),
        quoted(&packages.interpreter),
        quoted(&packages.directory),
    );
    for mode in Mode::ALL {
        text.push_str(&format!("[tenant.{}]\nmodes = [{:?}]\n", mode.name(), mode.manifest()));
    }
    text
}

/// Contents of the file `env` in a gateway's state.
fn access(text: &str) -> Option<Access> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    let variables: BTreeMap<&str, &str> = lines.collect();
    let get = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    Some(Access {
        endpoint: get("AWS_ENDPOINT_URL_S3")?,
        access_key_id: get("AWS_ACCESS_KEY_ID")?,
        secret_access_key: get("AWS_SECRET_ACCESS_KEY")?,
    })
}

/// An invocation's answer, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Invoked {
    /// As the caller sees it.
    pub took_us: f64,
    /// `cold`, `restored`, `warm`.
    pub origin: String,
    /// Microseconds by name.
    pub timings: BTreeMap<String, f64>,
}

/// Invokes a function.
///
/// # Errors
/// It fails; with what it said.
pub fn invoke(caller: &mut Caller, function: &str, event: &[u8]) -> Result<Invoked> {
    answered(caller, function, event).map(|(invoked, _)| invoked)
}

/// Invokes a function, and returns its answer's bytes as well.
///
/// # Errors
/// It fails; with what it said.
pub fn answered(caller: &mut Caller, function: &str, event: &[u8]) -> Result<(Invoked, Vec<u8>)> {
    let path = format!("/2015-03-31/functions/{function}/invocations");
    let answer = caller.ask("POST", &path, event)?;
    let invoked = understood(&answer).with_context(|| function.to_owned())?;
    Ok((invoked, answer.body))
}

fn understood(answer: &Answer) -> Result<Invoked> {
    let text = String::from_utf8_lossy(&answer.body);
    let failed = answer.field("x-amz-function-error").is_some();
    if answer.status != 200 || failed {
        bail!("status {}: {}", answer.status, text.chars().take(2000).collect::<String>());
    }
    let timings = answer.field("x-unlade-timings").unwrap_or_default();
    let timings = timings.split(',').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    Ok(Invoked {
        took_us: answer.took.as_nanos() as f64 / 1e3,
        origin: answer.field("x-unlade-origin").unwrap_or_default().to_owned(),
        timings: timings.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        let fields = [
            ("X-Unlade-Origin", "restored"),
            ("x-unlade-timings", "queued_us=5100,handler_us=20,odd"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let took = Duration::from_micros(7);
        let mut answer = Answer { status: 200, fields, body: b"{}".to_vec(), took };
        let invoked = understood(&answer).unwrap();
        assert_eq!((invoked.origin.as_str(), invoked.took_us), ("restored", 7.0));
        assert_eq!(invoked.timings["queued_us"], 5100.0);
        assert_eq!(invoked.timings.len(), 2);
        answer.fields.push(("X-Amz-Function-Error".into(), "Unhandled".into()));
        answer.body = b"{\"errorMessage\": \"no\"}".to_vec();
        assert!(understood(&answer).unwrap_err().to_string().contains("no"));
    }

    #[test]
    fn memory_is_charged_to_whose_it_is() {
        let usage = |bytes: u64| {
            serde_json::json!({"pss_bytes": bytes, "private_bytes": 1,
                "cpu": {"secs": 0, "nanos": 0}})
        };
        let state: State = serde_json::from_value(serde_json::json!({
            "gateway_pid": 0, "workers": [{"tenant": "offload", "pid": null}], "charged_bytes": 1,
            "templates": [{"function": "a--offload", "usage": usage(10)},
                {"function": "a--stock", "usage": usage(500)}],
            "instances": [
                {"id": 1, "function": "a--offload", "state": "idle", "usage": usage(3)},
                {"id": 2, "function": "a--stock", "state": "idle", "usage": usage(1000)},
                {"id": 3, "function": "a--stock-preimported", "state": "idle", "usage": null},
            ],
        }))
        .unwrap();
        assert_eq!(state.pss_bytes(Mode::Offload), 13);
        assert_eq!(state.pss_bytes(Mode::Stock), 1500);
        assert_eq!(state.pss_bytes(Mode::StockPreimported), 0);
        assert!(pss_bytes(std::process::id()) > 0);
    }

    #[test]
    fn the_store_is_found_and_the_configuration_is_one() {
        let text = "export AWS_ENDPOINT_URL_S3=http://127.0.0.1:9\nexport AWS_ACCESS_KEY_ID=a\n\
                    export AWS_SECRET_ACCESS_KEY=b\n";
        assert_eq!(access(text).unwrap().endpoint, "http://127.0.0.1:9");
        assert_eq!(access("export A=b\n"), None);
        let packages =
            Packages { python: "/v".into(), interpreter: "/y".into(), directory: "/p".into() };
        let text = settings_text(Path::new("/s"), Path::new("/f"), &packages);
        let config: unlade_fn_gateway::GatewayConfig =
            unlade_config::parse(&text, "fn.toml").unwrap();
        config.check().unwrap();
        assert_eq!(config.tenant.len(), Mode::ALL.len());
    }
}
