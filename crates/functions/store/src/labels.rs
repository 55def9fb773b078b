//! Names and values of tags, and storage classes, as requests have them.

use s3s::dto::*;

use crate::about::Tags;
use crate::fault::Fault;

/// Most tags of an object (S3 user guide, *Categorizing your storage using tags*).
pub const OBJECT_TAGS_MAX: usize = 10;
/// Most tags of a bucket.
pub const BUCKET_TAGS_MAX: usize = 50;
/// Most characters of a tag's name.
const NAME_CHARS_MAX: usize = 128;
/// Most characters of a tag's value.
const VALUE_CHARS_MAX: usize = 256;
/// The class of an object for which no other was asked.
pub const STANDARD: &str = "STANDARD";
/// Other storage classes that need no restoration before a read.
const CLASSES: [&str; 5] =
    ["REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"];

/// Returns the class to store; `None` is `STANDARD`.
///
/// # Errors
/// The store does not know the class.
pub fn class(asked: Option<&StorageClass>) -> Result<Option<String>, Fault> {
    match asked.map(StorageClass::as_str) {
        None | Some(STANDARD) => Ok(None),
        Some(class) if CLASSES.contains(&class) => Ok(Some(class.to_owned())),
        Some(class) => Err(Fault::StorageClass(class.to_owned())),
    }
}

fn check(mut tags: Tags, count_max: usize) -> Result<Tags, Fault> {
    let wrong = |why: String| Err(Fault::Tag(why));
    if tags.len() > count_max {
        return wrong(format!("there are {} tags; at most {count_max} are possible", tags.len()));
    }
    tags.sort();
    for (at, (name, value)) in tags.iter().enumerate() {
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX {
            return wrong(format!("the name of a tag has 1 to {NAME_CHARS_MAX} characters"));
        }
        if value.chars().count() > VALUE_CHARS_MAX {
            return wrong(format!("the value of a tag has at most {VALUE_CHARS_MAX} characters"));
        }
        if [name, value].into_iter().any(|text| text.chars().any(char::is_control)) {
            return wrong(format!("the tag {name:?} has a control character"));
        }
        if name.starts_with("aws:") {
            return wrong(format!("the name {name:?} begins with aws:, which is reserved"));
        }
        if tags[..at].last().is_some_and(|(other, _)| other == name) {
            return wrong(format!("there are two tags with the name {name:?}"));
        }
    }
    Ok(tags)
}

/// Checks the tags of a document.
///
/// # Errors
/// They are too many, or not valid.
pub fn told(set: TagSet, count_max: usize) -> Result<Tags, Fault> {
    let tag = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    check(set.into_iter().map(tag).collect(), count_max)
}

/// The tags for a response.
pub fn set(tags: Tags) -> TagSet {
    tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect()
}

/// Parses `x-amz-tagging`: a query with a field for each tag.
///
/// # Errors
/// It is no query, or its tags are not valid.
pub fn from_header(text: Option<&str>) -> Result<Tags, Fault> {
    let wrong = || Fault::Argument("x-amz-tagging is no query of tags: NAME=VALUE&…".to_owned());
    let decoded = |text: &str| {
        let bytes = unlade_http::percent::decoded(&text.replace('+', " "))?;
        String::from_utf8(bytes).ok()
    };
    let field = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        decoded(name).zip(decoded(value)).ok_or_else(wrong)
    };
    let fields = text.unwrap_or_default().split('&').filter(|field| !field.is_empty());
    check(fields.map(field).collect::<Result<_, _>>()?, OBJECT_TAGS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_a_header_field_are_a_query() {
        let tags = from_header(Some("a=1&b+c=%C3%A4%26&empty=&bare")).unwrap();
        let due = [("a", "1"), ("b c", "ä&"), ("bare", ""), ("empty", "")];
        assert_eq!(tags, due.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(from_header(None).unwrap(), Tags::new());
        let many: String = (0..11).map(|at| format!("t{at}=&")).collect();
        let long = format!("{}=", "n".repeat(129));
        let deep = format!("n={}", "v".repeat(257));
        for wrong in ["a=1&a=2", "=1", "a=%0", "a=%ff", "a=%00", "aws:x=1", &many, &long, &deep] {
            assert!(from_header(Some(wrong)).is_err(), "{wrong}");
        }
        let ten: String = (0..10).map(|at| format!("t{at}=&")).collect();
        let (name, value) = ("ä".repeat(128), "%C3%BC".repeat(256));
        assert!(from_header(Some(&ten)).is_ok());
        assert!(from_header(Some(&format!("{name}={value}"))).is_ok());
    }
}
