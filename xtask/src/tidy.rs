//! Checks that files are short and clean.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{documents, metrics};

/// Most lines of a source file, without its own tests.
const LINES_MAX: usize = 800;
/// Doc lines should name the item, not ask about it: words that few of them begin with.
const QUESTION_WORDS: [&str; 7] = ["What", "Who", "Whose", "Whoever", "Whether", "So", "Whatever"];
/// Most doc lines, of a hundred, that may begin so.
const QUESTION_LINES_PERCENT_MAX: usize = 2;
/// Most places that a message names.
const PLACES_SHOWN_MAX: usize = 5;
/// Most files that are checked.
const FILES_MAX: usize = 20_000;
/// Directories without files of the project.
const SKIPPED: [&str; 6] = ["target", ".git", "corpus", "artifacts", "node_modules", ".venv"];
/// Suffixes of the project's text files.
const TEXT: [&str; 11] =
    [".rs", ".c", ".h", ".py", ".sh", ".md", ".toml", ".yml", ".yaml", ".json", "Makefile"];
/// Suffixes of source files, whose length is limited.
const SOURCE: [&str; 5] = [".rs", ".c", ".h", ".py", ".sh"];

/// Checks the repository at `root`.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    for path in files(root)? {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path).with_context(|| shown.clone())?;
        problems.extend(check_text(&shown, &text));
        sources.push((shown, text));
    }
    problems.extend(check_words(&sources));
    problems.extend(metrics::check(root, &sources)?);
    problems.extend(documents::check(root)?);
    Ok(problems)
}

/// Checks the text of one file; `name` is its path.
pub fn check_text(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_end() != line {
            problems.push(format!("{name}:{number}: ends in whitespace; remove it"));
        }
        // Concatenated here, so that this file does not contain the marks.
        for mark in [["TO", "DO"], ["FIX", "ME"], ["XX", "X:"]].map(|parts| parts.concat()) {
            if line.contains(&mark) {
                problems.push(format!("{name}:{number}: contains a {mark}; do it, or remove it"));
            }
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(format!("{name}: does not end in a line end; add it"));
    }
    if text.ends_with("\n\n") {
        problems.push(format!("{name}: ends in empty lines; remove them"));
    }
    let lines = counted_lines(text);
    if SOURCE.iter().any(|end| name.ends_with(end)) && lines > LINES_MAX {
        problems.push(format!(
            "{name}: {lines} lines without its tests exceed {LINES_MAX}; split it by stage"
        ));
    }
    problems
}

/// Checks the language of doc comments (docs/style.md): few lines begin with a question word.
/// `sources` are names and texts of files.
pub fn check_words(sources: &[(String, String)]) -> Vec<String> {
    let (mut lines, mut found) = (0, Vec::new());
    for (name, text) in sources.iter().filter(|(name, _)| name.ends_with(".rs")) {
        for (number, line) in (1..).zip(text.lines().map(str::trim_start)) {
            let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
                continue;
            };
            lines += 1;
            let first = doc.trim_start().split(|c: char| !c.is_alphanumeric()).next();
            if first.is_some_and(|word| QUESTION_WORDS.contains(&word)) {
                found.push(format!("{name}:{number}"));
            }
        }
    }
    if found.len() * 100 <= lines * QUESTION_LINES_PERCENT_MAX {
        return Vec::new();
    }
    let places = found.iter().take(PLACES_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>();
    vec![format!(
        "{} of {lines} doc lines begin with one of {QUESTION_WORDS:?}, more than \
         {QUESTION_LINES_PERCENT_MAX} %; reword them as docs/style.md says: {}",
        found.len(),
        places.join(", ")
    )]
}

/// Number of lines before the file's own tests.
fn counted_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair.first() == Some(&"#[cfg(test)]") && pair.last() == Some(&"mod tests {")
    });
    tests.unwrap_or(lines.len())
}

/// Every text file below `root`.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                left.push(entry.path());
            } else if kind.is_file() && TEXT.iter().any(|end| name.ends_with(end)) {
                found.push(entry.path());
            }
        }
        if found.len() > FILES_MAX {
            bail!("more than {FILES_MAX} files below {}; is this the repository?", root.display());
        }
    }
    found.sort();
    Ok(found)
}
