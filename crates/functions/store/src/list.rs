//! Lists of objects, a page at a time (S3 API reference, *ListObjectsV2*).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Most entries of a page.
pub const ENTRIES_MAX: usize = 1000;

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object.
    Key(String),
    /// All objects whose keys have the same prefix up to the delimiter.
    Prefix(String),
}

impl Entry {
    /// The name of the entry.
    pub fn name(&self) -> &str {
        match self {
            Entry::Key(name) | Entry::Prefix(name) => name,
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The sorted entries.
    pub entries: Vec<Entry>,
    /// True if there are more entries.
    pub is_truncated: bool,
}

/// Builds a page from sorted keys with the prefix: the keys after `after`.
pub fn page(
    keys: Vec<String>,
    prefix: &str,
    delimiter: Option<&str>,
    after: Option<&str>,
    entries_max: usize,
) -> Page {
    let mut page = Page::default();
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty());
    for key in keys {
        if after.is_some_and(|after| *key <= *after) {
            continue;
        }
        let rest = key.get(prefix.len()..).unwrap_or_default();
        let end = delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len()));
        let entry = match end {
            Some(end) => Entry::Prefix(key[..prefix.len() + end].to_owned()),
            None => Entry::Key(key),
        };
        let is_prefix = matches!(entry, Entry::Prefix(_));
        // The previous page ended with it.
        let was_given = is_prefix && after == Some(entry.name());
        if was_given || page.entries.last() == Some(&entry) {
            continue;
        }
        if page.entries.len() >= entries_max {
            page.is_truncated = entries_max > 0;
            break;
        }
        page.entries.push(entry);
    }
    page
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

    fn names(page: &Page) -> Vec<&str> {
        page.entries.iter().map(Entry::name).collect()
    }

    #[test]
    fn pages_go_on_where_the_one_before_has_ended() {
        let keys = ["a", "b/1", "b/2", "b/c/3", "c", "d//", "d//e"].map(str::to_owned);
        for (delimiter, all) in [
            (None, &["a", "b/1", "b/2", "b/c/3", "c", "d//", "d//e"][..]),
            (Some("/"), &["a", "b/", "c", "d/"]),
            (Some("//"), &["a", "b/1", "b/2", "b/c/3", "c", "d//"]),
        ] {
            for entries_max in 1..9 {
                let (mut found, mut after) = (Vec::new(), None::<String>);
                for _ in 0..20 {
                    let one = page(keys.to_vec(), "", delimiter, after.as_deref(), entries_max);
                    assert!(one.entries.len() <= entries_max);
                    found.extend(names(&one).into_iter().map(str::to_owned));
                    after = found.last().cloned();
                    if !one.is_truncated {
                        break;
                    }
                }
                assert_eq!(found, all, "{delimiter:?} {entries_max}");
            }
        }
        let within = page(vec!["b/1".into(), "b/c/3".into()], "b/", Some("/"), None, 9);
        assert_eq!(names(&within), ["b/1", "b/c/"]);
        assert!(!page(keys.to_vec(), "", None, None, 0).is_truncated);
    }

    #[test]
    fn tokens_and_names_are_plain_text() {
        assert_eq!(untoken(&token("a\u{1}/ü")).as_deref(), Some("a\u{1}/ü"));
        assert_eq!(untoken("?"), None);
        assert_eq!(url("a b/%+ü"), "a%20b/%25%2B%C3%BC");
    }
}
