//! The objects that the lab's servers hold: the same bytes on every machine, with their SHA-256.

use super::plan::ObjectTree;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use unlade_testkit::Random;

/// Objects of the mixed set.
pub const SET_OBJECTS: u64 = 64;
/// Largest object of the mixed set.
const SET_OBJECT_BYTES_MAX: u64 = 256 * 1024;
const SEED: u64 = 0x006f_626a_6563_7473;

/// Single objects: name (also the URL's path without its slash) and size.
const SINGLES: [(&str, u64); 7] = [
    ("1KiB", 1 << 10),
    ("4KiB", 4 << 10),
    ("16KiB", 16 << 10),
    ("64KiB", 64 << 10),
    ("256KiB", 256 << 10),
    ("1MiB", 1 << 20),
    ("16MiB", 16 << 20),
];

/// The name of the single object of `bytes`, if there is one.
pub fn single_name(bytes: u64) -> Option<&'static str> {
    SINGLES.iter().find(|(_, size)| *size == bytes).map(|(name, _)| *name)
}

/// Name and size of every object of `tree`, in a fixed order.
pub fn list(tree: ObjectTree) -> Vec<(String, u64)> {
    let largest = match tree {
        ObjectTree::Small => 1 << 20,
        ObjectTree::Default => 16 << 20,
    };
    let singles = SINGLES.iter().filter(|(_, bytes)| *bytes <= largest);
    let mut all: Vec<_> = singles.map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
    // Sizes spread evenly over the powers of two, so that small ones are as common as large
    // ones; odd lengths on purpose. The first is empty.
    let mut random = Random::new(SEED);
    for number in 0..SET_OBJECTS {
        let magnitude = 1 + size_below(&mut random, SET_OBJECT_BYTES_MAX.ilog2().into());
        let bytes = if number == 0 { 0 } else { 1 + size_below(&mut random, 1 << magnitude) };
        all.push((format!("set/{number:02}"), bytes));
    }
    all
}

/// By the high bits, so that the sizes are those of every version.
fn size_below(random: &mut Random, limit_bytes: u64) -> u64 {
    ((u128::from(random.next()) * u128::from(limit_bytes)) >> 64) as u64
}

/// Writes the objects below `dir` and their sums, as `sha256sum` prints them, to `sums_file`.
///
/// # Errors
/// A file cannot be written.
pub fn create(tree: ObjectTree, dir: &Path, sums_file: &Path) -> Result<()> {
    let set = dir.join("set");
    fs::create_dir_all(&set).with_context(|| format!("creating {}", set.display()))?;
    let mut sums = String::new();
    for (number, (name, bytes)) in (0u64..).zip(list(tree)) {
        let mut content = vec![0u8; usize::try_from(bytes)?];
        Random::new(SEED ^ (number << 32)).fill(&mut content);
        for byte in Sha256::digest(&content) {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {name}")?;
        let path = dir.join(&name);
        fs::write(&path, &content).with_context(|| format!("writing {}", path.display()))?;
    }
    fs::write(sums_file, sums).with_context(|| format!("writing {}", sums_file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_trees_are_the_same() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&a, &b] {
            let tree = dir.path().join("tree");
            create(ObjectTree::Small, &tree, &dir.path().join("SHA256SUMS")).unwrap();
        }
        let sums =
            |dir: &tempfile::TempDir| fs::read_to_string(dir.path().join("SHA256SUMS")).unwrap();
        assert_eq!(sums(&a), sums(&b));
        assert_eq!(sums(&a).lines().count(), list(ObjectTree::Small).len());
        let one = a.path().join("tree/1MiB");
        assert_eq!(fs::metadata(one).unwrap().len(), 1 << 20);
    }

    #[test]
    fn set_is_mixed() {
        let sizes: Vec<_> = list(ObjectTree::Default).into_iter().map(|(_, bytes)| bytes).collect();
        let set = &sizes[sizes.len() - SET_OBJECTS as usize..];
        assert_eq!(set[..4], [0, 3543, 372, 45], "the sizes of every version");
        assert_eq!(set.iter().sum::<u64>(), 1_163_322);
        assert!(sizes.contains(&0) && sizes.contains(&(16 << 20)));
        assert!(sizes.iter().filter(|&&bytes| bytes < 4096).count() > 10);
        assert!(sizes.iter().filter(|&&bytes| bytes > 65_536).count() > 5);
        assert_eq!(single_name(65_536), Some("64KiB"));
        assert_eq!(single_name(5), None);
    }
}
