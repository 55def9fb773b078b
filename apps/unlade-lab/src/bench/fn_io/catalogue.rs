//! The compared cases: twelve functions, and six ways of giving them their objects.

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

/// Which half of the mix a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// Outside boto3 it does next to nothing.
    Io,
    /// It computes.
    Compute,
}

impl Half {
    pub fn name(self) -> &'static str {
        match self {
            Half::Io => "io",
            Half::Compute => "compute",
        }
    }
}

/// A function of `workloads/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its directory.
    pub name: &'static str,
    pub half: Half,
    /// Modules it imports beside boto3 and itself: those that a zygote of the baseline has imported.
    pub modules: &'static [&'static str],
}

const fn io(name: &'static str, modules: &'static [&'static str]) -> Workload {
    Workload { name, half: Half::Io, modules }
}

const fn compute(name: &'static str, modules: &'static [&'static str]) -> Workload {
    Workload { name, half: Half::Compute, modules }
}

/// The mix; each function is as frequent as the others.
pub const WORKLOADS: [Workload; 12] = [
    io("template", &["json", "urllib.parse", "jinja2"]),
    io("lr-serving", &["io", "json", "urllib.parse", "numpy"]),
    io("aes", &["urllib.parse", "cryptography.hazmat.primitives.ciphers.aead"]),
    io("reduce", &["json", "collections", "urllib.parse"]),
    io("json-transform", &["json", "urllib.parse"]),
    io("log-filter", &["urllib.parse"]),
    compute("image-resize", &["io", "urllib.parse", "PIL.Image", "PIL.JpegImagePlugin"]),
    compute("thumbnails", &["io", "urllib.parse", "PIL.Image", "PIL.JpegImagePlugin"]),
    compute("map", &["json", "re", "collections", "urllib.parse"]),
    compute("cnn", &["io", "json", "urllib.parse", "numpy", "numpy.lib.stride_tricks"]),
    compute("stacking", &["io", "json", "urllib.parse", "numpy"]),
    compute("compression", &["gzip", "urllib.parse"]),
];

/// The workload of a directory.
///
/// # Errors
/// There is none of that name.
pub fn workload(name: &str) -> Result<&'static Workload> {
    let found = WORKLOADS.iter().find(|workload| workload.name == name);
    found.with_context(|| format!("`{name}` is no workload"))
}

/// The path between a function and its objects, and the modules its template has imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// boto3 in the instance; the zygote has imported what the function needs beside it.
    Stock,
    /// boto3 in the instance; the zygote has imported it, and the handler.
    StockPreimported,
    /// As before; the connections of the instance are the host's.
    Tcp,
    /// The SDK is the host's.
    Sdk,
    /// And inputs are fetched ahead.
    Prefetch,
    /// And outputs are written back.
    Offload,
}

impl Mode {
    pub const ALL: [Mode; 6] =
        [Mode::Stock, Mode::StockPreimported, Mode::Tcp, Mode::Sdk, Mode::Prefetch, Mode::Offload];

    /// The baseline of the other modes.
    pub const BASELINES: [Mode; 2] = [Mode::Stock, Mode::StockPreimported];

    /// In results, in names of functions, and as the name of its tenant.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Stock => "stock",
            Mode::StockPreimported => "stock-preimported",
            Mode::Tcp => "tcp",
            Mode::Sdk => "sdk",
            Mode::Prefetch => "prefetch",
            Mode::Offload => "offload",
        }
    }

    /// As a manifest has it.
    pub fn manifest(self) -> &'static str {
        match self {
            Mode::StockPreimported => "stock",
            other => other.name(),
        }
    }

    pub fn is_stock(self) -> bool {
        matches!(self, Mode::Stock | Mode::StockPreimported)
    }
}

/// The subject of invocations: a workload with an input.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name of its functions, before the mode.
    pub name: String,
    pub workload: &'static Workload,
    /// Of all objects that it reads.
    pub input_bytes: u64,
    pub event: Value,
    /// Bucket and key.
    pub objects: Vec<(String, String)>,
    /// Behind the key that the event names.
    pub outputs: Vec<String>,
    /// Only cold starts are measured, to see what of its prefetch is hidden.
    pub is_sized: bool,
}

impl Subject {
    /// Name of the function in a mode.
    pub fn function(&self, mode: Mode) -> String {
        format!("{}--{}", self.name, mode.name())
    }

    /// Which modes are measured.
    pub fn modes(&self) -> &'static [Mode] {
        match self.is_sized {
            true => &[Mode::Sdk, Mode::Offload],
            false => &Mode::ALL,
        }
    }

    /// The event whose outputs go to `key`, and where they will be.
    pub fn event_for(&self, key: &str) -> (Vec<u8>, Vec<(String, String)>) {
        let mut event = self.event.clone();
        event["output"]["key"] = key.into();
        let bucket = event["output"]["bucket"].as_str().unwrap_or_default().to_owned();
        let places = self.outputs.iter().map(|suffix| (bucket.clone(), format!("{key}{suffix}")));
        (event.to_string().into_bytes(), places.collect())
    }
}

/// The subjects of `inputs.json`.
///
/// # Errors
/// It is not what `workloads/inputs.py` writes.
pub fn subjects(description: &Value) -> Result<Vec<Subject>> {
    let list = |key: &str| {
        let cases = description[key].as_array().cloned();
        cases.with_context(|| format!("inputs.json has no `{key}`"))
    };
    let mut subjects = Vec::new();
    for (key, is_sized) in [("workloads", false), ("sizes", true)] {
        for case in list(key)? {
            subjects.push(subject(&case, is_sized).context("inputs.json")?);
        }
    }
    Ok(subjects)
}

fn subject(case: &Value, is_sized: bool) -> Result<Subject> {
    let workload = workload(case["name"].as_str().context("a case has no name")?)?;
    let input_bytes = case["input_bytes"].as_u64().context("a case has no input_bytes")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let object = |each: &Value| Some((text(&each["bucket"])?, text(&each["key"])?));
    let list = |key: &str| case[key].as_array().with_context(|| format!("a case has no {key}"));
    let objects = list("objects")?.iter().map(object).collect::<Option<_>>();
    let outputs = list("outputs")?.iter().map(text).collect::<Option<_>>();
    let name = match is_sized {
        true => format!("size-{input_bytes}"),
        false => workload.name.to_owned(),
    };
    Ok(Subject {
        name,
        workload,
        input_bytes,
        event: case["event"].clone(),
        objects: objects.context("an object has no bucket or key")?,
        outputs: outputs.context("an output is no text")?,
        is_sized,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn the_mix_is_what_lies_in_workloads() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/workloads");
        let found: BTreeSet<String> = std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().join("function.toml").exists())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        let listed = WORKLOADS.iter().map(|workload| workload.name.to_owned()).collect();
        assert_eq!(found, listed);
        let io = WORKLOADS.iter().filter(|workload| workload.half == Half::Io).count();
        assert_eq!(io * 2, WORKLOADS.len());
    }

    #[test]
    fn events_say_where_outputs_belong() {
        let case = json!({"name": "aes", "input_bytes": 7, "outputs": ["", "-x"],
            "objects": [{"bucket": "in", "key": "a"}],
            "event": {"Records": [], "output": {"bucket": "out", "key": "aes"}}});
        let description = json!({"workloads": [case.clone()], "sizes": [case]});
        let subjects = subjects(&description).unwrap();
        assert_eq!(subjects[1].name, "size-7");
        assert_eq!(subjects[0].function(Mode::StockPreimported), "aes--stock-preimported");
        let (event, places) = subjects[0].event_for("k/1");
        assert_eq!(places, [("out".into(), "k/1".into()), ("out".into(), "k/1-x".into())]);
        let event: Value = serde_json::from_slice(&event).unwrap();
        assert_eq!(event["output"]["key"], "k/1");
        assert!(super::subjects(&json!({"workloads": [{}], "sizes": []})).is_err());
    }
}
