//! Dependencies between the crates of the workspace point strictly down.
//!
//! The layers are those of the table in ARCHITECTURE.md: there is no second list that could
//! differ from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Dependencies within a layer that are meant: the chassis stands on the record layer, steering on
/// the links and devices it attaches to.
pub const SIDEWAYS: [(&str, &str); 7] = [
    ("service", "record"),
    ("steer", "linux"),
    ("copier", "copyd"),
    ("overlap", "copier"),
    ("kv", "copier"),
    ("hostio", "copier"),
    ("function", "object"),
];
/// Members of the workspace that no layer holds: nothing may depend on them.
const OUTSIDE: [&str; 2] = ["system-tests", "xtask"];
/// The crates that may use `unsafe`: they talk to the machine, or are given pointers.
const UNSAFE: [&str; 7] = ["linux", "steer", "ring", "copyunit", "aead", "copier", "copier-capi"];

/// A dependency of one member of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// Who depends.
    pub from: String,
    /// On whom.
    pub to: String,
    /// For tests only: may go sideways, for a test may look at a neighbour.
    pub test_only: bool,
}

/// Checks the workspace at `root`.
///
/// # Errors
/// The metadata or ARCHITECTURE.md cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let page = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let layers = table(&text)?;
    let mut problems = judge(&layers, &arrows(&metadata));
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if !layers.contains_key(name) && !OUTSIDE.contains(&name) {
            problems.push(format!(
                "ARCHITECTURE.md: the crate `{name}` is on no layer; add it to the table"
            ));
        }
        if !UNSAFE.contains(&name) {
            problems.extend(unsafe_allowed(root, package)?);
        }
    }
    Ok(problems)
}

/// The layer of each crate, from rows such as ``| L1 | `linux`, `steer` | … |``.
///
/// # Errors
/// There is no such row.
pub fn table(text: &str) -> Result<BTreeMap<String, u32>> {
    let mut layers = BTreeMap::new();
    for line in text.lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let layer = cells.next().and_then(|cell| cell.strip_prefix('L')?.parse::<u32>().ok());
        if let (Some(layer), Some(crates)) = (layer, cells.next()) {
            let names = crates.split('`').skip(1).step_by(2);
            layers.extend(names.map(|name| (name.to_owned(), layer)));
        }
    }
    match layers.is_empty() {
        true => bail!("ARCHITECTURE.md: there is no table of layers (rows of | L0 | `crate` |)"),
        false => Ok(layers),
    }
}

fn arrows(metadata: &Metadata) -> Vec<Arrow> {
    let members: Vec<&Package> = metadata.workspace_packages();
    let is_member = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    let of = |package: &&Package| {
        let from = package.name.to_string();
        let arrow = |dependency: &cargo_metadata::Dependency| Arrow {
            from: from.clone(),
            to: dependency.name.clone(),
            test_only: dependency.kind == DependencyKind::Development,
        };
        let inside = package.dependencies.iter().filter(|dep| is_member(&dep.name));
        inside.map(arrow).collect::<Vec<_>>()
    };
    members.iter().flat_map(of).collect()
}

/// The arrows that point up, sideways or at a crate outside the layers.
pub fn judge(layers: &BTreeMap<String, u32>, arrows: &[Arrow]) -> Vec<String> {
    let mut problems = Vec::new();
    for Arrow { from, to, test_only } in arrows {
        let above = match (layers.get(from), layers.get(to)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(from), Some(to)) => from > to || (*test_only && from == to),
        };
        if !above && !SIDEWAYS.contains(&(from, to)) {
            problems.push(format!(
                "`{from}` depends on `{to}`, which is not below it; move what they share down"
            ));
        }
    }
    problems
}

/// The crate roots of `package` that do not forbid `unsafe`.
fn unsafe_allowed(root: &Path, package: &Package) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for target in package.targets.iter().filter(|target| target.is_lib() || target.is_bin()) {
        let path = target.src_path.as_std_path();
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if !text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            problems.push(format!("{shown}:1: lacks #![forbid(unsafe_code)]; add it"));
        }
    }
    Ok(problems)
}
