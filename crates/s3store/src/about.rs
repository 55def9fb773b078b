//! What is said of an object beside its bytes, and how it is kept.
//!
//! The file of an object and the file of what is said of it cannot be replaced at once. So the second
//! is written first, and says which file it is about: its length and its time, which the store sets to
//! the nanosecond and never twice alike for a key. It still says what it said of the file that is
//! there until the rename that replaces that one. A file that an operator has put there is one that
//! nothing is said of.

use std::collections::HashMap;

use s3s::dto;
use serde::{Deserialize, Serialize};

use crate::disk::Stat;

/// What clients say of an object, and what the store found of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// `x-amz-meta-…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<HashMap<String, String>>,
    /// Header fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub website_redirect_location: Option<String>,
    /// Without quotes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_tag: String,
    /// Base64, as clients give them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_crc32: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_crc32c: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_crc64nvme: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_sha1: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_sha256: Option<String>,
}

/// How `Expires` is written.
const EXPIRES: dto::TimestampFormat = dto::TimestampFormat::DateTime;

impl About {
    /// `Expires` as it is kept.
    pub fn expires_text(expires: Option<&dto::Timestamp>) -> Option<String> {
        let mut text = Vec::new();
        expires?.format(EXPIRES, &mut text).ok()?;
        String::from_utf8(text).ok()
    }

    /// `Expires` as it was given.
    pub fn expires(&self) -> Option<dto::Timestamp> {
        dto::Timestamp::parse(EXPIRES, self.expires.as_deref()?).ok()
    }

    /// Takes over what is known of the bytes of another object.
    pub fn with_sums_of(self, other: &About) -> About {
        About {
            e_tag: other.e_tag.clone(),
            checksum_crc32: other.checksum_crc32.clone(),
            checksum_crc32c: other.checksum_crc32c.clone(),
            checksum_crc64nvme: other.checksum_crc64nvme.clone(),
            checksum_sha1: other.checksum_sha1.clone(),
            checksum_sha256: other.checksum_sha256.clone(),
            ..self
        }
    }

    /// Takes over what was found of the bytes.
    pub fn set_checksum(&mut self, found: &dto::Checksum) {
        self.checksum_crc32.clone_from(&found.checksum_crc32);
        self.checksum_crc32c.clone_from(&found.checksum_crc32c);
        self.checksum_crc64nvme.clone_from(&found.checksum_crc64nvme);
        self.checksum_sha1.clone_from(&found.checksum_sha1);
        self.checksum_sha256.clone_from(&found.checksum_sha256);
    }
}

/// What is said of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The file's time.
    pub modified_ns: i64,
    /// Its length.
    pub bytes: u64,
    /// What is said.
    #[serde(flatten)]
    pub about: About,
}

impl Version {
    /// Of a file.
    pub fn of(stat: &Stat, about: About) -> Version {
        Version { modified_ns: stat.modified_ns, bytes: stat.bytes, about }
    }

    fn is_of(&self, stat: &Stat) -> bool {
        (self.modified_ns, self.bytes) == (stat.modified_ns, stat.bytes)
    }
}

/// The file of what is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// That of the newest file, and that of the one which it replaces.
    pub versions: Vec<Version>,
}

impl Versions {
    /// What is said of a file, if anything is.
    pub fn of(self, stat: &Stat) -> Option<Version> {
        self.versions.into_iter().find(|version| version.is_of(stat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Kind;

    #[test]
    fn a_file_that_somebody_else_has_put_there_is_one_that_nothing_is_said_of() {
        let stat = Stat { kind: Kind::File, bytes: 3, modified_ns: 7 };
        let about = About { e_tag: "x".to_owned(), ..About::default() };
        let versions = Versions { versions: vec![Version::of(&stat, about)] };
        let text = serde_json::to_vec(&versions).unwrap();
        let again: Versions = serde_json::from_slice(&text).unwrap();
        assert_eq!(again, versions);
        assert_eq!(again.clone().of(&stat).unwrap().about.e_tag, "x");
        assert_eq!(again.clone().of(&Stat { bytes: 4, ..stat }), None);
        assert_eq!(again.of(&Stat { modified_ns: 8, ..stat }), None);
    }

    #[test]
    fn expires_comes_back_as_it_was() {
        let time = dto::Timestamp::from(std::time::SystemTime::UNIX_EPOCH);
        let about = About { expires: About::expires_text(Some(&time)), ..About::default() };
        assert_eq!(about.expires(), Some(time));
    }
}
