//! Dependencies between the crates of the workspace point strictly down, and stay within a
//! product.
//!
//! The layers and folders are those of the table in ARCHITECTURE.md; there is no second list. A
//! crate is named by its folder and its own name: `connection/balancer`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, Target};

use crate::circles;

/// The uses of another product that a product, or research, is allowed.
pub const INTERFACES: [(&str, &str); 6] = [
    ("functions", "copy/client"),
    ("functions", "copy/shm"),
    ("research", "nic/aead"),
    ("research", "nic/engine"),
    ("research", "nic/inline"),
    ("research", "nic/nvme-wire"),
];
/// The folder that every other folder may use.
const BASE: &str = "base";
/// The folder of programs: they may use everything, and no other folder may use them.
const APPS: &str = "apps";
/// The folder of code that no product uses, and the program that must not use it.
const RESEARCH: &str = "research";
const PRODUCT: &str = "apps/unlade";
/// Folders of members without a layer: nothing may depend on them.
const OUTSIDE: [&str; 2] = ["tests", "xtask"];
/// The crates that may use `unsafe`: they use kernel interfaces, or receive pointers.
const UNSAFE: [&str; 8] = [
    "base/sys",
    "connection/steering",
    "copy/c-api",
    "copy/client",
    "copy/kernels",
    "copy/preload",
    "copy/shm",
    "nic/aead",
];

/// A dependency of one member of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The crate with the dependency.
    pub from: String,
    /// The crate it depends on.
    pub to: String,
    /// For tests only: may point sideways, because a test may use a neighbour.
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
    let mut problems = violations(&layers, &arrows(root, &metadata));
    let members = metadata.workspace_packages();
    let names: Vec<String> = members.iter().map(|member| place(root, member)).collect();
    for (package, name) in members.iter().zip(&names) {
        if !layers.contains_key(name) && !is_outside(name) {
            problems.push(format!(
                "ARCHITECTURE.md: the crate `{name}` is on no layer; add it to the table"
            ));
        }
        if !UNSAFE.contains(&name.as_str()) {
            problems.extend(unsafe_allowed(root, package)?);
        }
    }
    for name in layers.keys().filter(|name| !names.contains(name)) {
        problems.push(format!("ARCHITECTURE.md: there is no crate `{name}`; correct the table"));
    }
    let inside = members.iter().zip(&names).filter(|(_, name)| !is_outside(name));
    let roots: Vec<_> = inside.flat_map(|(package, _)| root_files(package)).collect();
    problems.extend(circles::check(root, &roots)?);
    Ok(problems)
}

fn folder(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

fn is_outside(name: &str) -> bool {
    OUTSIDE.contains(&folder(name))
}

/// Folder and name of a member: its path without `crates/`.
fn place(root: &Path, package: &Package) -> String {
    let directory = package.manifest_path.parent().map(|path| path.as_std_path());
    let inside = directory.and_then(|path| path.strip_prefix(root).ok()).unwrap_or(Path::new(""));
    let inside = inside.strip_prefix("crates").unwrap_or(inside);
    inside.to_string_lossy().into_owned()
}

/// The layer of each crate, from a table such as
/// ```text
/// | layer | base | connection |
/// | L1 | `sys`, `tls` | `protocol` |
/// ```
///
/// # Errors
/// The text has no such table.
pub fn table(text: &str) -> Result<BTreeMap<String, u32>> {
    let mut layers = BTreeMap::new();
    let mut folders: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let first = cells.next().unwrap_or_default();
        if first == "layer" {
            folders = cells.collect();
            continue;
        }
        let Some(layer) = first.strip_prefix('L').and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        for (folder, cell) in folders.iter().zip(cells) {
            let names = cell.split('`').skip(1).step_by(2);
            layers.extend(names.map(|name| (format!("{folder}/{name}"), layer)));
        }
    }
    match layers.is_empty() {
        true => bail!("ARCHITECTURE.md: there is no table of layers (| layer | base | …)"),
        false => Ok(layers),
    }
}

fn arrows(root: &Path, metadata: &Metadata) -> Vec<Dependency> {
    let members: Vec<&Package> = metadata.workspace_packages();
    let places: BTreeMap<&str, String> =
        members.iter().map(|member| (member.name.as_str(), place(root, member))).collect();
    let of = |package: &&Package| {
        let from = place(root, package);
        let arrow = |dependency: &cargo_metadata::Dependency| {
            Some(Dependency {
                from: from.clone(),
                to: places.get(dependency.name.as_str())?.clone(),
                test_only: dependency.kind == DependencyKind::Development,
            })
        };
        package.dependencies.iter().filter_map(arrow).collect::<Vec<_>>()
    };
    members.iter().flat_map(of).collect()
}

/// The arrows that point up or sideways, at a crate outside the layers, or into another product.
pub fn violations(layers: &BTreeMap<String, u32>, arrows: &[Dependency]) -> Vec<String> {
    let mut problems = Vec::new();
    for Dependency { from, to, test_only } in arrows {
        let is_below = match (layers.get(from), layers.get(to)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(from), Some(to)) => from > to || (*test_only && from == to),
        };
        if !is_below {
            problems.push(format!(
                "`{from}` depends on `{to}`, which is not below it; move what they share down"
            ));
        } else if !is_outside(from) && !may_use(from, to) {
            problems.push(format!(
                "`{from}` depends on `{to}` of another product; move what they share to `base`, or \
                 name an interface in xtask/src/layers.rs and ARCHITECTURE.md"
            ));
        }
    }
    problems
}

/// Returns true if the folders allow the dependency.
fn may_use(from: &str, to: &str) -> bool {
    match (folder(from), folder(to)) {
        (_, BASE) => true,
        (APPS, RESEARCH) => from != PRODUCT,
        (APPS, _) => true,
        (own, other) => own == other || INTERFACES.contains(&(own, to)),
    }
}

/// The root files of the library and the programs of `package`.
fn root_files(package: &Package) -> impl Iterator<Item = PathBuf> {
    let is_other = |target: &&Target| {
        target.is_test() || target.is_bench() || target.is_example() || target.is_custom_build()
    };
    let targets = package.targets.iter().filter(move |target| !is_other(target));
    targets.map(|target| target.src_path.as_std_path().to_owned())
}

/// The crate roots of `package` that do not forbid `unsafe`.
fn unsafe_allowed(root: &Path, package: &Package) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in root_files(package) {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if !text.lines().any(|line| line == "#![forbid(unsafe_code)]") {
            let shown = path.strip_prefix(root).unwrap_or(&path).display();
            problems.push(format!("{shown}:1: lacks #![forbid(unsafe_code)]; add it"));
        }
    }
    Ok(problems)
}
