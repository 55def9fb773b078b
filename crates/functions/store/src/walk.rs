//! The keys of a tree of files in their order, from any place on, without the rest of the tree.
//!
//! [`Tree::seek`] descends to the first key that is not less than a bound, and reads the
//! directories on its way only. The names of a large directory are kept for the next page, as long
//! as the directory does not change.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::disk::{self, Disk, Kind, Stamp, there};
use crate::names::{self, CONTINUED, END};

/// A directory with fewer names is read again: that takes less time than a page.
const LARGE_NAMES: usize = 1000;
/// Most names that are kept, of all directories: some 60 bytes each.
const NAMES_MAX: usize = 2 << 20;
/// A directory may change twice within one tick of the file system's clock, and have the same stamp
/// after both changes. Only an older stamp is compared.
const SETTLED_NS: i64 = 1_000_000_000;

/// The encoding of keys in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A key is a path.
    Plain,
    /// A key is a path of [`names::ordered_path`].
    Ordered,
}

/// A name in a directory.
struct Name {
    /// Its part of the key, in the order of keys.
    text: Box<[u8]>,
    /// True if the keys go on in the directory of this name.
    continues: bool,
}

type Names = Arc<Vec<Name>>;

/// The kept names of large directories.
pub struct Kept {
    names: Mutex<HashMap<PathBuf, (Stamp, Names)>>,
    /// Minimum age of a stamp.
    settled_ns: i64,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { names: Mutex::default(), settled_ns: SETTLED_NS }
    }
}

/// A tree of files whose paths are keys.
pub struct Tree<'a, D> {
    disk: &'a D,
    kept: &'a Kept,
    root: PathBuf,
    shape: Shape,
    /// The directories of the last descent, in the order of their depth.
    held: Vec<(PathBuf, Names)>,
}

impl<'a, D: Disk> Tree<'a, D> {
    /// Begins at a directory, which may be missing.
    pub fn new(disk: &'a D, kept: &'a Kept, root: PathBuf, shape: Shape) -> Tree<'a, D> {
        Tree { disk, kept, root, shape, held: Vec::new() }
    }

    /// The first key that is not less than the bound.
    ///
    /// # Errors
    /// The system call failed.
    pub fn seek(&mut self, bound: &[u8]) -> io::Result<Option<String>> {
        let bound = match self.shape {
            Shape::Plain => bound.to_vec(),
            Shape::Ordered => names::ordered(bound),
        };
        let root = self.root.clone();
        let found = self.seek_in(&root, 0, &bound)?;
        Ok(found.and_then(|text| {
            let key = match self.shape {
                Shape::Plain => Some(text),
                Shape::Ordered => names::unordered(&text),
            };
            String::from_utf8(key?).ok()
        }))
    }

    fn seek_in(&mut self, dir: &Path, depth: usize, bound: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let names = self.names(dir, depth)?;
        let is_before =
            |name: &Name| *name.text < *bound && !(name.continues && bound.starts_with(&name.text));
        let start = names.partition_point(is_before);
        for name in &names[start..] {
            if !name.continues {
                return Ok(Some(name.text.to_vec()));
            }
            let below = self.below(dir, &name.text);
            let rest = bound.strip_prefix(&*name.text).unwrap_or_default();
            if let Some(rest) = self.seek_in(&below, depth + 1, rest)? {
                return Ok(Some([&name.text, &rest[..]].concat()));
            }
        }
        Ok(None)
    }

    fn below(&self, dir: &Path, text: &[u8]) -> PathBuf {
        let name = match self.shape {
            Shape::Plain => text.strip_suffix(b"/").unwrap_or(text).to_vec(),
            Shape::Ordered => [text, &[CONTINUED]].concat(),
        };
        dir.join(std::ffi::OsStr::from_bytes(&name))
    }

    /// The sorted names of a directory. A page sees each directory as it was when the page came
    /// to it.
    fn names(&mut self, dir: &Path, depth: usize) -> io::Result<Names> {
        if let Some((_, names)) = self.held.get(depth).filter(|(held, _)| held == dir) {
            return Ok(names.clone());
        }
        let names = self.read(dir)?;
        self.held.truncate(depth);
        self.held.push((dir.to_owned(), names.clone()));
        Ok(names)
    }

    fn read(&self, dir: &Path) -> io::Result<Names> {
        // It may go at any time.
        let Some(stamp) = there(self.disk.stamp(dir))? else { return Ok(Names::default()) };
        if let Some(names) = self.kept.get(dir, stamp) {
            return Ok(names);
        }
        let now_ns = disk::nanoseconds(SystemTime::now());
        let found = there(self.disk.read_dir(dir))?.unwrap_or_default();
        let mut names: Vec<Name> =
            found.into_iter().filter_map(|(name, kind)| self.name(name.as_bytes(), kind)).collect();
        sort(&mut names);
        let names = Arc::new(names);
        let is_settled = stamp.changed_ns < now_ns.saturating_sub(self.kept.settled_ns);
        if names.len() >= LARGE_NAMES && is_settled {
            self.kept.keep(dir, stamp, &names);
        }
        Ok(names)
    }

    fn name(&self, name: &[u8], kind: Kind) -> Option<Name> {
        let (text, continues) = match (self.shape, kind) {
            (Shape::Plain, Kind::File) => (name.to_vec(), false),
            (Shape::Plain, Kind::Directory) => ([name, b"/"].concat(), true),
            (Shape::Plain, Kind::Other) => return None,
            (Shape::Ordered, _) => {
                let (last, text) = name.split_last()?;
                match *last {
                    END => (text.to_vec(), false),
                    CONTINUED => (text.to_vec(), true),
                    _ => return None,
                }
            }
        };
        // Another program may have made it. S3 has no such key. (A piece of an encoded key may end
        // within a character.)
        if self.shape == Shape::Plain && std::str::from_utf8(&text).is_err() {
            return None;
        }
        Some(Name { text: text.into(), continues })
    }
}

/// Sorts names for `seek_in`. A key may end where others go on: it comes first.
fn sort(names: &mut [Name]) {
    names.sort_unstable_by(|a, b| (&a.text, a.continues).cmp(&(&b.text, b.continues)));
}

impl Kept {
    fn get(&self, dir: &Path, stamp: Stamp) -> Option<Names> {
        let kept = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, names) = kept.get(dir)?;
        (*of == stamp).then(|| names.clone())
    }

    fn keep(&self, dir: &Path, stamp: Stamp, names: &Names) {
        let mut kept = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(dir);
        let count: usize = kept.values().map(|(_, names)| names.len()).sum();
        if count + names.len() > NAMES_MAX {
            kept.clear();
        }
        if names.len() <= NAMES_MAX {
            kept.insert(dir.to_owned(), (stamp, names.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use unlade_testkit::cases;

    use super::*;
    use crate::disk::Local;

    fn write(path: &Path) -> bool {
        let made = path.parent().is_some_and(|dir| std::fs::create_dir_all(dir).is_ok());
        made && !path.is_dir() && std::fs::write(path, "x").is_ok()
    }

    #[test]
    fn each_key_is_found_from_each_bound_on() {
        cases(20, |random| {
            // Encoded, the last ones are as long as a piece of a path.
            let (piece, beyond) = ("x".repeat(200), "x".repeat(200) + "a");
            let long = "k".repeat(190);
            let parts = ["a", "a!", "ab", "b", "é", ".x", &long, "0", &piece, &beyond];
            let dir = tempfile::tempdir().unwrap();
            let (plain, ordered) = (dir.path().join("plain"), dir.path().join("ordered"));
            let (mut of_plain, mut of_ordered) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                let names: Vec<&str> = (0..=random.below(4)).map(|_| random.pick(&parts)).collect();
                let key = names.join(random.pick(&["/", "/", "//"]));
                if !key.contains("//") && write(&plain.join(&key)) {
                    of_plain.push(key.clone());
                }
                assert!(write(&ordered.join(names::ordered_path(&key))));
                of_ordered.push(key);
            }
            for (root, shape, mut keys) in
                [(plain, Shape::Plain, of_plain), (ordered, Shape::Ordered, of_ordered)]
            {
                keys.sort();
                keys.dedup();
                let kept = Kept::default();
                let mut tree = Tree::new(&Local, &kept, root, shape);
                let mut bounds: Vec<Vec<u8>> = keys.iter().map(|key| key.clone().into()).collect();
                bounds.extend(keys.iter().map(|key| [key.as_bytes(), &[0]].concat()));
                bounds.extend(keys.iter().map(|key| key.as_bytes()[..key.len() / 2].to_vec()));
                bounds.extend([vec![], b"a/".to_vec(), b"a0".to_vec(), vec![0xff]]);
                for bound in bounds {
                    let due = keys.iter().find(|key| key.as_bytes() >= &bound[..]);
                    assert_eq!(tree.seek(&bound).unwrap().as_ref(), due, "{shape:?} {bound:?}");
                }
            }
        });
    }

    #[test]
    fn a_key_comes_before_those_that_go_on_after_it() {
        let name = |text: &str, continues| Name { text: text.as_bytes().into(), continues };
        let due = [("a", false), ("a", true), ("b", false)];
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut names: Vec<Name> =
                order.iter().map(|at: &usize| name(due[*at].0, due[*at].1)).collect();
            sort(&mut names);
            let found =
                names.iter().map(|it| (std::str::from_utf8(&it.text).unwrap(), it.continues));
            assert_eq!(found.collect::<Vec<_>>(), due);
        }
    }

    #[test]
    fn names_are_kept_until_their_directory_changes() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..LARGE_NAMES {
            std::fs::write(dir.path().join(format!("k{number:06}")), "").unwrap();
        }
        let seek = |kept: &Kept, bound: &[u8]| {
            let mut tree = Tree::new(&Local, kept, dir.path().to_owned(), Shape::Plain);
            tree.seek(bound).unwrap()
        };
        let is_kept = |kept: &Kept| !kept.names.lock().unwrap().is_empty();
        // The directory has just changed: its stamp may be that of its next change.
        let kept = Kept { settled_ns: i64::MAX, ..Kept::default() };
        assert_eq!(seek(&kept, b"").as_deref(), Some("k000000"));
        assert!(!is_kept(&kept));
        let kept = Kept { settled_ns: -SETTLED_NS, ..Kept::default() };
        assert_eq!(seek(&kept, b"k000001").as_deref(), Some("k000001"));
        assert!(is_kept(&kept));
        assert_eq!(seek(&kept, b"k000002").as_deref(), Some("k000002"));
        // A time that is set back hides no change.
        let modified = || std::fs::metadata(dir.path()).unwrap().modified().unwrap();
        let (before, stamp) = (modified(), Local.stamp(dir.path()).unwrap());
        std::fs::write(dir.path().join("a"), "").unwrap();
        let begin = std::time::Instant::now();
        while Local.stamp(dir.path()).unwrap() == stamp {
            assert!(begin.elapsed() < Duration::from_secs(60), "the clock stands");
            std::fs::File::open(dir.path()).unwrap().set_modified(before).unwrap();
        }
        std::fs::File::open(dir.path()).unwrap().set_modified(before).unwrap();
        assert_eq!(modified(), before);
        assert_eq!(seek(&kept, b"").as_deref(), Some("a"));
    }
}
