//! Another way of having many functions on a host: one of them as WebAssembly, beside ours. Its
//! instances have memory and code only; their host gets and puts the objects with boto3.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::catalogue::{Mode, Subject};
use super::figures::middle;
use super::measure::{Field, Rounds, Window, window};
use super::node::Access;
use super::place::Place;
use crate::lab::process::cpu_ns;

/// The function that exists twice.
pub const FUNCTION: &str = "log-filter";
/// Instances that are left alive, to see what each one has.
const KEPT: usize = 16;

/// Measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub latency_p50_us: Option<f64>,
    /// Of the host's process: its boto3 is in it.
    pub cpu_us: Option<f64>,
    /// Of one more instance.
    pub instance_bytes: Option<f64>,
    /// Ours to its, of the same rounds.
    pub latency_ratio: Option<f64>,
    pub cpu_ratio: Option<f64>,
}

/// The process that has the instances; killed when dropped.
struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    fn start(place: &Place, access: &Access) -> Result<Host> {
        let mut child = Command::new(place.python())
            .arg(place.workloads().join("wasm/serve.py"))
            .env("AWS_ENDPOINT_URL_S3", &access.endpoint)
            .env("AWS_ACCESS_KEY_ID", &access.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", &access.secret_access_key)
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("no way to talk to it") };
        let mut host = Host { child, input, output: BufReader::new(output) };
        host.hear()?;
        Ok(host)
    }

    fn hear(&mut self) -> Result<()> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("it has ended; see above");
        }
        Ok(())
    }

    fn invoke(&mut self, event: &[u8]) -> Result<Duration> {
        let begin = Instant::now();
        self.input.write_all(&[event, b"\n"].concat())?;
        self.input.flush()?;
        self.hear()?;
        Ok(begin.elapsed())
    }

    fn private_bytes(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let kib = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
        text.lines().filter(|line| line.starts_with("Private_")).filter_map(kib).sum::<u64>() * 1024
    }
}

/// Measures, in rounds: its invocations, each in an instance of its own, then ours.
///
/// # Errors
/// It does not start, or an output is wrong.
pub fn measure(
    field: &mut Field<'_>,
    place: &Place,
    subject: &Subject,
    effort: Rounds,
) -> Result<Seen> {
    let mut host = Host::start(place, &field.node.access()?).context("WebAssembly")?;
    let mut caller = field.node.caller();
    let (mut windows, mut latencies_us, mut cpus_us) = (Vec::new(), Vec::new(), Vec::new());
    call(&mut host, field, subject, "wasm/first")?;
    for round in 0..effort.rounds {
        let before = cpu_ns(host.child.id());
        let mut took_us = Vec::new();
        let mut written = Vec::new();
        for number in 0..effort.warm {
            let (event, names) = subject.event_for(&format!("wasm/{round}/{number}"));
            took_us.push(host.invoke(&event)?.as_nanos() as f64 / 1e3);
            written.push(names);
        }
        let used = cpu_ns(host.child.id()).saturating_sub(before);
        cpus_us.push(used as f64 / 1e3 / effort.warm as f64);
        latencies_us.extend(middle(took_us));
        for names in written {
            field.expected.compare(field.objects, subject, &names)?;
        }
        // Rounds of its own: keys of earlier ones are another experiment's.
        let number = effort.rounds + round;
        windows.push(window(field, &mut caller, subject, Mode::Offload, effort.warm, number)?);
    }
    let own = |figure: &dyn Fn(&Window) -> Option<f64>, theirs: &[f64]| {
        let pairs = windows.iter().zip(theirs);
        middle(pairs.filter_map(|(window, theirs)| Some(figure(window)? / theirs.max(1e-9))))
    };
    let warm = |window: &Window| middle(window.warm.iter().map(|invoked| invoked.took_us));
    Ok(Seen {
        latency_ratio: own(&warm, &latencies_us),
        cpu_ratio: own(&|window| window.cpu.map(|cpu| cpu.node_us()), &cpus_us),
        latency_p50_us: middle(latencies_us),
        cpu_us: middle(cpus_us),
        instance_bytes: Some(instance_bytes(&mut host, field, subject)?),
    })
}

fn call(host: &mut Host, field: &mut Field<'_>, subject: &Subject, key: &str) -> Result<()> {
    let (event, names) = subject.event_for(key);
    host.invoke(&event)?;
    field.expected.compare(field.objects, subject, &names)
}

/// Memory of one more instance that stays alive.
fn instance_bytes(host: &mut Host, field: &mut Field<'_>, subject: &Subject) -> Result<f64> {
    let mut kept = subject.clone();
    kept.event["keep"] = Value::Bool(true);
    call(host, field, &kept, "wasm/kept/first")?;
    let before = host.private_bytes();
    for number in 0..KEPT {
        call(host, field, &kept, &format!("wasm/kept/{number}"))?;
    }
    Ok(host.private_bytes().saturating_sub(before) as f64 / KEPT as f64)
}
