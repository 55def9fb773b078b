//! What is said of an object beside its bytes, and of which file.
//!
//! The file of an object and the file of what is said of it cannot be replaced at once. So the
//! second has the length and the time of the first in its name; the store sets that time to the
//! nanosecond, and never twice alike for a key. It is written beside the one that it follows, and
//! counts when the object's file has been renamed. Nothing is said of a file that another program
//! has put there.

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

/// A file, and what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The file.
    pub stat: Stat,
    /// What is said.
    pub about: About,
}

/// What a file's name ends with that says something of a file with this length and time.
pub fn suffix(stat: &Stat) -> String {
    format!("@{}-{}.json", stat.modified_ns, stat.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Kind;

    #[test]
    fn what_is_said_comes_back_and_is_of_one_file() {
        let stat = Stat { kind: Kind::File, bytes: 3, modified_ns: 7 };
        assert_eq!(suffix(&stat), "@7-3.json");
        let others = [Stat { bytes: 4, ..stat }, Stat { modified_ns: 8, ..stat }];
        assert!(others.iter().all(|other| suffix(other) != suffix(&stat)));
        let about = About { e_tag: "x".to_owned(), ..About::default() };
        let text = serde_json::to_vec(&about).unwrap();
        assert_eq!(text, br#"{"e_tag":"x"}"#);
        assert_eq!(serde_json::from_slice::<About>(&text).unwrap(), about);
    }

    #[test]
    fn expires_comes_back_as_it_was() {
        let time = dto::Timestamp::from(std::time::SystemTime::UNIX_EPOCH);
        let about = About { expires: About::expires_text(Some(&time)), ..About::default() };
        assert_eq!(about.expires(), Some(time));
    }
}
