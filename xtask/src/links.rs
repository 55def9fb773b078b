//! Checks that links between documents lead to files and headings, and that the book lists all
//! pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use crate::documents::{entries, shown};

/// The folder of the book.
const BOOK: &str = "docs";
/// The book's list of pages.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside of the book whose links are checked.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

/// Checks all links of the documents at `root`, and that the book lists its pages.
///
/// # Errors
/// A page is there but cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let book = pages(&root.join(BOOK))?;
    let others = PAGES.map(|name| root.join(name));
    let mut texts = BTreeMap::new();
    for path in book.iter().chain(others.iter().filter(|path| path.exists())) {
        let text = fs::read_to_string(path).with_context(|| shown(root, path))?;
        texts.insert(path.clone(), text);
    }
    for path in others.iter().filter(|path| !path.exists()) {
        problems.push(format!("{}: is missing; write it", shown(root, path)));
    }
    for (path, text) in &texts {
        problems.extend(check_links(root, &shown(root, path), text));
    }
    let summary = root.join(SUMMARY);
    match texts.get(&summary) {
        None => problems.push(format!("{SUMMARY}: is missing; write it")),
        Some(text) => {
            let names: Vec<String> = book.iter().map(|path| shown(root, path)).collect();
            problems.extend(check_summary(text, &names));
        }
    }
    Ok(problems)
}

/// Every page below `directory`.
fn pages(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(directory)? {
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The pages of the book, given by their names below the root, that its summary `text` does not
/// link.
pub fn check_summary(text: &str, pages: &[String]) -> Vec<String> {
    let listed: BTreeSet<PathBuf> =
        links(text).map(|(_, target)| resolved(&Path::new(BOOK).join(target))).collect();
    let unlisted = pages
        .iter()
        .filter(|name| name.as_str() != SUMMARY && !listed.contains(Path::new(name.as_str())));
    unlisted.map(|name| format!("{SUMMARY}: does not list {name}; add it")).collect()
}

/// The links of the page `page` that lead to no file, or to no heading of their file.
pub fn check_links(root: &Path, page: &str, text: &str) -> Vec<String> {
    let directory = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    for (line, link) in links(text).filter(|(_, link)| !is_external(link)) {
        let (name, fragment) =
            link.split_once('#').map_or((link, None), |(name, fragment)| (name, Some(fragment)));
        let target = match name.is_empty() {
            true => PathBuf::from(page),
            false => resolved(&directory.join(name)),
        };
        if !name.is_empty() && !root.join(&target).exists() {
            problems.push(format!("{page}:{line}: `{link}` leads to no file; correct the link"));
            continue;
        }
        let Some(fragment) = fragment.filter(|_| target.extension().is_some_and(|it| it == "md"))
        else {
            continue;
        };
        let there = match name.is_empty() {
            true => text.to_owned(),
            false => fs::read_to_string(root.join(&target)).unwrap_or_default(),
        };
        if !slugs(&there).iter().any(|slug| slug == fragment) {
            problems.push(format!(
                "{page}:{line}: `{link}` leads to no heading of {}; correct the link",
                target.display()
            ));
        }
    }
    problems
}

fn is_external(link: &str) -> bool {
    ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
}

/// The path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The lines of `text` outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of the inline links `[…](target)` of `text`, with their lines. Code has none.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    prose(text).flat_map(move |(number, line)| {
        // A span of code may continue on the next line of its paragraph.
        is_code &= !line.trim().is_empty();
        let mut found = Vec::new();
        for (index, part) in line.split('`').enumerate() {
            is_code ^= index > 0;
            let targets = part.split("](").skip(1).filter(|_| !is_code);
            found.extend(targets.filter_map(|rest| rest.split([')', ' ']).next()));
        }
        found.into_iter().map(move |target| (number, target))
    })
}

/// The anchors of the headings of `text`, as GitHub makes them.
fn slugs(text: &str) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = counts.entry(slug.clone()).or_default();
        found.push(match *count {
            0 => slug,
            again => format!("{slug}-{again}"),
        });
        *count += 1;
    }
    found
}
