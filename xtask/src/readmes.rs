//! Checks that each crate has a README.md that names its files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::documents::{entries, quoted, shown};

/// Folders of crates.
const FOLDERS: [&str; 2] = ["apps", "research"];
/// The folder whose folders have crates.
const PRODUCTS: &str = "crates";
/// Files that need no words of their own.
const UNNAMED: [&str; 3] = ["lib.rs", "main.rs", "tests.rs"];

/// Checks the README.md of each crate at `root`.
///
/// # Errors
/// A folder or a page is there but cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut folders = entries(&root.join(PRODUCTS))?;
    folders.extend(FOLDERS.map(|name| root.join(name)));
    let mut problems = Vec::new();
    for folder in folders.iter().filter(|path| path.is_dir()) {
        let crates = entries(folder)?;
        for directory in crates.iter().filter(|path| path.join("Cargo.toml").exists()) {
            problems.extend(check_crate(root, directory)?);
        }
    }
    Ok(problems)
}

/// The files and folders in `src` of the crate at `directory` that its README.md does not name in
/// backticks: `name.rs`, `folder/`, or a path in the folder.
///
/// # Errors
/// The folder or the page is there but cannot be read.
pub fn check_crate(root: &Path, directory: &Path) -> Result<Vec<String>> {
    let page = directory.join("README.md");
    let name = shown(root, &page);
    if !page.exists() {
        return Ok(vec![format!("{name}: is missing; write it")]);
    }
    let text = fs::read_to_string(&page).with_context(|| name.clone())?;
    let named: Vec<&str> =
        quoted(&text).map(|name| name.strip_prefix("src/").unwrap_or(name)).collect();
    let sources = entries(&directory.join("src"))?;
    let file = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let unnamed = sources.iter().filter_map(file).filter(|entry| {
        let is_named = |name: &&str| name.split('/').next() == Some(entry.as_str());
        !UNNAMED.contains(&entry.as_str()) && !named.iter().any(is_named)
    });
    Ok(unnamed.map(|entry| format!("{name}: does not name src/{entry}; add it")).collect())
}
