//! Checks that each promise of docs/specification names evidence that exists.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::documents::{entries, quoted, shown};

/// The folder of the specification pages.
const FOLDER: &str = "docs/specification";
/// The heading of the section without promises.
const NOT_PROMISED: &str = "## Not promised";

/// Checks every page of the specification at `root`.
///
/// # Errors
/// A page cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in entries(&root.join(FOLDER))? {
        let page = shown(root, &path);
        if page.ends_with(".md") {
            let text = fs::read_to_string(&path).with_context(|| page.clone())?;
            problems.extend(check_promises(root, &page, &text));
        }
    }
    Ok(problems)
}

/// A row of a table of promises: its line, its first cell and its text.
struct Promise<'t> {
    line: usize,
    number: &'t str,
    text: &'t str,
}

/// The promises of the page `page` that are not numbered in order from 1, that name no evidence,
/// or that name evidence that does not exist. A promise is a row `| 7 | … | evidence |`; evidence
/// is a file, `file::test`, or a command `unlade bench …`.
pub fn check_promises(root: &Path, page: &str, text: &str) -> Vec<String> {
    let promises = promises(text);
    let mut problems = Vec::new();
    if promises.is_empty() {
        problems.push(format!("{page}: has no numbered promises; add a table of them"));
    }
    for (due, Promise { line, number, text }) in (1_usize..).zip(&promises) {
        let place = format!("{page}:{line}: promise {number}");
        if number.parse() != Ok(due) {
            problems.push(format!("{place} should be {due}; number them in order"));
        }
        if text.contains("*pending*") {
            problems.push(format!(
                "{place} is pending; name its evidence, or move it below `{NOT_PROMISED}`"
            ));
        }
        let last = text.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = quoted(last).filter(|name| is_evidence(name)).collect();
        if named.is_empty() {
            problems.push(format!(
                "{place} names no test or bench in its last column; name one, or move it below \
                 `{NOT_PROMISED}`"
            ));
        }
        let missing = named.into_iter().filter(|name| !exists(root, name));
        problems.extend(missing.map(|name| format!("{place}: `{name}` does not exist")));
    }
    problems
}

/// The rows of tables whose first column is `n`, and all other rows that begin with a digit,
/// outside of the section without promises.
fn promises(text: &str) -> Vec<Promise<'_>> {
    let mut promises = Vec::new();
    let (mut is_promised, mut is_table, mut is_numbered) = (true, false, false);
    for (line, content) in (1..).zip(text.lines()) {
        if content.starts_with("## ") {
            is_promised = content.trim_end() != NOT_PROMISED;
        }
        let Some(row) = content.strip_prefix('|').filter(|_| is_promised) else {
            is_table = false;
            continue;
        };
        let number = row.split('|').next().unwrap_or_default().trim();
        if !is_table {
            (is_table, is_numbered) = (true, number == "n");
        }
        let is_head = number == "n" || number.trim_matches([':', '-']).is_empty();
        if (is_numbered && !is_head) || number.starts_with(|first: char| first.is_ascii_digit()) {
            promises.push(Promise { line, number, text: content });
        }
    }
    promises
}

fn is_evidence(name: &str) -> bool {
    name.starts_with("unlade bench ") || name.split("::").next().is_some_and(is_source)
}

fn is_source(name: &str) -> bool {
    name.contains('/') && [".rs", ".sh", ".py"].iter().any(|end| name.ends_with(end))
}

fn exists(root: &Path, name: &str) -> bool {
    if name.starts_with("unlade bench ") {
        return true;
    }
    let (file, test) =
        name.split_once("::").map_or((name, None), |(file, test)| (file, Some(test)));
    let candidates = [root.join(file), root.join("crates").join(file)];
    let text = candidates.iter().find_map(|path| fs::read_to_string(path).ok());
    match (text, test) {
        (None, _) => false,
        (Some(_), None) => true,
        // A macro may generate the test; its name is then before a colon.
        (Some(text), Some(test)) => {
            text.contains(&format!("fn {test}(")) || text.contains(&format!("    {test}:"))
        }
    }
}
