//! Measures the start time and memory of sandboxed processes: `cargo build -p unlade-fn-sandbox &&
//! cargo run -p unlade-fn-sandbox --example starts -- target/debug/sandbox-launcher`
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use unlade_fn_model::isolation::{Image, Isolation, Mode, Preload};
use unlade_fn_sandbox::process::{Launcher, Process, ProcessConfig};

const STARTS: usize = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("the launcher's path is missing")?;
    let code = tempfile::tempdir()?;
    std::fs::set_permissions(code.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    std::fs::write(
        code.path().join("app.py"),
        "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context): return event\n",
    )?;
    for (spares, pause_ms) in [(0, 0), (2, 0), (2, 5)] {
        let config = ProcessConfig { spares, ..ProcessConfig::default() };
        let launcher = Launcher { program: program.clone().into(), arguments: Vec::new() };
        let process = Process::new(config, launcher);
        let image = image(code.path());
        let begun = Instant::now();
        let template = process.prepare(&image).await?;
        let prepared = begun.elapsed();
        let (mut times, mut kept) = (Vec::new(), Vec::new());
        for number in 0..STARTS {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            let begun = Instant::now();
            let started = template.start(&format!("i{number}")).await?;
            times.push(begun.elapsed());
            if kept.len() < 20 {
                kept.push(started);
            }
        }
        times.sort_unstable();
        let mut private: Vec<u64> = Vec::new();
        for started in &kept {
            private.push(started.instance.usage()?.private_bytes >> 10);
        }
        private.sort_unstable();
        let pss = kept[0].instance.usage()?.pss_bytes >> 10;
        let whole = template.usage()?;
        println!(
            "spares {spares}, pause {pause_ms} ms: template after {prepared:.0?}; start to HELLO p10 {:.2?}, p50 \
             {:.2?}, p99 {:.2?}; private {} KiB, pss {pss} KiB; template private {} KiB, pss {} KiB",
            times[STARTS / 10],
            times[STARTS / 2],
            times[STARTS * 99 / 100],
            private[private.len() / 2],
            whole.private_bytes >> 10,
            whole.pss_bytes >> 10,
        );
    }
    Ok(())
}

fn image(code: &Path) -> Image {
    Image {
        function: "starts".to_owned(),
        handler: "app.handler".to_owned(),
        code: code.to_owned(),
        guest: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guest/python"),
        python: "python3".into(),
        packages: Vec::new(),
        environment: Default::default(),
        memory_bytes: 128 << 20,
        scratch_bytes: 64 << 20,
        mode: Mode::Offload,
        preload: Preload { handler: true, modules: Vec::new() },
        relay: None,
        network: false,
        region_bytes: 0,
    }
}
