//! Zip archives of deployments.

use std::fs;
use std::path::Path;

use unlade_fn_gateway::archive::{ArchiveError, CODE_BYTES_MAX, FILES_MAX, unpack_zip};

/// Files stay below the directory and within the limits; an invalid archive is the caller's error.
pub fn function_archive(data: &[u8]) {
    let outer = tempfile::tempdir().expect("a directory");
    let root = outer.path().join("root");
    fs::create_dir(&root).expect("a directory");
    if let Err(error) = unpack_zip(&root, data) {
        assert!(matches!(error, ArchiveError::Content(_)), "{error}");
    }
    assert_eq!(fs::read_dir(outer.path()).expect("a list").count(), 1, "nothing beside it");
    let (mut files, mut bytes) = (0, 0);
    count(&root, &mut files, &mut bytes);
    assert!(files <= FILES_MAX && bytes <= CODE_BYTES_MAX + 1);
}

/// Counts regular files; others are not made.
fn count(directory: &Path, files: &mut usize, bytes: &mut u64) {
    for entry in fs::read_dir(directory).expect("a list") {
        let path = entry.expect("an entry").path();
        let about = fs::symlink_metadata(&path).expect("metadata");
        if about.is_dir() {
            count(&path, files, bytes);
            continue;
        }
        assert!(about.is_file(), "{}", path.display());
        *files += 1;
        *bytes += about.len();
    }
}

/// Archives with one file, with two, and with a directory.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let app: (&str, &[u8]) = ("app.py", b"def handler(event, context):\n    return event\n");
    let seed = |name, entries: &[(&str, &[u8])]| ("function_archive", name, archive(entries));
    vec![
        seed("one", &[app]),
        seed("two", &[app, ("lib/tool.py", b"X = 1\n")]),
        seed("directory", &[("lib/", b""), app]),
    ]
}

/// An archive with stored entries (APPNOTE of PKWARE, 4.3).
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut whole, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let mut common = Vec::new();
        // Version, flags, method, time and date.
        put16(&mut common, &[20, 0, 0, 0, 0x21]);
        let length = content.len() as u32;
        put32(&mut common, &[crc32(content), length, length]);
        put16(&mut common, &[name.len() as u16, 0]);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        // No comment, first disk, attributes of a file, place.
        directory.extend([0; 6]);
        directory.extend((0o100_644_u32 << 16).to_le_bytes());
        directory.extend((whole.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        whole.extend(b"PK\x03\x04");
        whole.extend(&common);
        whole.extend(name.as_bytes());
        whole.extend(*content);
    }
    let (place, length, count) = (whole.len() as u32, directory.len() as u32, entries.len() as u16);
    whole.extend(directory);
    whole.extend(b"PK\x05\x06");
    put16(&mut whole, &[0, 0, count, count]);
    put32(&mut whole, &[length, place]);
    whole.extend([0; 2]);
    whole
}

fn put16(out: &mut Vec<u8>, words: &[u16]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn put32(out: &mut Vec<u8>, words: &[u32]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let fold = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        (0..8).fold(crc ^ u32::from(*byte), fold)
    };
    !bytes.iter().fold(u32::MAX, step)
}
