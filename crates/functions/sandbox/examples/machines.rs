//! Measures virtual machines: the time from the start of QEMU to the instance's greeting, restored
//! from a snapshot and booted, and the private memory of an instance.
//! ```sh
//! cargo run --release -p unlade-fn-sandbox --example machines -- [ROUNDS]
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::UnixStream;
use unlade_fn_model::isolation::{Image, Isolation, Mode, Preload, Started};
use unlade_fn_sandbox::qemu::{Accelerator, Qemu, QemuConfig};

const SOURCE: &str = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context): pass\n";
const MIB: f64 = (1 << 20) as f64;

fn image(code: PathBuf) -> Image {
    Image {
        function: "measured".to_owned(),
        handler: "app.handler".to_owned(),
        code,
        guest: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guest/python"),
        python: PathBuf::from("/usr/bin/python3"),
        packages: Vec::new(),
        environment: BTreeMap::new(),
        memory_bytes: 128 << 20,
        scratch_bytes: 16 << 20,
        mode: Mode::Offload,
        preload: Preload { handler: true, modules: Vec::new() },
        relay: None,
        network: false,
        region_bytes: 16 << 20,
    }
}

/// Waits for the greeting; the instance stays.
async fn greeted(started: &Started) -> Result<(), Box<dyn Error>> {
    let socket = std::os::unix::net::UnixStream::from(started.channel.try_clone()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)?.ready(Interest::READABLE).await?;
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn measure(rounds: usize) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("app.py"), SOURCE)?;
    let image = image(dir.path().to_owned());
    let booting = Qemu::new(QemuConfig { snapshot: false, ..QemuConfig::default() });
    let restoring = Qemu::new(QemuConfig::default());
    let begin = Instant::now();
    let restored = restoring.prepare(&image).await?;
    println!("prepare: {:.2} s", begin.elapsed().as_secs_f64());
    let held = restored.usage()?;
    println!("snapshot: {:.1} MiB", held.pss_bytes as f64 / MIB);
    let cold = booting.prepare(&image).await?;
    let label = restoring.accelerator().map_or("?", Accelerator::name);
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut living = Vec::new();
    for round in 0..rounds {
        for (name, template) in [("cold", &cold), ("restored", &restored)] {
            let begin = Instant::now();
            let started = template.start(&format!("{name}-{round}")).await?;
            let running = begin.elapsed();
            greeted(&started).await?;
            let first = if name == "cold" { "cold: runs" } else { "restored: runs" };
            times.entry(first).or_default().push(running);
            let greets = if name == "cold" { "cold: greets" } else { "restored: greets" };
            times.entry(greets).or_default().push(begin.elapsed());
            if name == "restored" {
                living.push(started);
            }
        }
    }
    for (name, times) in &mut times {
        println!("qemu ({label}) {name}: {:.0} ms", median(times).as_secs_f64() * 1000.0);
    }
    for started in &living {
        let usage = started.instance.usage()?;
        let (pss, own) = (usage.pss_bytes as f64 / MIB, usage.private_bytes as f64 / MIB);
        println!("qemu ({label}) instance: private {own:.1} MiB, PSS {pss:.1} MiB");
    }
    println!("snapshot, not mapped: {:.1} MiB", restored.usage()?.pss_bytes as f64 / MIB);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, measure(rounds))
}
