//! Checks that the documents name existing files, tests and interfaces.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::layers::INTERFACES;

/// The heading of ARCHITECTURE.md above the tables whose paths are checked.
const DATA_HEADING: &str = "## Follow the data";

/// Checks ARCHITECTURE.md and SPECIFICATION.md at `root`.
///
/// # Errors
/// One of them is there but cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut with = |name: &str, check: fn(&Path, &str) -> Vec<String>| -> Result<()> {
        let path = root.join(name);
        match path.exists() {
            false => problems.push(format!("{name}: is missing; write it")),
            true => {
                problems.extend(check(root, &fs::read_to_string(path).context(name.to_owned())?))
            }
        }
        Ok(())
    };
    with("ARCHITECTURE.md", check_paths)?;
    with("ARCHITECTURE.md", |_, text| check_interfaces(text))?;
    with("README.md", check_rust_version)?;
    with("SPECIFICATION.md", check_promises)?;
    Ok(problems)
}

/// The text between each pair of backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The paths in the tables of the data paths that do not exist. A path starts at `crates/`, or at
/// the root; a bare file name is searched beside the paths named before it in its row.
pub fn check_paths(root: &Path, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut rows = 0;
    let section = text.lines().enumerate().skip_while(|(_, line)| *line != DATA_HEADING).skip(1);
    for (index, line) in section.take_while(|(_, line)| !line.starts_with("## ")) {
        if !line.starts_with('|') {
            continue;
        }
        let mut seen: Vec<PathBuf> = Vec::new();
        for name in quoted(line).filter(|name| name.contains(['/', '.'])) {
            rows += 1;
            let candidates = match name.contains('/') {
                true => vec![root.join("crates").join(name), root.join(name)],
                false => seen.iter().map(|directory| directory.join(name)).collect(),
            };
            match candidates.iter().find(|path| path.exists()) {
                Some(path) => {
                    let directory =
                        if path.is_dir() { Some(path.as_path()) } else { path.parent() };
                    seen.extend(directory.map(Path::to_owned));
                }
                None => problems.push(format!(
                    "ARCHITECTURE.md:{}: `{name}` does not exist; correct the table",
                    index + 1
                )),
            }
        }
    }
    if rows == 0 {
        problems.push(format!("ARCHITECTURE.md: no paths in a table below `{DATA_HEADING}`"));
    }
    problems
}

/// The interfaces between products that ARCHITECTURE.md lists but the layer check does not allow,
/// and vice versa. An item of the list begins with `` - `from` → `to` ``.
pub fn check_interfaces(text: &str) -> Vec<String> {
    let mut listed = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("- `") && line.contains("` → `")) {
        let mut names = quoted(line);
        if let (Some(from), Some(to)) = (names.next(), names.next()) {
            listed.push((from, to));
        }
    }
    let unknown = listed.iter().filter(|arrow| !INTERFACES.contains(arrow)).map(|(from, to)| {
        format!("ARCHITECTURE.md: the layer check does not allow `{from}` → `{to}`; correct one")
    });
    let missing = INTERFACES.iter().filter(|arrow| !listed.contains(arrow)).map(|(from, to)| {
        format!("ARCHITECTURE.md: the list of interfaces between products lacks `{from}` → `{to}`; add it")
    });
    unknown.chain(missing).collect()
}

/// Checks that README.md names the Rust version that Cargo.toml at `root` requires.
pub fn check_rust_version(root: &Path, text: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    let demanded =
        manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    match demanded {
        Some(version) if !text.contains(&format!("Rust {version}")) => {
            vec![format!("README.md: does not name the required Rust {version}; add it")]
        }
        _ => Vec::new(),
    }
}

/// A numbered promise: its line, number and text.
struct Promise<'t> {
    line: usize,
    number: u32,
    text: Vec<&'t str>,
}

/// The promises of SPECIFICATION.md that name neither evidence nor *pending*, or name evidence
/// that does not exist. A promise is a row `| 7 | … |` or an item `7. …`; its evidence is a file,
/// `file::test`, or a command `unlade bench …`.
pub fn check_promises(root: &Path, text: &str) -> Vec<String> {
    let promises = promises(text);
    let mut problems = Vec::new();
    if promises.is_empty() {
        problems.push("SPECIFICATION.md: has no numbered promises".to_owned());
    }
    let mut due = 1;
    for Promise { line, number, text } in &promises {
        let place = format!("SPECIFICATION.md:{line}: promise {number}");
        if *number != due {
            problems.push(format!("{place} should be {due}; number them in order"));
        }
        due = number + 1;
        let text = text.join(" ");
        let named: Vec<&str> = quoted(&text).filter(|name| is_evidence(name)).collect();
        if named.is_empty() && !text.contains("*pending*") {
            problems.push(format!("{place} names no test or bench; name one, or write *pending*"));
        }
        let missing = named.into_iter().filter(|name| !exists(root, name));
        problems.extend(missing.map(|name| format!("{place}: `{name}` does not exist")));
    }
    problems
}

fn promises(text: &str) -> Vec<Promise<'_>> {
    let mut promises: Vec<Promise<'_>> = Vec::new();
    let mut open = false;
    for (line, content) in (1..).zip(text.lines()) {
        let number = |text: &str, end: char| text.split(end).next()?.trim().parse::<u32>().ok();
        let started = match content.strip_prefix('|') {
            Some(row) => number(row, '|'),
            None => number(content, '.'),
        };
        if let Some(number) = started {
            promises.push(Promise { line, number, text: vec![content] });
            open = true;
        } else if open && content.starts_with([' ', '\t']) {
            // The item continues on this line.
            promises.iter_mut().last().into_iter().for_each(|last| last.text.push(content));
        } else {
            open = false;
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
