//! Files of one crate do not import from each other in a circle.
//!
//! A circle is a set of files each of which names, directly or through the others, items of all
//! others ([`imports`]). Allowed circles are lines of `xtask/circles.txt`, with their files and the
//! reason: `crates/a/src: one.rs two.rs: reason`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::imports::{Imports, imports};

/// The list of allowed circles.
const ALLOWED: &str = "xtask/circles.txt";

/// Files that import from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// The files, in the order of their paths.
    pub files: BTreeSet<PathBuf>,
    /// The imports between them.
    pub imports: Imports,
}

/// An allowed circle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The line of the list, from 1.
    pub line: usize,
    /// The files, as paths from the root of the repository.
    pub files: BTreeSet<PathBuf>,
}

/// Checks crates: `roots` are their root files, such as `src/lib.rs`, as paths below `root`.
///
/// # Errors
/// A source file cannot be read or parsed, or a line of the list has another form.
pub fn check(root: &Path, roots: &[PathBuf]) -> Result<Vec<String>> {
    let list = match fs::read_to_string(root.join(ALLOWED)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(ALLOWED),
    };
    let allowed = parse(&list)?;
    let mut found = Vec::new();
    for file in roots {
        let mut within = Imports::new();
        for ((from, to), names) in imports(file)? {
            let inside =
                |path: PathBuf| path.strip_prefix(root).map(Path::to_owned).unwrap_or(path);
            within.insert((inside(from), inside(to)), names);
        }
        found.extend(circles(&within));
    }
    Ok(problems(&found, &allowed))
}

/// The circles among imports: the strongly connected components of more than one file.
pub fn circles(imports: &Imports) -> Vec<Circle> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        next.keys().map(|from| (*from, reach(from, &next))).collect();
    let mut found = Vec::new();
    let mut done: BTreeSet<&Path> = BTreeSet::new();
    for (from, ahead) in &reached {
        if done.contains(from) || !ahead.contains(from) {
            continue;
        }
        let is_back = |to: &&&Path| reached.get(**to).is_some_and(|ahead| ahead.contains(from));
        let files: BTreeSet<&Path> = ahead.iter().filter(is_back).copied().collect();
        done.extend(&files);
        let both = |(from, to): &(PathBuf, PathBuf)| {
            files.contains(from.as_path()) && files.contains(to.as_path())
        };
        found.push(Circle {
            imports: imports
                .iter()
                .filter(|(edge, _)| both(edge))
                .map(|(edge, names)| (edge.clone(), names.clone()))
                .collect(),
            files: files.iter().map(|file| file.to_path_buf()).collect(),
        });
    }
    found
}

/// The files that `from` leads to.
fn reach<'a>(from: &'a Path, next: &BTreeMap<&'a Path, Vec<&'a Path>>) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(file) = left.pop() {
        for to in next.get(file).into_iter().flatten() {
            if reached.insert(*to) {
                left.push(to);
            }
        }
    }
    reached
}

/// The allowed circles of a list; empty lines and those with `#` at their start are left out.
///
/// # Errors
/// A line has another form than `folder: file file: reason`.
pub fn parse(list: &str) -> Result<Vec<Allowed>> {
    let mut allowed = Vec::new();
    for (line, text) in (1..).zip(list.lines()) {
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let mut parts = text.splitn(3, ':').map(str::trim);
        let (Some(folder), Some(names), Some(reason)) = (parts.next(), parts.next(), parts.next())
        else {
            bail!("{ALLOWED}:{line}: has no form `folder: file file: reason`; correct it");
        };
        let files: BTreeSet<PathBuf> =
            names.split_whitespace().map(|name| Path::new(folder).join(name)).collect();
        if files.len() < 2 || reason.is_empty() {
            bail!("{ALLOWED}:{line}: names fewer than two files or no reason; add them");
        }
        allowed.push(Allowed { line, files });
    }
    Ok(allowed)
}

/// The circles that are not allowed, and the allowed circles that do not occur.
pub fn problems(found: &[Circle], allowed: &[Allowed]) -> Vec<String> {
    let is_allowed = |circle: &&Circle| !allowed.iter().any(|line| line.files == circle.files);
    let mut problems: Vec<String> = found.iter().filter(is_allowed).map(message).collect();
    for Allowed { line, files } in allowed {
        if !found.iter().any(|circle| circle.files == *files) {
            problems.push(format!(
                "{ALLOWED}:{line}: these files are no circle any more; remove the line, or correct \
                 its files"
            ));
        }
    }
    problems
}

fn message(circle: &Circle) -> String {
    let first = circle.files.first().cloned().unwrap_or_default();
    let mut folder = first.parent().unwrap_or(Path::new(""));
    while !circle.files.iter().all(|file| file.starts_with(folder)) {
        folder = folder.parent().unwrap_or(Path::new(""));
    }
    let short = |file: &Path| file.strip_prefix(folder).unwrap_or(file).display().to_string();
    let taken = circle.imports.iter().map(|((from, to), names)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("`{}` takes {} from `{}`", short(from), names.join(", "), short(to))
    });
    let names: Vec<String> = circle.files.iter().map(|file| short(file)).collect();
    format!(
        "{}: {} import from each other: {}; move what they share to a file below them, pass it as \
         an argument, or join the files",
        folder.display(),
        names.join(" "),
        taken.collect::<Vec<_>>().join("; ")
    )
}
