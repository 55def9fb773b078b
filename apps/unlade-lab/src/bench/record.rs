//! Results: one JSON object a line, with everything needed to compare and to repeat.

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// One line of a result file.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Name of the experiment.
    pub bench: &'static str,
    /// The fixed parameters.
    pub case: Map<String, Value>,
    /// `offload`, the name of a baseline, or `ratio`.
    pub mode: String,
    /// The figures; units are the last part of their names.
    pub metrics: Map<String, Value>,
    pub seed: u64,
    pub host: Value,
}

/// Fixed parameters and figures of lines of mode `ratio`.
pub type Ratios = Vec<(Map<String, Value>, Map<String, Value>)>;

/// Where results go.
#[derive(Debug)]
pub struct Sink {
    file: Option<File>,
    host: Value,
    bench: &'static str,
    seed: u64,
    ratios: Ratios,
}

impl Sink {
    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Results of `bench`, to `file` if given.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn new(bench: &'static str, file: Option<&Path>, seed: u64) -> Result<Sink> {
        let file = file
            .map(|path| File::create(path).with_context(|| format!("creating {}", path.display())))
            .transpose()?;
        Ok(Sink { file, host: host(), bench, seed, ratios: Vec::new() })
    }

    /// The lines of mode `ratio` that were written.
    pub fn ratios(&self) -> &Ratios {
        &self.ratios
    }

    /// Writes one line at once, so that an interrupted run keeps what it has.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(
        &mut self,
        case: Map<String, Value>,
        mode: &str,
        metrics: Map<String, Value>,
    ) -> Result<()> {
        if mode == "ratio" {
            self.ratios.push((case.clone(), metrics.clone()));
        }
        let record = Record {
            bench: self.bench,
            case,
            mode: mode.to_owned(),
            metrics,
            seed: self.seed,
            host: self.host.clone(),
        };
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&record)? + "\n";
            file.write_all(line.as_bytes()).context("writing results")?;
        }
        Ok(())
    }
}

/// The machine and the program.
fn host() -> Value {
    let field = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kib = memory.split_ascii_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    serde_json::json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": kernel.trim(),
        "memory_bytes": kib.unwrap_or(0) * 1024,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// Reads result files; lines that are no results are refused with their place.
///
/// # Errors
/// A file cannot be read or a line is not a JSON object.
pub fn read(files: &[std::path::PathBuf]) -> Result<Vec<Value>> {
    let mut records = Vec::new();
    for path in files {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        for (number, line) in (1..).zip(text.lines()) {
            let value: Value = serde_json::from_str(line)
                .with_context(|| format!("{}:{number} is no result", path.display()))?;
            records.push(value);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.jsonl");
        let mut sink = Sink::new("x", Some(&file), 7).unwrap();
        let map = |key: &str, value: u64| Map::from_iter([(key.to_owned(), value.into())]);
        sink.write(map("object_bytes", 4096), "offload", map("requests", 3)).unwrap();
        sink.write(Map::new(), "ratio", Map::new()).unwrap();
        assert_eq!(sink.ratios().len(), 1);
        let read_back = read(std::slice::from_ref(&file)).unwrap();
        assert_eq!(read_back.len(), 2);
        assert_eq!(read_back[0]["case"]["object_bytes"], 4096);
        assert_eq!(read_back[0]["seed"], 7);
        assert!(read_back[0]["host"]["cpus"].as_u64().unwrap() > 0);
        fs::write(&file, "{}\nnot json\n").unwrap();
        assert!(read(&[file]).unwrap_err().to_string().contains(":2"));
    }
}
