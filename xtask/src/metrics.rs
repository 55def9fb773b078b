//! Checks that some code counts every metric and label value: one that no code counts tells an
//! operator that an event never happens.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The crate with the metric declarations.
const METER: &str = "crates/base/metrics/src";
/// Its files with declarations.
const DECLARATIONS: [&str; 4] = ["event.rs", "gauge.rs", "label.rs", "stage.rs"];

/// A declared value: the names of the type and of the variant.
type Declared = (String, String);

/// The declared metrics and label values at `root` that no product code constructs.
///
/// # Errors
/// A source file cannot be read, or the declarations are not at the expected place.
pub fn check(root: &Path, sources: &[(String, String)]) -> Result<Vec<String>> {
    if !root.join(METER).exists() {
        return Ok(Vec::new());
    }
    let mut declared = Vec::new();
    for file in DECLARATIONS {
        let path = root.join(METER).join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        declared.extend(declarations(file, &text));
    }
    if declared.is_empty() {
        bail!("{METER}: no metric is declared in {DECLARATIONS:?}; correct the check");
    }
    let code: Vec<&str> = sources
        .iter()
        .filter(|(name, _)| is_product(name))
        .map(|(_, text)| product_part(text))
        .collect();
    Ok(uncounted(&declared, &code))
}

/// The declared values that no text in `code` constructs, as problems.
pub fn uncounted(declared: &[Declared], code: &[&str]) -> Vec<String> {
    let is_constructed =
        |(kind, variant): &&Declared| !code.iter().any(|text| constructs(text, kind, variant));
    let problem = |(kind, variant): &Declared| {
        format!("{METER}: no code counts {kind}::{variant}; count it, or remove it")
    };
    declared.iter().filter(is_constructed).map(problem).collect()
}

/// The values declared in a file.
pub fn declarations(file: &str, text: &str) -> Vec<Declared> {
    let mut kind = match file {
        "event.rs" => "Event",
        "gauge.rs" => "Gauge",
        "stage.rs" => "Stage",
        _ => "",
    };
    let mut found = Vec::new();
    for line in text.lines() {
        // `    Fallback: "reason" {` begins a label.
        if let Some((name, rest)) = line.trim().split_once(": \"")
            && rest.ends_with("\" {")
        {
            kind = name;
        }
        // `Variant => "text"`, `Variant(label: Type) => "name"`, `Variant => FAMILY, "text"`.
        let Some((left, right)) = line.trim().split_once(" => ") else { continue };
        let variant = left.split('(').next().unwrap_or_default();
        let is_variant = variant.starts_with(|c: char| c.is_ascii_uppercase())
            && variant.chars().any(|c| c.is_ascii_lowercase())
            && variant.chars().all(|c| c.is_ascii_alphanumeric());
        if is_variant && (right.starts_with('"') || right.contains(", \"")) {
            found.push((kind.to_owned(), variant.to_owned()));
        }
    }
    found
}

/// Returns true for the source of a program or library, not of a test, benchmark or example.
fn is_product(name: &str) -> bool {
    let test = |part: &str| {
        part == "tests" || part == "examples" || part == "tests.rs" || part.ends_with("_tests.rs")
    };
    (name.starts_with("crates/") || name.starts_with("apps/unlade/"))
        && name.ends_with(".rs")
        && !name.split('/').any(test)
}

/// The part of `text` before the file's own tests.
fn product_part(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// Returns true if `text` has `kind::variant` outside a pattern.
fn constructs(text: &str, kind: &str, variant: &str) -> bool {
    let path = format!("{kind}::{variant}");
    text.match_indices(&path).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + path.len()..]);
        let starts = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let after = after.trim_start();
        let is_pattern = after.starts_with("=>")
            || (after.starts_with('|') && !after.starts_with("||"))
            || before.trim_end().ends_with('|') && !before.trim_end().ends_with("||");
        starts && ends && !is_pattern
    })
}
