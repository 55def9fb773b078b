//! Checks that the tests drive every metric and every value of a label above zero: one that no test
//! drives may be one that no event can drive.
//!
//! The page of the metrics is generated from the code, and lists them all. Debug builds append the
//! samples above zero to the file that `UNLADE_METRICS_SEEN` names, while the tests run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The generated page.
const PAGE: &str = "docs/reference/metrics.md";
/// The samples that no test on one machine can drive: `SAMPLE: reason`, one a line.
const EXCEPTIONS: &str = "xtask/undriven.txt";
/// Labels whose values are no closed set: a worker of several tenants adds the first one to every
/// sample, metrics of a function have both.
const OPEN: [&str; 2] = ["tenant", "function"];
/// Test programs that render values which nothing has counted.
const MADE_UP: [&str; 3] = ["openmetrics-", "unlade_metrics-", "reference-"];

/// The samples of the page at `root` that are not in the record `seen`, and the exceptions that the
/// record refutes.
///
/// # Errors
/// A file cannot be read, or the page lists nothing.
pub fn check(root: &Path, seen: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
    let declared = declared(&read(&root.join(PAGE))?);
    if declared.is_empty() {
        bail!("{PAGE}: no metric found; correct the check");
    }
    let exceptions = read(&root.join(EXCEPTIONS))?;
    Ok(undriven(&declared, &exceptions, &read(seen)?))
}

/// The declared samples that neither `seen` nor `exceptions` has, and the exceptions that are not
/// declared, have no reason, or were seen.
pub fn undriven(declared: &BTreeSet<String>, exceptions: &str, seen: &str) -> Vec<String> {
    // A line is the name of a program and a sample.
    let seen = seen.lines().filter_map(|line| line.split_once(' '));
    let counted = seen.filter(|(program, _)| !MADE_UP.iter().any(|of| program.starts_with(of)));
    let seen: BTreeSet<String> = counted.map(|(_, sample)| without_open(sample)).collect();
    let mut excused = BTreeSet::new();
    let mut problems = Vec::new();
    let lines = exceptions.lines().enumerate();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')) {
        let problem = |what: &str| format!("{EXCEPTIONS}:{}: {what}", line + 1);
        match text.split_once(": ") {
            Some((sample, reason)) if !reason.trim().is_empty() => {
                if !declared.contains(sample) {
                    problems.push(problem(&format!("no process serves {sample}; remove the line")));
                } else if seen.contains(sample) {
                    problems.push(problem(&format!("a test drives {sample}; remove the line")));
                }
                excused.insert(sample);
            }
            _ => problems.push(problem("the line is not `SAMPLE: reason`")),
        }
    }
    let missing = declared
        .iter()
        .filter(|sample| !seen.contains(sample.as_str()) && !excused.contains(sample.as_str()));
    problems.extend(missing.map(|sample| {
        format!("{PAGE}: no test drives {sample} above zero; write one, or remove the metric")
    }));
    problems
}

/// The samples that the page of the metrics lists: one for each value of a label.
pub fn declared(page: &str) -> BTreeSet<String> {
    let mut values: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    let mut open: Vec<String> = Vec::new();
    for line in page.lines() {
        // "`reason` of `a_total`, `b_total`:" begins a list; "- `value`: meaning" is in it.
        if let Some((key, samples)) = line.split_once(" of `")
            && line.ends_with(':')
        {
            let key = key.trim_matches('`').to_owned();
            open = samples.split('`').step_by(2).map(str::to_owned).collect();
            open.retain(|sample| sample.starts_with("unlade_"));
            for sample in &open {
                values.insert(sample.clone(), (key.clone(), Vec::new()));
            }
        } else if let Some(value) = line.strip_prefix("- `").and_then(|rest| rest.split('`').next())
        {
            for sample in &open {
                if let Some((_, list)) = values.get_mut(sample) {
                    list.push(value.to_owned());
                }
            }
        }
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `unlade_"));
    let mut declared = BTreeSet::new();
    for row in rows {
        let name = format!("unlade_{}", row.split('`').next().unwrap_or_default());
        let kind = row.split('|').nth(1).unwrap_or_default().trim();
        match (kind, values.get(&name)) {
            ("info", _) => {}
            // A histogram has one count for each value.
            ("histogram", Some((key, list))) => {
                declared.extend(list.iter().map(|of| format!("{name}_count{{{key}=\"{of}\"}}")));
            }
            (_, Some((key, list))) => {
                declared.extend(list.iter().map(|of| format!("{name}{{{key}=\"{of}\"}}")));
            }
            ("histogram", None) => {
                declared.insert(format!("{name}_count"));
            }
            (_, None) => {
                declared.insert(name);
            }
        }
    }
    declared
}

/// A recorded sample without the labels of tenant and function.
fn without_open(sample: &str) -> String {
    let Some((name, labels)) = sample.split_once('{') else { return sample.to_owned() };
    let labels = labels.trim_end_matches('}').split(',');
    let is_open = |label: &&str| label.split('=').next().is_some_and(|key| OPEN.contains(&key));
    let own: Vec<&str> = labels.filter(|label| !is_open(label)).collect();
    if own.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", own.join(",")) }
}
