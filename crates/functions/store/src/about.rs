//! Metadata of an object, stored in a file of its own.
//!
//! The file of an object and the file of its metadata cannot be replaced atomically together. So
//! the name of the metadata file contains the length and the modification time of the object's
//! file; the store sets that time to the nanosecond, and never to the same value twice for a key.
//! The new metadata file is written next to the previous one, and is valid once the object's file
//! has been renamed. A file that another program has put there has no metadata.

use std::collections::HashMap;

use s3s::dto::{self, ChecksumType};
use serde::{Deserialize, Serialize};

use crate::checksums::{Algorithm, Parted};
use crate::disk::Stat;

/// Names and values of tags, sorted.
pub type Tags = Vec<(String, String)>;

/// Metadata from clients, and values that the store computed.
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
    /// Another class than `STANDARD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    #[serde(skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// The ETag without quotes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_tag: String,
    /// Checksums in base64, as clients send them.
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
    /// The checksum's type, and the parts, of an object that was uploaded in parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parted: Option<Parted>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartAbout>,
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartAbout {
    /// Its number in the upload.
    pub number: i32,
    /// Its length.
    pub bytes: u64,
    /// Its checksum, of the object's algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// The text format of `Expires`.
const EXPIRES: dto::TimestampFormat = dto::TimestampFormat::DateTime;

impl About {
    /// `Expires` as it is stored.
    pub fn expires_text(expires: Option<&dto::Timestamp>) -> Option<String> {
        let mut text = Vec::new();
        expires?.format(EXPIRES, &mut text).ok()?;
        String::from_utf8(text).ok()
    }

    /// `Expires` as the client sent it.
    pub fn expires(&self) -> Option<dto::Timestamp> {
        dto::Timestamp::parse(EXPIRES, self.expires.as_deref()?).ok()
    }

    /// Stores the computed checksums.
    pub fn set_checksum(&mut self, found: &dto::Checksum) {
        self.checksum_crc32.clone_from(&found.checksum_crc32);
        self.checksum_crc32c.clone_from(&found.checksum_crc32c);
        self.checksum_crc64nvme.clone_from(&found.checksum_crc64nvme);
        self.checksum_sha1.clone_from(&found.checksum_sha1);
        self.checksum_sha256.clone_from(&found.checksum_sha256);
    }

    /// The checksums.
    pub fn checksum(&self) -> dto::Checksum {
        let kind = self.parted.map_or(ChecksumType::FULL_OBJECT, Parted::kind);
        let mut all = dto::Checksum {
            checksum_crc32: self.checksum_crc32.clone(),
            checksum_crc32c: self.checksum_crc32c.clone(),
            checksum_crc64nvme: self.checksum_crc64nvme.clone(),
            checksum_sha1: self.checksum_sha1.clone(),
            checksum_sha256: self.checksum_sha256.clone(),
            ..dto::Checksum::default()
        };
        let is_there = Algorithm::ALL.into_iter().any(|algorithm| algorithm.of(&all).is_some());
        all.checksum_type = is_there.then(|| ChecksumType::from_static(kind));
        all
    }

    /// The checksums, if a condition holds.
    pub fn checksum_if(&self, holds: bool) -> dto::Checksum {
        if holds { self.checksum() } else { dto::Checksum::default() }
    }

    /// The checksum of a part, by its place, from 1 on. That of an object without parts is its own.
    pub fn checksum_of_part(&self, place: i32) -> dto::Checksum {
        if self.parts.is_empty() {
            return self.checksum();
        }
        let part =
            usize::try_from(place).ok().and_then(|place| self.parts.get(place.checked_sub(1)?));
        let sum = part.and_then(|part| part.checksum.clone());
        let Some((parted, sum)) = self.parted.zip(sum) else { return dto::Checksum::default() };
        let kind = Some(ChecksumType::from_static(parted.kind()));
        dto::Checksum { checksum_type: kind, ..parted.algorithm.only(sum) }
    }

    /// The range of a part in the object, by its place, from 1 on.
    pub fn part(&self, place: usize) -> Option<std::ops::Range<u64>> {
        let (before, rest) = self.parts.split_at_checked(place.checked_sub(1)?)?;
        let start = before.iter().map(|part| part.bytes).sum();
        Some(start..start + rest.first()?.bytes)
    }
}

/// A file and its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The file.
    pub stat: Stat,
    /// The metadata.
    pub about: About,
    /// The id of the version, in a bucket with versions.
    pub id: Option<String>,
}

/// The state of versions in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versioning {
    /// They were never enabled.
    Off,
    /// Each change adds a version.
    Enabled,
    /// A change replaces the `null` version; other versions stay.
    Suspended,
}

/// The suffix of the metadata file for a file with this length and time.
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
