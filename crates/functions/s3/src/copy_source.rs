//! The source of a copy: the value of `x-amz-copy-source`.
//!
//! The value is `BUCKET/KEY`, percent-encoded, with an optional slash before it and an optional
//! `?versionId=` behind it. Stores differ in how they read a value that is not written by an SDK:
//! [`readings`] returns each object that one of them could mean.

use crate::encode::unpercent;

/// The parameter.
pub const COPY_SOURCE: &str = "CopySource";

/// Returns true if the source names a version of its object.
pub fn has_version(source: &str) -> bool {
    source.split_once('?').is_some_and(|(_, query)| query.contains("versionId="))
}

/// Returns true if the source has something that a store could read as a version.
pub fn has_query(source: &str) -> bool {
    source.contains('?')
}

/// The version of an object that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// None.
    None,
    /// This one.
    Named(String),
    /// Stores could read several.
    Unknown,
}

/// Returns the version in a source: one for every value that an SDK writes, of the characters of
/// version identifiers.
pub fn version(source: &str) -> Version {
    let Some((_, query)) = source.split_once('?') else { return Version::None };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let version = query.strip_prefix("versionId=");
    match version.filter(|version| !version.is_empty() && version.bytes().all(is_plain)) {
        Some(version) => Version::Named(version.to_owned()),
        None => Version::Unknown,
    }
}

/// Returns the objects that stores could read, each once, as `BUCKET/KEY`; one for every value that
/// an SDK writes. Stores end the path at `?versionId=`, or at any `?` or `#`; they skip one leading
/// slash or all; and they take `+` for itself or for a space.
pub fn readings(source: &str) -> Vec<String> {
    let path = source.split_once("?versionId=").map_or(source, |(path, _)| path);
    let shortest = source.split(['?', '#']).next().unwrap_or_default();
    let mut all = Vec::new();
    for path in [path, shortest] {
        for plus_is_space in [false, true] {
            let path = unpercent(path, plus_is_space);
            let one = path.strip_prefix('/').unwrap_or(&path);
            for object in [one, path.trim_start_matches('/')] {
                if !all.iter().any(|known| known == object) {
                    all.push(object.to_owned());
                }
            }
        }
    }
    all
}

/// Returns the source's bucket.
pub fn bucket(source: &str) -> String {
    let path = source.split_once('?').map_or(source, |(path, _)| path);
    let path = unpercent(path, false);
    path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_sdk_writes_has_one_reading() {
        for (source, object) in [
            ("b/k", "b/k"),
            ("/b/k", "b/k"),
            ("b/a%20%2B%3F%23", "b/a +?#"),
            ("b/k?versionId=a", "b/k"),
            ("b/k%3FversionId=a", "b/k?versionId=a"),
            ("", ""),
        ] {
            assert_eq!(readings(source), [object], "{source}");
            assert_eq!(bucket(source), object.split('/').next().unwrap());
        }
        assert!(has_version("b/k?versionId=a") && !has_version("b/k%3FversionId=a"));
        for (source, due) in [
            ("b/k", Version::None),
            ("b/k%3FversionId=7", Version::None),
            ("b/k?versionId=3sL4k_t.J-x", Version::Named("3sL4k_t.J-x".to_owned())),
            ("b/k?versionId=", Version::Unknown),
            ("b/k?x", Version::Unknown),
            ("b/k?versionId=7&versionId=8", Version::Unknown),
            ("b/k?versionId=%37", Version::Unknown),
            ("b/k?versionId=7#8", Version::Unknown),
        ] {
            assert_eq!(version(source), due, "{source}");
        }
    }
}
