//! Multipart uploads: a directory each, in which a file is a part, named by its number and its
//! MD5.

use std::io;
use std::path::PathBuf;

use s3s::crypto::{Checksum as _, Md5};
use serde::{Deserialize, Serialize};

use crate::about::{About, Version};
use crate::body::{copy, hex};
use crate::disk::{self, Disk, DiskFile as _, Stat};
use crate::fault::Fault;
use crate::vault::{Condition, Draft, SMALL_BYTES_MAX, Vault};

/// Most parts of an upload (S3 user guide, *Multipart upload limits*).
pub const PARTS_MAX: i32 = 10_000;
/// Minimum size of a part that is not the last.
const PART_BYTES_MIN: u64 = 5 << 20;
/// The file with the description of the future object.
const UPLOAD: &str = "upload.json";

#[derive(Serialize, Deserialize)]
struct Upload {
    bucket: String,
    key: String,
    about: About,
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub number: i32,
    /// Its MD5.
    pub e_tag: String,
    /// The attributes of its file.
    pub stat: Stat,
    path: PathBuf,
}

impl<D: Disk> Vault<D> {
    /// Begins an upload.
    ///
    /// # Errors
    /// The bucket does not exist, the key is invalid, or the system call failed.
    pub fn begin_upload(&self, bucket: &str, key: &str, about: About) -> Result<String, Fault> {
        match self.open_object(bucket, key) {
            Ok(_) | Err(Fault::NoKey) => {}
            Err(fault) => return Err(fault),
        }
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)?;
        let id = hex(&random);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let text = serde_json::to_vec(&Upload { bucket, key, about }).map_err(io::Error::other)?;
        self.write(&self.upload_path(&id)?.join(UPLOAD), &text)?;
        Ok(id)
    }

    fn upload_path(&self, id: &str) -> Result<PathBuf, Fault> {
        let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { Ok(self.own("uploads").join(id)) } else { Err(Fault::NoUpload) }
    }

    fn upload(&self, bucket: &str, key: &str, id: &str) -> Result<(PathBuf, Upload), Fault> {
        self.check_bucket(bucket)?;
        let dir = self.upload_path(id)?;
        let text = disk::read(&*self.disk, &dir.join(UPLOAD), SMALL_BYTES_MAX);
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Fault::NoUpload,
            _ => error.into(),
        })?;
        let upload: Upload = serde_json::from_slice(&text).map_err(io::Error::other)?;
        match (upload.bucket.as_str(), upload.key.as_str()) == (bucket, key) {
            true => Ok((dir, upload)),
            false => Err(Fault::NoUpload),
        }
    }

    /// Checks that an upload exists.
    ///
    /// # Errors
    /// The upload does not exist, the number is invalid, or the system call failed.
    pub fn check_part(&self, bucket: &str, key: &str, id: &str, number: i32) -> Result<(), Fault> {
        if !(1..=PARTS_MAX).contains(&number) {
            let why =
                format!("Part number must be an integer between 1 and {PARTS_MAX}, inclusive");
            return Err(Fault::Argument(why));
        }
        self.upload(bucket, key, id).map(drop)
    }

    /// Makes a draft a part, durably, and replaces the part with the same number.
    ///
    /// # Errors
    /// The upload does not exist, or the system call failed.
    pub fn add_part(
        &self,
        (bucket, key, id): (&str, &str, &str),
        number: i32,
        draft: Draft<D>,
        e_tag: &str,
    ) -> Result<(), Fault> {
        let (dir, _) = self.upload(bucket, key, id)?;
        let path = dir.join(format!("{number:05}.{e_tag}"));
        self.keep(draft, &path)?;
        for part in self.parts_in(&dir)? {
            if part.number == number && part.path != path {
                self.disk.remove_file(&part.path)?;
            }
        }
        Ok(())
    }

    fn parts_in(&self, dir: &std::path::Path) -> io::Result<Vec<Part>> {
        let mut parts = Vec::new();
        for (name, _) in self.disk.read_dir(dir)? {
            let Some((number, e_tag)) = name.to_str().and_then(|name| name.split_once('.')) else {
                continue;
            };
            let (path, e_tag) = (dir.join(&name), e_tag.to_owned());
            if let (Ok(number), Ok(stat)) = (number.parse(), self.disk.stat(&path)) {
                parts.push(Part { number, e_tag, stat, path });
            }
        }
        // Two parts with a number: an old one that was not removed yet, and its replacement.
        parts.sort_by_key(|part| (part.number, part.stat.modified_ns));
        Ok(parts)
    }

    /// The parts of an upload, sorted by number.
    ///
    /// # Errors
    /// The upload does not exist, or the system call failed.
    pub fn parts(&self, bucket: &str, key: &str, id: &str) -> Result<Vec<Part>, Fault> {
        let (dir, _) = self.upload(bucket, key, id)?;
        let mut parts: Vec<Part> = Vec::new();
        for part in self.parts_in(&dir)? {
            match parts.last_mut().filter(|last| last.number == part.number) {
                Some(last) => *last = part,
                None => parts.push(part),
            }
        }
        Ok(parts)
    }

    /// Makes parts an object, durably, and ends the upload. On an error the upload stays.
    ///
    /// # Errors
    /// The upload does not exist, a part is missing, the condition is not fulfilled, or the system
    /// call failed.
    pub fn complete(
        &self,
        (bucket, key, id): (&str, &str, &str),
        asked: &[(i32, Option<String>)],
        condition: Condition<'_>,
    ) -> Result<Version, Fault> {
        let (dir, upload) = self.upload(bucket, key, id)?;
        if !asked.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Fault::PartOrder);
        }
        let there = self.parts_in(&dir)?;
        let mut chosen = Vec::with_capacity(asked.len());
        for (number, e_tag) in asked {
            let is_it = |part: &&Part| {
                part.number == *number && e_tag.as_ref().is_none_or(|e_tag| *e_tag == part.e_tag)
            };
            chosen.push(there.iter().rev().find(is_it).ok_or(Fault::Part(*number))?);
        }
        let (mut draft, mut sums) = (self.draft()?, Md5::new());
        for (at, part) in chosen.iter().enumerate() {
            if at + 1 < chosen.len() && part.stat.bytes < PART_BYTES_MIN {
                return Err(Fault::PartTooSmall(part.number));
            }
            let file = self.disk.open(&part.path)?;
            if copy(&file, 0..file.stat()?.bytes, &mut draft.file)? != part.e_tag {
                return Err(Fault::Part(part.number));
            }
            sums.update(&unhex(&part.e_tag));
        }
        let e_tag = format!("{}-{}", hex(&sums.finalize()), chosen.len());
        let about = About { e_tag, ..upload.about };
        let version = self.commit(bucket, key, draft, about, condition)?;
        self.retire(&dir)?;
        Ok(version)
    }

    /// Ends an upload, durably, and removes its parts.
    ///
    /// # Errors
    /// The upload does not exist, or the system call failed.
    pub fn abort(&self, bucket: &str, key: &str, id: &str) -> Result<(), Fault> {
        let (dir, _) = self.upload(bucket, key, id)?;
        Ok(self.retire(&dir)?)
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().map(|pair| u8::from_str_radix(pair, 16));
    pairs.filter_map(|pair| byte(pair)?.ok()).collect()
}
