//! The packages that a change touches, for the quick checks of `make check`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;

/// The names of the workspace's packages that have a file which differs from `base`, in commits
/// since then, in the working tree, or as a file that git does not know yet.
///
/// # Errors
/// git or cargo cannot be run at `root`, or there is no such revision.
pub fn packages(root: &Path, base: &str) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let members: Vec<(String, PathBuf)> = metadata
        .workspace_packages()
        .iter()
        .filter_map(|package| {
            let folder = package.manifest_path.parent()?.as_std_path();
            Some((package.name.to_string(), folder.strip_prefix(root).ok()?.to_owned()))
        })
        .collect();
    let mut files = git(root, &["diff", "--name-only", "--merge-base", base])?;
    files.extend(git(root, &["ls-files", "--others", "--exclude-standard"])?);
    Ok(owners(&members, &files))
}

/// The names of the members that own one of the files: of all folders around a file, the innermost
/// member's. `members` are names with folders, `files` are paths, all from the root.
pub fn owners(members: &[(String, PathBuf)], files: &[PathBuf]) -> Vec<String> {
    let owner = |file: &PathBuf| {
        let around = members.iter().filter(|(_, folder)| file.starts_with(folder));
        around.max_by_key(|(_, folder)| folder.components().count()).map(|(name, _)| name.clone())
    };
    let mut names: Vec<String> = files.iter().filter_map(owner).collect();
    names.sort();
    names.dedup();
    names
}

/// The paths that a git command prints, one a line.
fn git(root: &Path, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(arguments).current_dir(root).output().context("git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}
