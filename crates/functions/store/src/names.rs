//! The mapping between keys and files.
//!
//! A key that is a valid path below its bucket's directory is stored at that path. Any other key
//! (`..`, an empty segment, a name that is too long) is encoded, and stored in the store's own
//! directory; so is a key whose path is taken, as `a` if there is `a/b`. There are two encodings:
//! one for files that are only opened by their key, and one whose names sort as the keys do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
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

/// Bytes below this one are two bytes in the ordered encoding: [`ESCAPE`], and a byte of which
/// `/` and zero are none.
const LITERAL_MIN: u8 = b'0';
/// Less than each literal byte.
const ESCAPE: u8 = b'.';
/// The end of a key in the ordered encoding. Less than each byte of an encoded key, so that a key
/// precedes the keys that it begins.
pub const END: u8 = b'+';
/// The end of a name that the next name continues. Greater than [`END`], and less than each byte
/// of an encoded key.
pub const CONTINUED: u8 = b',';

/// Encodes bytes: the order of two results is that of the two inputs.
pub fn ordered(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len() + 16);
    for byte in bytes {
        match *byte {
            byte @ ..LITERAL_MIN => text.extend([ESCAPE, byte + LITERAL_MIN]),
            byte => text.push(byte),
        }
    }
    text
}

/// Decodes what [`ordered`] has encoded; `None` if it is invalid.
pub fn unordered(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.iter());
    while let Some(byte) = rest.next() {
        bytes.push(match *byte {
            ESCAPE => rest.next()?.checked_sub(LITERAL_MIN).filter(|byte| *byte < LITERAL_MIN)?,
            ..LITERAL_MIN => return None,
            byte => byte,
        });
    }
    Some(bytes)
}

/// Encodes a key as a path of valid file names. Names in a directory sort as their keys do.
pub fn ordered_path(key: &str) -> PathBuf {
    let (mut path, text) = (PathBuf::new(), ordered(key.as_bytes()));
    let mut rest = &text[..];
    while rest.len() > PIECE_BYTES {
        let (piece, after) = rest.split_at(PIECE_BYTES);
        path.push(OsStr::from_bytes(&[piece, &[CONTINUED]].concat()));
        rest = after;
    }
    path.push(OsStr::from_bytes(&[rest, &[END]].concat()));
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

    #[test]
    fn ordered_paths_sort_as_their_keys_do_and_come_back() {
        let long = "é/".repeat(341);
        let mut keys: Vec<String> = [
            "", ".", "..", "/", "//", "a", "a!", "a/", "a/b", "a+", "a,", "a0", "é", "\u{1}", &long,
        ]
        .map(str::to_owned)
        .into();
        keys.extend((195..206).flat_map(|bytes| {
            ["", "!", "/", "x", "é"].map(|end| format!("{}{end}", "k".repeat(bytes)))
        }));
        keys.sort();
        keys.dedup();
        let paths: Vec<PathBuf> = keys.iter().map(|key| ordered_path(key)).collect();
        assert!(paths.is_sorted_by(|a, b| a.iter().cmp(b.iter()).is_lt()));
        for (key, path) in keys.iter().zip(&paths) {
            let names: Vec<&[u8]> = path.iter().map(OsStr::as_bytes).collect();
            assert!(names.iter().all(|name| name.len() <= 255 && !matches!(*name, b"." | b"..")));
            let (last, pieces) = names.split_last().unwrap();
            let mut text: Vec<u8> = Vec::new();
            pieces.iter().for_each(|p| text.extend(p.strip_suffix(&[CONTINUED]).unwrap()));
            text.extend(last.strip_suffix(&[END]).unwrap());
            assert_eq!(unordered(&text).unwrap(), key.as_bytes());
        }
        for wrong in [&b"a/"[..], b"a.", b".a", b"!"] {
            assert_eq!(unordered(wrong), None);
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
