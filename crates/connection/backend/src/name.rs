//! Object names: validates a request's path before the file system uses it.

use std::fmt;

/// Maximum length of a decoded name, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum length of a segment, in bytes (NAME_MAX of Linux file systems).
pub const SEGMENT_BYTES_MAX: usize = 255;
/// Maximum number of segments.
pub const SEGMENTS_MAX: usize = 32;
/// Prefix of segments that are reserved for the store itself.
pub const RESERVED_PREFIX: &str = ".unlade-";

/// Name of an object below the store's root: one or more segments joined by `/`. It has no empty
/// segment, no `.` or `..`, no control character, and does not begin with `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectName(String);

/// Error of a path that is not a valid object name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The path is not absolute.
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    /// `%` without two hexadecimal digits.
    #[error("`%` in the path is not followed by two hexadecimal digits")]
    Escape,
    /// The decoded bytes are not text.
    #[error("the decoded path is not UTF-8")]
    NotUtf8,
    /// A control character, an escaped slash, or a backslash.
    #[error("the path has a control character, an encoded slash or a backslash")]
    Character,
    /// A `.` or `..` segment, escaped or not.
    #[error("the path has a `.` or `..` segment")]
    Dots,
    /// An empty segment (`//`).
    #[error("the path has an empty segment")]
    Empty,
    /// The name exceeds a limit of its length or segments.
    #[error("the name is longer than {NAME_BYTES_MAX} bytes or {SEGMENTS_MAX} segments")]
    TooLong,
    /// The path ends with `/`.
    #[error("the path names a directory")]
    Directory,
    /// A segment begins with the reserved prefix `.unlade-`.
    #[error("names beginning `{RESERVED_PREFIX}` are reserved")]
    Reserved,
}

impl NameError {
    /// The HTTP status of the refusal.
    pub fn status(self) -> u16 {
        match self {
            NameError::Directory | NameError::Reserved => 404,
            NameError::TooLong => 414,
            _ => 400,
        }
    }
}

impl ObjectName {
    /// Parses a request's path (RFC 3986 §3.3, without the query). Decoding is strict and happens
    /// once: `%2F`, `%5C` and `%00` are refused, and a second level of escapes is ordinary text.
    ///
    /// # Errors
    /// The first rule that the path violates.
    pub fn from_path(path: &str) -> Result<ObjectName, NameError> {
        let relative = path.strip_prefix('/').ok_or(NameError::NotAbsolute)?;
        let mut name = String::with_capacity(relative.len().min(NAME_BYTES_MAX));
        if relative.is_empty() {
            return Err(NameError::Directory);
        }
        let mut segments = relative.split('/').peekable();
        let mut count = 0;
        while let Some(segment) = segments.next() {
            if segment.is_empty() {
                // Only the last segment of a directory's path is empty.
                let last = segments.peek().is_none();
                return Err(if last { NameError::Directory } else { NameError::Empty });
            }
            count += 1;
            let decoded = decode(segment)?;
            check_segment(&decoded)?;
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(&decoded);
            if name.len() > NAME_BYTES_MAX || count > SEGMENTS_MAX {
                return Err(NameError::TooLong);
            }
        }
        Ok(ObjectName(name))
    }

    /// Returns the name, relative to the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the parent directories, outermost first, and the last segment.
    pub fn split(&self) -> (impl Iterator<Item = &str>, &str) {
        let (directories, leaf) = match self.0.rsplit_once('/') {
            Some((directories, leaf)) => (directories, leaf),
            None => ("", self.0.as_str()),
        };
        (directories.split('/').filter(|segment| !segment.is_empty()), leaf)
    }

    /// Returns the text behind the last dot of the last segment.
    pub fn extension(&self) -> Option<&str> {
        let (_, leaf) = self.split();
        leaf.rsplit_once('.').map(|(_, extension)| extension)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_segment(segment: &str) -> Result<(), NameError> {
    if segment == "." || segment == ".." {
        return Err(NameError::Dots);
    }
    if segment.bytes().any(|byte| byte < 0x20 || matches!(byte, 0x7f | b'/' | b'\\')) {
        return Err(NameError::Character);
    }
    if segment.len() > SEGMENT_BYTES_MAX {
        return Err(NameError::TooLong);
    }
    if segment.starts_with(RESERVED_PREFIX) {
        return Err(NameError::Reserved);
    }
    Ok(())
}

/// Decodes the percent-escapes of one segment.
fn decode(segment: &str) -> Result<String, NameError> {
    let decoded = unlade_http::percent::decoded(segment).ok_or(NameError::Escape)?;
    String::from_utf8(decoded).map_err(|_| NameError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(path: &str) -> Result<String, NameError> {
        ObjectName::from_path(path).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn ordinary_paths_are_names() {
        assert_eq!(name("/a").unwrap(), "a");
        assert_eq!(name("/a/b/c.txt").unwrap(), "a/b/c.txt");
        assert_eq!(name("/a%20b/%C3%A9").unwrap(), "a b/\u{e9}");
        assert_eq!(name("/%2541").unwrap(), "%41", "decoded once");
        assert_eq!(name("/..a/b..").unwrap(), "..a/b..");
    }

    #[test]
    fn traversal_is_refused_however_it_is_written() {
        use NameError::*;
        let corpus = [
            ("/..", Dots),
            ("/../etc/passwd", Dots),
            ("/a/../../etc/passwd", Dots),
            ("/a/..", Dots),
            ("/%2e%2e/etc/passwd", Dots),
            ("/%2E%2e/%2e%2E/etc", Dots),
            ("/.%2e/etc", Dots),
            ("/a/./b", Dots),
            ("/..%2fetc/passwd", Character),
            ("/%2fetc/passwd", Character),
            ("/..%5c..%5cwindows", Character),
            ("/a\\..\\b", Character),
            ("/a%00.txt", Character),
            ("/a%0d%0aSet-Cookie", Character),
            ("/%7f", Character),
            ("//etc/passwd", Empty),
            ("/a//b", Empty),
            ("/%c0%ae%c0%ae/etc", NotUtf8),
            ("/%ff", NotUtf8),
            ("/%", Escape),
            ("/%2", Escape),
            ("/%zz", Escape),
            ("/%+1", Escape),
            ("etc/passwd", NotAbsolute),
            ("", NotAbsolute),
            ("*", NotAbsolute),
            ("/", Directory),
            ("/a/", Directory),
            ("/.unlade-staging/x", Reserved),
            ("/%2eunlade-staging/x", Reserved),
        ];
        for (path, expected) in corpus {
            assert_eq!(name(path), Err(expected), "{path}");
        }
    }

    #[test]
    fn every_length_has_its_limit() {
        let segment = |bytes: usize| "s".repeat(bytes);
        assert!(name(&format!("/{}", segment(SEGMENT_BYTES_MAX))).is_ok());
        assert_eq!(name(&format!("/{}", segment(256))), Err(NameError::TooLong));
        assert!(name(&"/s".repeat(SEGMENTS_MAX)).is_ok());
        assert_eq!(name(&"/s".repeat(SEGMENTS_MAX + 1)), Err(NameError::TooLong));
        let long = format!("/{0}/{0}/{0}/{0}/{0}", segment(250));
        assert_eq!(name(&long), Err(NameError::TooLong));
    }

    #[test]
    fn names_come_apart() {
        let name = ObjectName::from_path("/a/b/c.tar.gz").unwrap();
        let (directories, leaf) = name.split();
        assert_eq!(directories.collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((leaf, name.extension()), ("c.tar.gz", Some("gz")));
        let flat = ObjectName::from_path("/plain").unwrap();
        assert_eq!((flat.split().0.count(), flat.split().1, flat.extension()), (0, "plain", None));
    }

    proptest! {
        #[test]
        fn no_path_leaves_the_root(path in "/[a-z./%0-9A-F\\\\]{0,40}") {
            if let Ok(name) = ObjectName::from_path(&path) {
                let mut components = std::path::Path::new(name.as_str()).components();
                prop_assert!(
                    components.all(|c| matches!(c, std::path::Component::Normal(_))),
                    "{name}"
                );
            }
        }

        #[test]
        fn any_segment_text_survives_encoding(text in "[^\\x00-\\x1f\\x7f/\\\\]{1,40}") {
            prop_assume!(text != "." && text != ".." && !text.starts_with(RESERVED_PREFIX));
            let path: String =
                std::iter::once("/".to_owned())
                    .chain(text.bytes().map(|byte| format!("%{byte:02x}")))
                    .collect();
            prop_assert_eq!(name(&path), Ok(text));
        }

        #[test]
        fn nothing_panics(path in "\\PC{0,60}") {
            let _ = ObjectName::from_path(&path);
        }
    }
}
