//! Pages of lists (S3 API reference, *ListObjectsV2*).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::about::Versioning;
use crate::disk::Disk;
use crate::vault::Vault;
use crate::walk::{Shape, Tree};

/// Most entries of a page.
pub const ENTRIES_MAX: usize = 1000;

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry<T> {
    /// An object.
    Key(String, T),
    /// All objects whose keys have the same prefix up to the delimiter.
    Prefix(String),
}

impl<T> Entry<T> {
    /// The name of the entry.
    pub fn name(&self) -> &str {
        match self {
            Entry::Key(name, _) | Entry::Prefix(name) => name,
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The sorted entries.
    pub entries: Vec<Entry<T>>,
    /// True if there are more entries.
    pub is_truncated: bool,
}

/// The parameters of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Each key begins with it.
    pub prefix: &'a str,
    /// Keys with the same text up to it are one entry.
    pub delimiter: Option<&'a str>,
    /// The page begins after this name.
    pub after: Option<&'a str>,
    /// Most entries.
    pub entries_max: usize,
}

/// The first name that is greater than all names that begin with a prefix; `None` if there is
/// none.
fn beyond(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if let Some(next) = last.checked_add(1) {
            bytes.push(next);
            return Some(bytes);
        }
    }
    None
}

/// The first name that is greater than a name.
fn following(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

impl Asked<'_> {
    /// The entry of a key that has a common prefix.
    fn common<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter.filter(|delimiter| !delimiter.is_empty())?;
        let rest = key.get(self.prefix.len()..)?;
        Some(&key[..self.prefix.len() + rest.find(delimiter)? + delimiter.len()])
    }
}

/// Returns the first key that is not less than a bound.
pub type Seek<'a, E> = &'a mut dyn FnMut(&[u8]) -> Result<Option<String>, E>;

/// Builds a page. `seek` returns the first key that is not less than a bound; `see` returns the
/// entries of a key, which may have none; of a key with a common prefix only their number counts.
///
/// # Errors
/// Those of `seek` and `see`.
pub fn page<T, E>(
    asked: &Asked<'_>,
    seek: Seek<'_, E>,
    see: &mut dyn FnMut(&str) -> Result<Vec<T>, E>,
) -> Result<Page<T>, E> {
    let mut page = Page { entries: Vec::new(), is_truncated: false };
    if asked.entries_max == 0 {
        return Ok(page);
    }
    let mut next = asked.prefix.as_bytes().to_vec();
    if let Some(after) = asked.after {
        // The previous page ended with this common prefix.
        let is_common = after.starts_with(asked.prefix) && asked.common(after) == Some(after);
        let bound = if is_common { beyond(after) } else { Some(following(after)) };
        let Some(bound) = bound else { return Ok(page) };
        next = next.max(bound);
    }
    loop {
        let Some(key) = seek(&next)?.filter(|key| key.starts_with(asked.prefix)) else { break };
        let found = see(&key)?;
        let common = asked.common(&key).filter(|_| !found.is_empty()).map(str::to_owned);
        let left = asked.entries_max - page.entries.len();
        let bound = match common {
            Some(prefix) => {
                let bound = beyond(&prefix);
                page.is_truncated = left == 0;
                page.entries.extend((left > 0).then_some(Entry::Prefix(prefix)));
                bound
            }
            None => {
                page.is_truncated = found.len() > left;
                let entry = |one| Entry::Key(key.clone(), one);
                page.entries.extend(found.into_iter().take(left).map(entry));
                Some(following(&key))
            }
        };
        match bound {
            Some(bound) if !page.is_truncated => next = bound,
            _ => break,
        }
    }
    Ok(page)
}

/// The keys of a bucket, in order: of objects, and of versions and delete markers.
pub struct Keys<'a, D> {
    trees: Vec<(Tree<'a, D>, Ahead)>,
}

/// The last answer of a tree: it holds for each bound from the one that was asked for up to the
/// key.
struct Ahead {
    bound: Vec<u8>,
    key: Option<String>,
}

impl<'a, D: Disk> Keys<'a, D> {
    /// Begins.
    ///
    /// # Errors
    /// The system call failed.
    pub fn new(vault: &'a Vault<D>, bucket: &str, state: Versioning) -> Keys<'a, D> {
        let mut roots = vec![
            (vault.plain_root(bucket), Shape::Plain),
            (vault.odd_root(bucket), Shape::Ordered),
        ];
        if state != Versioning::Off {
            roots.push((vault.versions_root(bucket), Shape::Ordered));
        }
        let tree = |(root, shape)| {
            // No bound is less than an unset answer's.
            let ahead = Ahead { bound: vec![u8::MAX; 1], key: None };
            (Tree::new(&*vault.disk, &vault.kept, root, shape), ahead)
        };
        Keys { trees: roots.into_iter().map(tree).collect() }
    }

    /// The first key that is not less than a bound.
    ///
    /// # Errors
    /// The system call failed.
    pub fn seek(&mut self, bound: &[u8]) -> std::io::Result<Option<String>> {
        for (tree, ahead) in &mut self.trees {
            let is_known = *ahead.bound <= *bound
                && ahead.key.as_ref().is_none_or(|key| key.as_bytes() >= bound);
            if !is_known {
                *ahead = Ahead { bound: bound.to_vec(), key: tree.seek(bound)? };
            }
        }
        Ok(self.trees.iter().filter_map(|(_, ahead)| ahead.key.as_ref()).min().cloned())
    }
}

/// The token of the next page.
pub fn token(last: &str) -> String {
    URL_SAFE_NO_PAD.encode(last)
}

/// Decodes a token; `None` if it is invalid.
pub fn untoken(token: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()
}

/// Encodes a name for `encoding-type=url`.
pub fn url(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(byte.into());
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: &[&str], asked: &Asked<'_>) -> (Vec<String>, bool) {
        let mut seek = |bound: &[u8]| {
            let found = keys.iter().find(|key| key.as_bytes() >= bound);
            Ok::<_, std::convert::Infallible>(found.map(|key| (*key).to_owned()))
        };
        let Ok(page) = page(asked, &mut seek, &mut |_| Ok(vec![()]));
        (page.entries.iter().map(|entry| entry.name().to_owned()).collect(), page.is_truncated)
    }

    #[test]
    fn pages_go_on_where_the_one_before_has_ended() {
        let keys = ["a", "b/1", "b/2", "b/c/3", "c", "d//", "d//e"];
        for (delimiter, all) in [
            (None, &["a", "b/1", "b/2", "b/c/3", "c", "d//", "d//e"][..]),
            (Some("/"), &["a", "b/", "c", "d/"]),
            (Some("//"), &["a", "b/1", "b/2", "b/c/3", "c", "d//"]),
        ] {
            for entries_max in 1..9 {
                let (mut found, mut after) = (Vec::new(), None::<String>);
                for _ in 0..20 {
                    let asked =
                        Asked { delimiter, after: after.as_deref(), entries_max, prefix: "" };
                    let (names, is_truncated) = of(&keys, &asked);
                    assert!(names.len() <= entries_max);
                    found.extend(names);
                    after = found.last().cloned();
                    if !is_truncated {
                        break;
                    }
                }
                assert_eq!(found, all, "{delimiter:?} {entries_max}");
            }
        }
        let within = Asked { prefix: "b/", delimiter: Some("/"), after: None, entries_max: 9 };
        assert_eq!(of(&["b/1", "b/c/3"], &within).0, ["b/1", "b/c/"]);
        assert_eq!(of(&keys, &Asked::default()), (Vec::new(), false));
    }

    #[test]
    fn a_key_without_entries_is_not_in_a_page_and_has_no_prefix() {
        let keys = ["a", "b/1", "b/2", "c/1"];
        let mut seek = |bound: &[u8]| {
            let found = keys.iter().find(|key| key.as_bytes() >= bound);
            Ok::<_, std::convert::Infallible>(found.map(|key| (*key).to_owned()))
        };
        let asked = Asked { delimiter: Some("/"), entries_max: 9, ..Asked::default() };
        let mut see = |key: &str| Ok(if key.ends_with('1') { vec![] } else { vec![key.len()] });
        let Ok(page) = page(&asked, &mut seek, &mut see);
        assert_eq!(page.entries, [Entry::Key("a".into(), 1), Entry::Prefix("b/".into())]);
    }

    #[test]
    fn tokens_and_names_are_plain_text() {
        assert_eq!(untoken(&token("a\u{1}/ü")).as_deref(), Some("a\u{1}/ü"));
        assert_eq!(untoken("?"), None);
        assert_eq!(url("a b/%+ü"), "a%20b/%25%2B%C3%BC");
    }
}
