//! Experiments of several parts: each with a name, in the order of a table.

use super::losses;
use super::process::ProcessTime;
use super::record::Sink;
use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, json};
use std::time::Instant;
use unlade_command::output::line;

/// One part.
pub struct Part {
    /// Its name for `--only`.
    pub name: &'static str,
    /// One line for `--help` and above its table.
    pub about: &'static str,
    /// Runs it, in fewer rounds where the first argument is true.
    pub run: fn(bool, &mut Sink) -> Result<()>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Those of `table` that are asked for, in its order; all where none is.
fn wanted(table: &'static [Part], only: &[&'static Part]) -> Vec<&'static Part> {
    let is_wanted = |part: &&Part| only.is_empty() || only.iter().any(|it| it.name == part.name);
    table.iter().filter(is_wanted).collect()
}

/// From a name to its part in `table`.
pub fn parser(table: &'static [Part]) -> impl TypedValueParser<Value = &'static Part> {
    let names = table.iter().map(|part| PossibleValue::new(part.name).help(part.about));
    PossibleValuesParser::new(names).try_map(move |name| {
        let part = table.iter().find(|part| part.name == name);
        part.ok_or_else(|| format!("`{name}` is no part"))
    })
}

/// Runs those of `table` that are asked for, says what processor time each took, and which ratios
/// are on the wrong side of 1.
///
/// # Errors
/// A part fails, which the error names, or results cannot be written.
pub fn run(
    bench: &str,
    table: &'static [Part],
    only: &[&'static Part],
    quick: bool,
    sink: &mut Sink,
) -> Result<()> {
    let parts = wanted(table, only);
    let progress = ProgressBar::new(parts.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg}") {
        progress.set_style(style.clone());
    }
    progress.set_prefix(bench.to_owned());
    let mut spent = Vec::new();
    for part in parts {
        progress.set_message(part.name);
        line(format_args!("\n{}: {}", part.name, part.about))?;
        let (began, before) = (Instant::now(), ProcessTime::now());
        (part.run)(quick, sink).with_context(|| format!("bench {bench}, {}", part.name))?;
        let (cpu, elapsed_s) = (ProcessTime::now() - before, began.elapsed().as_secs_f64());
        let case = Map::from_iter([("part".to_owned(), part.name.into())]);
        let metrics = json!({ "cpu_user_s": cpu.user_s, "cpu_system_s": cpu.system_s, "elapsed_s": elapsed_s });
        sink.write(case, "process", metrics.as_object().cloned().unwrap_or_default())?;
        spent.push((part, cpu, elapsed_s));
        progress.inc(1);
    }
    progress.finish_and_clear();
    line("\nprocessor time, all threads and processes that were waited for (seconds)")?;
    for (part, cpu, elapsed_s) in spent {
        let (user, system) = (cpu.user_s, cpu.system_s);
        line(format_args!(
            "{:<24}{user:>8.2} user{system:>8.2} system in {elapsed_s:.1}",
            part.name
        ))?;
    }
    losses::print(sink.ratios())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{copy, nic};

    #[test]
    fn parts_run_in_the_order_of_the_table_and_have_names_of_their_own() {
        for table in [copy::PARTS, nic::PARTS] {
            let names: Vec<&str> = wanted(table, &[]).iter().map(|part| part.name).collect();
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len());
            let last = table.last().unwrap();
            let asked: Vec<&str> =
                wanted(table, &[last, last]).iter().map(|part| part.name).collect();
            assert_eq!(asked, [last.name]);
            assert!(table.iter().all(|part| !part.about.is_empty() && !part.about.ends_with('.')));
        }
    }
}
