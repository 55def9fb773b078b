//! Start times and memory of instances, without a gateway: sandboxed processes by the number of roots
//! that are made in advance; virtual machines restored from a snapshot, beside booted ones.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use tokio::io::Interest;
use tokio::net::UnixStream;
use unlade_command::output::line;
use unlade_command::program;
use unlade_fn_model::isolation::{Image, Isolation, Mode, Preload, Runtime, Started};
use unlade_fn_sandbox::process::{Launcher, Process, ProcessConfig};
use unlade_fn_sandbox::qemu::{Accelerator, Qemu, QemuConfig};

use super::super::record::Sink;
use super::backend::Backend;
use super::figures::{middle, percentile};

/// The function imports what most functions do.
const CODE: &str =
    "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context): return event\n";
/// Roots that are made in advance, and the pause before each start, milliseconds.
const CASES: [(u32, u64); 3] = [(0, 0), (2, 0), (2, 5)];
/// Instances that live until the end of a case: their memory is looked at.
const KEPT: usize = 20;
const MIB: f64 = (1 << 20) as f64;

/// Measures `rounds` starts of each kind, as root. `guest` is the directory of the guest's package.
///
/// # Errors
/// An instance does not start.
pub fn run(backend: Backend, guest: &Path, rounds: usize, sink: &mut Sink) -> Result<()> {
    let code = Code::new()?;
    let image = image(&code.0, guest, backend);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match backend {
            Backend::Process => processes(&image, rounds, sink).await,
            Backend::Qemu => machines(&image, rounds, sink).await,
        }
    })
}

/// The directory of the function; removed afterwards.
struct Code(PathBuf);

impl Code {
    fn new() -> Result<Code> {
        let path = std::env::temp_dir().join(format!("unlade-starts-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let code = Code(path);
        // Instances run as other users.
        fs::set_permissions(&code.0, fs::Permissions::from_mode(0o755))?;
        fs::write(code.0.join("app.py"), CODE)?;
        Ok(code)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn image(code: &Path, guest: &Path, backend: Backend) -> Image {
    let region_bytes = if backend == Backend::Qemu { 16 << 20 } else { 0 };
    Image {
        function: "starts".to_owned(),
        handler: "app.handler".to_owned(),
        code: code.to_owned(),
        guest: guest.to_owned(),
        runtime: Runtime::Python,
        python: "/usr/bin/python3".into(),
        node: "/usr/bin/node".into(),
        packages: Vec::new(),
        environment: BTreeMap::new(),
        memory_bytes: 128 << 20,
        scratch_bytes: 16 << 20,
        mode: Mode::Offload,
        preload: Preload { handler: true, modules: Vec::new() },
        relay: None,
        network: false,
        region_bytes,
    }
}

async fn processes(image: &Image, starts: usize, sink: &mut Sink) -> Result<()> {
    for (spares, pause_ms) in CASES {
        let config = ProcessConfig { spares, ..ProcessConfig::default() };
        let arguments = ["fn", "sandbox"].map(str::to_owned).to_vec();
        let launcher =
            Launcher { program: program::find(program::UNLADE)?, arguments, init: Vec::new() };
        let process = Process::new(config, launcher);
        let begun = Instant::now();
        let template = process.prepare(image).await?;
        let prepared_ms = begun.elapsed().as_secs_f64() * 1e3;
        let (mut start_us, mut kept) = (Vec::new(), Vec::new());
        for number in 0..starts {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            let begun = Instant::now();
            let started = template.start(&format!("i{number}")).await?;
            start_us.push(begun.elapsed().as_secs_f64() * 1e6);
            if kept.len() < KEPT {
                kept.push(started);
            }
        }
        let (private_mib, pss_mib) = memory(&kept)?;
        let [p10, p50, p99] = [10.0, 50.0, 99.0].map(|at| percentile(&mut start_us, at));
        let whole = template.usage()?;
        let metrics = json!({
            "template_ms": prepared_ms, "start_p10_us": p10, "start_p50_us": p50,
            "start_p99_us": p99, "instance_private_mib": private_mib, "instance_pss_mib": pss_mib,
            "template_private_mib": whole.private_bytes as f64 / MIB,
            "template_pss_mib": whole.pss_bytes as f64 / MIB,
        });
        let case = json!({ "what": "start", "isolation": "process", "spares": spares,
            "pause_ms": pause_ms });
        tell(case, if spares == 0 { "no-spares" } else { "spares" }, &metrics, sink)?;
    }
    Ok(())
}

async fn machines(image: &Image, rounds: usize, sink: &mut Sink) -> Result<()> {
    let booting = Qemu::new(QemuConfig { snapshot: false, ..QemuConfig::default() });
    let restoring = Qemu::new(QemuConfig::default());
    let begun = Instant::now();
    let restored = restoring.prepare(image).await?;
    let prepared_ms = begun.elapsed().as_secs_f64() * 1e3;
    let snapshot_mib = restored.usage()?.pss_bytes as f64 / MIB;
    let booted = booting.prepare(image).await?;
    let accelerator = restoring.accelerator().map_or("none", Accelerator::name);
    let mut times: [(Vec<f64>, Vec<f64>); 2] = Default::default();
    let mut kept = Vec::new();
    for round in 0..rounds {
        for (at, template) in [&booted, &restored].into_iter().enumerate() {
            let begun = Instant::now();
            let started = template.start(&format!("m{at}-{round}")).await?;
            times[at].0.push(begun.elapsed().as_secs_f64() * 1e3);
            greeted(&started).await?;
            times[at].1.push(begun.elapsed().as_secs_f64() * 1e3);
            // Of the booted machines only the time counts.
            if at == 1 {
                kept.push(started);
            }
        }
    }
    let case = json!({ "what": "start", "isolation": "qemu", "accelerator": accelerator });
    let [(boot_ms, boot_greet_ms), (restore_ms, restore_greet_ms)] = times;
    let metrics =
        json!({ "start_p50_ms": middle(boot_ms), "greeting_p50_ms": middle(boot_greet_ms) });
    tell(case.clone(), "boot", &metrics, sink)?;
    let (private_mib, pss_mib) = memory(&kept)?;
    let metrics = json!({
        "template_ms": prepared_ms, "start_p50_ms": middle(restore_ms),
        "greeting_p50_ms": middle(restore_greet_ms), "instance_private_mib": private_mib,
        "instance_pss_mib": pss_mib, "snapshot_mib": snapshot_mib,
        "snapshot_unmapped_mib": restored.usage()?.pss_bytes as f64 / MIB,
    });
    tell(case, "restore", &metrics, sink)
}

/// Waits for the greeting; the instance stays.
async fn greeted(started: &Started) -> Result<()> {
    let socket = std::os::unix::net::UnixStream::from(started.channel.try_clone()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)?.ready(Interest::READABLE).await?;
    Ok(())
}

/// Medians of private memory and PSS of instances that live at the same time, MiB.
fn memory(kept: &[Started]) -> Result<(Option<f64>, Option<f64>)> {
    let (mut private_mib, mut pss_mib) = (Vec::new(), Vec::new());
    for started in kept {
        let usage = started.instance.usage()?;
        private_mib.push(usage.private_bytes as f64 / MIB);
        pss_mib.push(usage.pss_bytes as f64 / MIB);
    }
    Ok((middle(private_mib), middle(pss_mib)))
}

/// Writes and prints one case.
fn tell(case: Value, mode: &str, metrics: &Value, sink: &mut Sink) -> Result<()> {
    let map =
        |value: &Value| -> Map<String, Value> { value.as_object().cloned().unwrap_or_default() };
    let words = |map: &Map<String, Value>| {
        let word = |(key, value): (&String, &Value)| match value.as_f64() {
            Some(number) if value.is_f64() => format!("{key}={number:.2}"),
            _ => format!("{key}={value}"),
        };
        map.iter().map(word).collect::<Vec<String>>().join(" ")
    };
    let (case, metrics) = (map(&case), map(metrics));
    line(format_args!("{mode:<10} {}: {}", words(&case), words(&metrics)))?;
    sink.write(case, mode, metrics)
}
