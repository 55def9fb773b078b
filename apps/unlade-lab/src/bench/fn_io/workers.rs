//! Memory of I/O workers: one for each tenant, beside one for all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, json};

use super::super::record::Sink;
use super::figures::middle;
use super::node::{Node, invoke, pss_bytes};
use super::place::LONG_KEEP_ALIVE;
use unlade_command::output::line;

/// How many tenants there are.
const TENANTS: [usize; 3] = [1, 4, 16];
/// As in `fn.toml`.
const WORKERS: [&str; 2] = ["per-tenant", "shared"];
/// Invocations of each tenant's function before memory is looked at.
const INVOCATIONS: usize = 20;
/// Sizes that a function reads and writes.
const OBJECT_BYTES: usize = 64 * 1024;
/// After that workers have given back what they do not need.
const REST: Duration = Duration::from_secs(3);

const CODE: &str = "import boto3\ns3 = boto3.client('s3')\n\ndef handler(event, context):\n    \
                    body = s3.get_object(Bucket='box', Key='in')['Body'].read()\n    \
                    s3.put_object(Bucket='box', Key=event['out'], Body=body)\n";

/// Memory of all workers, with their share of what is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    processes: usize,
    idle_bytes: f64,
    used_bytes: f64,
}

/// Measures and tells: a node for each number of tenants and kind of worker, `rounds` times.
///
/// # Errors
/// A gateway does not start, or a function fails.
pub fn run(rounds: usize, sink: &mut Sink) -> Result<()> {
    line("tenants  workers     processes  PSS idle MiB  PSS used MiB")?;
    for tenants in TENANTS {
        let mut seen: [Vec<Seen>; 2] = Default::default();
        for _ in 0..rounds.max(1) {
            for (kind, of) in WORKERS.iter().zip(&mut seen) {
                of.push(measure(tenants, kind)?);
            }
        }
        let mut of_kinds = Vec::new();
        for (kind, of) in WORKERS.iter().zip(&seen) {
            let seen = medians(of).context("no round")?;
            tell(tenants, kind, seen, sink)?;
            of_kinds.push(seen);
        }
        if let [own, shared] = of_kinds.as_slice() {
            ratio(tenants, *own, *shared, sink)?;
        }
    }
    Ok(())
}

/// A directory that is removed afterwards.
struct Home(PathBuf);

impl Home {
    fn new(tenants: usize, workers: &str) -> Result<Home> {
        // Names of sockets are short.
        let name = format!("unlade-w{}-{tenants}-{workers}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Home(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The median of each figure; `None` of no round.
fn medians(of: &[Seen]) -> Option<Seen> {
    Some(Seen {
        processes: of.first()?.processes,
        idle_bytes: middle(of.iter().map(|seen| seen.idle_bytes))?,
        used_bytes: middle(of.iter().map(|seen| seen.used_bytes))?,
    })
}

fn measure(tenants: usize, workers: &str) -> Result<Seen> {
    let home = Home::new(tenants, workers)?;
    let functions = home.0.join("functions");
    let names: Vec<String> = (0..tenants).map(tenant).collect();
    for name in &names {
        let directory = functions.join(name);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("app.py"), CODE)?;
        fs::write(directory.join("function.toml"), manifest(name))?;
    }
    let state = home.0.join("state");
    let bucket = state.join("objects/box");
    fs::create_dir_all(&bucket)?;
    fs::write(bucket.join("in"), vec![7; OBJECT_BYTES])?;
    let node = Node::spawn(&home.0, &state, &settings(&state, &functions, workers, &names))?;
    let mut caller = node.caller();
    let mut worker_bytes = || -> Result<(usize, f64)> {
        let state = node.state(&mut caller)?;
        let pids: BTreeSet<u32> = state.workers.iter().filter_map(|worker| worker.pid).collect();
        Ok((pids.len(), pids.iter().map(|pid| pss_bytes(*pid) as f64).sum()))
    };
    std::thread::sleep(REST);
    let (processes, idle_bytes) = worker_bytes()?;
    let mut own = node.caller();
    for round in 0..INVOCATIONS {
        for name in &names {
            let event = json!({"out": format!("{name}-{round}")}).to_string();
            invoke(&mut own, name, event.as_bytes())
                .with_context(|| format!("the gateway's log: {}", node.said()))?;
        }
    }
    std::thread::sleep(REST);
    let (_, used_bytes) = worker_bytes()?;
    node.end()?;
    Ok(Seen { processes, idle_bytes, used_bytes })
}

/// The first one is there anyway.
fn tenant(number: usize) -> String {
    match number {
        0 => "default".to_owned(),
        number => format!("tenant-{number}"),
    }
}

fn manifest(tenant: &str) -> String {
    format!(
        "handler = \"app.handler\"\ntenant = \"{tenant}\"\nkeep_alive = \"{LONG_KEEP_ALIVE}\"\n"
    )
}

fn settings(state: &Path, functions: &Path, workers: &str, tenants: &[String]) -> String {
    let quoted = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let mut text = format!(
        "listen = \"127.0.0.1:0\"\nstore_listen = \"127.0.0.1:0\"\nstate = {}\nfunctions = {}\n\
         authentication = \"off\"\ncheck_imports = false\n\
         workers = \"{workers}\"\n[log]\nlevel = \"warn\"\n",
        quoted(state),
        quoted(functions),
    );
    for name in tenants {
        text.push_str(&format!("[tenant.{name}]\n"));
    }
    text
}

fn case(tenants: usize) -> Map<String, serde_json::Value> {
    let case = [("case", json!("workers")), ("tenants", json!(tenants)), ("scope", json!("host"))];
    case.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

fn tell(tenants: usize, workers: &str, seen: Seen, sink: &mut Sink) -> Result<()> {
    let Seen { processes, idle_bytes, used_bytes } = seen;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    line(format_args!(
        "{tenants:>7}  {workers:<10}  {processes:>9}  {:>12.1}  {:>12.1}",
        mib(idle_bytes),
        mib(used_bytes)
    ))?;
    let metrics = json!({"processes": processes, "idle_pss_bytes": idle_bytes,
        "used_pss_bytes": used_bytes});
    sink.write(case(tenants), workers, metrics.as_object().cloned().unwrap_or_default())
}

fn ratio(tenants: usize, own: Seen, shared: Seen, sink: &mut Sink) -> Result<()> {
    let (idle, used) = (shared.idle_bytes / own.idle_bytes, shared.used_bytes / own.used_bytes);
    line(format_args!("{tenants:>7}  shared / per-tenant    {idle:>12.2}x {used:>12.2}x"))?;
    let mut case = case(tenants);
    case.insert("baseline".to_owned(), json!(WORKERS[0]));
    let metrics = json!({"idle_memory_ratio": idle, "memory_ratio": used});
    sink.write(case, "ratio", metrics.as_object().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_manifests_are_what_they_should_be() {
        let names: Vec<String> = (0..3).map(tenant).collect();
        let text = settings(Path::new("/s"), Path::new("/f"), WORKERS[1], &names);
        let config: unlade_fn_gateway::GatewayConfig =
            unlade_config::parse(&text, "fn.toml").unwrap();
        config.check().unwrap();
        assert_eq!(config.workers, unlade_fn_gateway::config::Workers::Shared);
        assert!(names.iter().all(|name| config.tenant.contains_key(name)));
        let made: unlade_fn_model::Manifest =
            unlade_config::parse(&manifest(&names[1]), "function.toml").unwrap();
        made.check().unwrap();
        assert_eq!(made.tenant.as_deref(), Some("tenant-1"));
    }

    #[test]
    fn the_middle_round_is_told() {
        let seen = |bytes: f64| Seen { processes: 2, idle_bytes: bytes, used_bytes: bytes * 2.0 };
        let all = [seen(3.0), seen(1.0), seen(2.0)];
        assert_eq!(medians(&all), Some(seen(2.0)));
        assert_eq!(medians(&[]), None);
    }
}
