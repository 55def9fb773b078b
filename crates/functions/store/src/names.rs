//! The mapping between keys and files.
//!
//! A key that is a valid path below its bucket's directory is stored at that path. Any other key
//! (`..`, an empty segment, a name that is too long) is encoded, and stored in the store's own
//! directory; so is a key whose path is taken, as `a` if there is `a/b`.

use std::path::{Path, PathBuf};

/// The store's own directory, next to the buckets. No bucket's name begins with a dot.
pub const OWN: &str = ".unlade";
/// Largest key (S3 user guide, *Naming Amazon S3 objects*).
pub const KEY_BYTES_MAX: usize = 1024;
/// Largest file name (NAME_MAX).
const FILE_NAME_BYTES_MAX: usize = 255;
/// Bytes of an encoded key in one name; the next name continues it.
const PIECE_BYTES: usize = 200;
/// The suffix of a name whose directory continues the key: no encoded byte has this value.
const MORE: char = '+';

/// The path of a key below its bucket's directory, if it is a valid path.
pub fn plain(key: &str) -> Option<&Path> {
    let is_name = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.contains('\0')
            && part.len() <= FILE_NAME_BYTES_MAX
    };
    key.split('/').all(is_name).then(|| Path::new(key))
}

/// Encodes a key as a path of valid file names, the last with a suffix.
pub fn encoded(key: &str, suffix: &str) -> PathBuf {
    let mut text = String::with_capacity(key.len() + 16);
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    let (mut path, mut rest) = (PathBuf::new(), text.as_str());
    while rest.len() > PIECE_BYTES {
        let (piece, after) = rest.split_at(PIECE_BYTES);
        path.push(format!("{piece}{MORE}"));
        rest = after;
    }
    path.push(format!("{rest}{suffix}"));
    path
}

/// Decodes an encoded path; `None` if it is invalid.
pub fn decoded(path: &Path, suffix: &str) -> Option<String> {
    let names: Option<Vec<&str>> = path.iter().map(|name| name.to_str()).collect();
    let (last, pieces) = names.as_ref()?.split_last()?;
    let mut text = String::new();
    for piece in pieces {
        text.push_str(piece.strip_suffix(MORE)?);
    }
    text.push_str(last.strip_suffix(suffix)?);
    String::from_utf8(unlade_http::percent::decoded(&text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_keys_are_their_path() {
        for key in ["a", "a/c d", ".hidden", "a/..b", "ü", "a%2Fb", &"k".repeat(255)] {
            assert_eq!(plain(key), Some(Path::new(key)), "{key}");
        }
        for key in ["../k", "a/../k", "/k", "a//b", "a/", ".", "a/./b", &"k".repeat(256), "a\0"] {
            assert_eq!(plain(key), None, "{key:?}");
        }
    }

    #[test]
    fn every_key_has_a_path_of_its_own_and_comes_back() {
        let long = "é/".repeat(341);
        let keys = ["..", "../secretb/evil", "/k", "a//b", "a/", "+", "%", "%2F", "a+b", "", &long];
        let mut paths = std::collections::HashSet::new();
        for key in keys {
            let path = encoded(key, ".object");
            let names = || path.iter().map(|name| name.to_str().unwrap());
            assert!(names().all(|name| name.len() <= 255 && !matches!(name, "." | "..")), "{key}");
            assert!(path.is_relative() && path.components().count() == names().count());
            assert_eq!(decoded(&path, ".object").as_deref(), Some(key));
            assert!(paths.insert(path));
        }
        for wrong in ["a", "a/b.object", "%4.object", "%zz.object", "%FF.object"] {
            assert_eq!(decoded(Path::new(wrong), ".object"), None, "{wrong}");
        }
    }

    /// Checks that the file of one key is never a directory in the path of another one.
    #[test]
    fn no_encoded_key_is_in_the_way_of_another_one() {
        let keys: Vec<String> = (190..420).map(|bytes| "k".repeat(bytes)).collect();
        let paths: Vec<PathBuf> = keys.iter().map(|key| encoded(key, ".json")).collect();
        for (a, b) in paths.iter().flat_map(|a| paths.iter().map(move |b| (a, b))) {
            assert!(a == b || !b.starts_with(a), "{} {}", a.display(), b.display());
        }
    }
}
