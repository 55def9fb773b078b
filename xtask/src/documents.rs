//! Checks that the documents exist, are short, and name existing files and interfaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::layers::INTERFACES;
use crate::{links, promises, readmes};

/// The heading above the tables whose paths are checked.
const DATA_HEADING: &str = "## Follow the data";
/// Most bytes of a page, for pages that are read as a whole.
const BYTES_MAX: [(&str, u64); 4] = [
    ("README.md", 10_240),
    ("ARCHITECTURE.md", 15_360),
    ("docs/nic/nvme.md", 15_360),
    ("docs/functions/sandbox.md", 15_360),
];
/// Most bytes of the design page of a product.
const DESIGN_BYTES_MAX: u64 = 15_360;

/// Checks the documents at `root`.
///
/// # Errors
/// One of them is there but cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut with = |name: &str, check: &dyn Fn(&str) -> Vec<String>| -> Result<()> {
        let path = root.join(name);
        match path.exists() {
            false => problems.push(format!("{name}: is missing; write it")),
            true => problems.extend(check(&fs::read_to_string(path).context(name.to_owned())?)),
        }
        Ok(())
    };
    with("ARCHITECTURE.md", &check_interfaces)?;
    with("README.md", &|text| check_rust_version(root, text))?;
    let products = products(root)?;
    let tables = products.iter().map(|product| format!("docs/{product}/code.md"));
    for name in tables.chain(["ARCHITECTURE.md", "research/README.md"].map(str::to_owned)) {
        with(&name, &|text| check_paths(root, &name, text))?;
    }
    let specifications = ["base", "research"].map(str::to_owned);
    for part in products.iter().chain(&specifications) {
        with(&format!("docs/specification/{part}.md"), &|_| Vec::new())?;
    }
    problems.extend(promises::check(root)?);
    problems.extend(check_sizes(root, &products));
    problems.extend(links::check(root)?);
    problems.extend(readmes::check(root)?);
    // Several checks report the same missing page.
    let mut reported = BTreeSet::new();
    problems.retain(|problem| reported.insert(problem.clone()));
    Ok(problems)
}

/// The products: the folders of `crates/`, without the one that they share.
fn products(root: &Path) -> Result<Vec<String>> {
    let folders = entries(&root.join("crates"))?;
    let names = folders.iter().filter(|path| path.is_dir()).filter_map(|path| path.file_name());
    Ok(names.map(|name| name.to_string_lossy().into_owned()).filter(|it| it != "base").collect())
}

/// The entries of `directory`, sorted.
///
/// # Errors
/// It is there but cannot be read.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let shown = || directory.display().to_string();
    let found = fs::read_dir(directory).with_context(shown)?;
    let mut paths = Vec::new();
    for entry in found {
        paths.push(entry.with_context(shown)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The path of a file below `root`, as messages show it.
pub(crate) fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The text between each pair of backticks in `text`.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The pages that have more bytes than they may.
pub fn check_sizes(root: &Path, products: &[String]) -> Vec<String> {
    let designs = products.iter().map(|it| (format!("docs/{it}/design.md"), DESIGN_BYTES_MAX));
    let pages = BYTES_MAX.iter().map(|(name, most)| ((*name).to_owned(), *most));
    let size = |(name, most): (String, u64)| match fs::metadata(root.join(&name)) {
        Err(_) => Some(format!("{name}: is missing; write it")),
        Ok(metadata) if metadata.len() > most => Some(format!(
            "{name}: {} bytes exceed {most}; shorten it, or move facts to another page",
            metadata.len()
        )),
        Ok(_) => None,
    };
    pages.chain(designs).filter_map(size).collect()
}

/// The paths in the data tables of the page `page` that do not exist. A path starts at `crates/`,
/// or at the root; a bare file name is searched beside the paths named before it in its row.
pub fn check_paths(root: &Path, page: &str, text: &str) -> Vec<String> {
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
                    "{page}:{}: `{name}` does not exist; correct the table",
                    index + 1
                )),
            }
        }
    }
    if rows == 0 {
        problems.push(format!("{page}: no paths in a table below `{DATA_HEADING}`; add them"));
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
