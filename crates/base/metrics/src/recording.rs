//! A record of the samples that tests drive above zero, in debug builds only.
//!
//! A process of a debug build appends its program's name and each sample above zero, one a line, to
//! the file that the environment variable `UNLADE_METRICS_SEEN` names: of every counter and gauge
//! of a meter when it leaves zero, of every text that the process renders, and of every meter and
//! set when it is dropped. `cargo run -p xtask -- driven FILE` compares the record with the list of
//! all metrics and labels. A release build does nothing.

/// The environment variable that names the file.
#[cfg(debug_assertions)]
const VARIABLE: &str = "UNLADE_METRICS_SEEN";

/// Appends the samples of an OpenMetrics text whose values are above zero, each once a process.
#[cfg(debug_assertions)]
pub(crate) fn record(text: &str) {
    use std::collections::HashSet;
    use std::io::Write as _;
    use std::sync::{Mutex, PoisonError};

    // The samples that this process has recorded, and the lines that it could not write yet: a
    // process without free descriptors writes them at a later call.
    static SEEN: Mutex<Option<(HashSet<String>, String)>> = Mutex::new(None);

    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (seen, unwritten) = seen.get_or_insert_default();
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().display().to_string();
    for sample in samples_above_zero(text) {
        if seen.insert(sample.to_owned()) {
            unwritten.push_str(&format!("{program} {sample}\n"));
        }
    }
    if unwritten.is_empty() {
        return;
    }
    // One write for each call: lines of several processes do not mix. A process without access to
    // the file records nothing, and the check reports its samples as missing.
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path)
        && file.write_all(unwritten.as_bytes()).is_ok()
    {
        unwritten.clear();
    }
}

/// A release build keeps no record.
#[cfg(not(debug_assertions))]
pub(crate) fn record(_text: &str) {}

/// The samples (name and labels) of an OpenMetrics text whose values are above zero.
#[cfg(debug_assertions)]
fn samples_above_zero(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (sample, value) = line.rsplit_once(' ')?;
        value.parse::<f64>().is_ok_and(|value| value > 0.0).then_some(sample)
    })
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::samples_above_zero;

    #[test]
    fn samples_with_a_value_are_found() {
        let text =
            "# TYPE a counter\na_total{b=\"c d\"} 3\na_total{b=\"e\"} 0\nf 0.5\nf -1\n# EOF\n";
        let found: Vec<&str> = samples_above_zero(text).collect();
        assert_eq!(found, ["a_total{b=\"c d\"}", "f"]);
    }
}
