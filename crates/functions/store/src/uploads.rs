//! Multipart uploads: a directory each, in which a file is a part, named by its number and its
//! MD5 and its checksum.

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::Checksum;
use serde::{Deserialize, Serialize};

use crate::about::{About, PartAbout, Version};
use crate::body::{copy, hex};
use crate::checksums::{Algorithm, Parted};
use crate::disk::{self, Disk, DiskFile as _, Stat, there};
use crate::fault::Fault;
use crate::vault::{Cause, Condition, Draft, OpenObject, SMALL_BYTES_MAX, Vault};

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
    /// The checksum that the object is to have.
    #[serde(default)]
    parted: Option<Parted>,
}

/// A part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub number: i32,
    /// Its MD5.
    pub e_tag: String,
    /// Its checksum, of the upload's algorithm.
    pub checksum: Option<String>,
    /// The attributes of its file.
    pub stat: Stat,
    path: PathBuf,
}

/// A part of a future object, as a client names it.
#[derive(Clone, Debug)]
pub struct AskedPart {
    /// Its number.
    pub number: i32,
    /// The expected MD5.
    pub e_tag: Option<String>,
    /// The expected checksums.
    pub checksum: Checksum,
}

/// An upload that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The key of the future object.
    pub key: String,
    /// Its id.
    pub id: String,
    /// When, in nanoseconds since 1970.
    pub begun_ns: i64,
}

impl<D: Disk> Vault<D> {
    /// The uploads of a bucket, sorted by key and time.
    ///
    /// # Errors
    /// The bucket does not exist, or the system call failed.
    pub fn uploads(&self, bucket: &str) -> Result<Vec<Begun>, Fault> {
        self.check_bucket(bucket)?;
        Ok(self.uploads_in(bucket)?)
    }

    /// Ends the uploads of a bucket that was removed.
    ///
    /// # Errors
    /// The system call failed.
    pub fn end_uploads(&self, bucket: &str) -> io::Result<()> {
        for begun in self.uploads_in(bucket)? {
            self.retire(&self.own("uploads").join(begun.id))?;
        }
        Ok(())
    }

    fn uploads_in(&self, bucket: &str) -> io::Result<Vec<Begun>> {
        let top = self.own("uploads");
        let mut found = Vec::new();
        for (name, _) in there(self.disk.read_dir(&top))?.unwrap_or_default() {
            let path = top.join(&name).join(UPLOAD);
            // It may end at any time.
            let text = there(disk::read(&*self.disk, &path, SMALL_BYTES_MAX))?;
            let stat = there(self.disk.stat(&path))?;
            let (Some(text), Some(stat), Some(id)) = (text, stat, name.to_str()) else { continue };
            let upload: Upload = serde_json::from_slice(&text).map_err(io::Error::other)?;
            if upload.bucket == bucket {
                let (key, id) = (upload.key, id.to_owned());
                found.push(Begun { key, id, begun_ns: stat.modified_ns });
            }
        }
        let order = |one: &Begun| (one.key.clone(), one.begun_ns, one.id.clone());
        found.sort_by_cached_key(order);
        Ok(found)
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// The bucket does not exist, the key is invalid, or the system call failed.
    pub fn begin_upload(
        &self,
        bucket: &str,
        key: &str,
        about: About,
        parted: Option<Parted>,
    ) -> Result<String, Fault> {
        self.check(bucket, key)?;
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)?;
        let id = hex(&random);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let upload = Upload { bucket, key, about, parted };
        let text = serde_json::to_vec(&upload).map_err(io::Error::other)?;
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

    /// Checks that an upload exists; returns the checksum that it asks for.
    ///
    /// # Errors
    /// The upload does not exist, the number is invalid, or the system call failed.
    pub fn check_part(
        &self,
        (bucket, key, id): (&str, &str, &str),
        number: i32,
    ) -> Result<Option<Parted>, Fault> {
        if !(1..=PARTS_MAX).contains(&number) {
            let why =
                format!("Part number must be an integer between 1 and {PARTS_MAX}, inclusive");
            return Err(Fault::Argument(why));
        }
        Ok(self.upload(bucket, key, id)?.1.parted)
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
        sums: &Checksum,
    ) -> Result<(), Fault> {
        let (dir, upload) = self.upload(bucket, key, id)?;
        let sum = upload.parted.and_then(|parted| parted.algorithm.of(sums));
        let sum = sum.map(|sum| format!(".{}", URL_SAFE_NO_PAD.encode(sum))).unwrap_or_default();
        let path = dir.join(format!("{number:05}.{e_tag}{sum}"));
        let _lock = self.lock("", id);
        // An upload that has ended meanwhile stays ended.
        self.upload(bucket, key, id)?;
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
            let (e_tag, sum) = e_tag.split_once('.').map_or((e_tag, None), |(e, s)| (e, Some(s)));
            let sum = sum.and_then(|sum| URL_SAFE_NO_PAD.decode(sum).ok());
            let checksum = sum.and_then(|sum| String::from_utf8(sum).ok());
            let (path, e_tag) = (dir.join(&name), e_tag.to_owned());
            if let (Ok(number), Ok(stat)) = (number.parse(), self.disk.stat(&path)) {
                parts.push(Part { number, e_tag, checksum, stat, path });
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
    pub fn parts(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
    ) -> Result<(Vec<Part>, Option<Parted>), Fault> {
        let (dir, upload) = self.upload(bucket, key, id)?;
        let mut parts: Vec<Part> = Vec::new();
        for part in self.parts_in(&dir)? {
            match parts.last_mut().filter(|last| last.number == part.number) {
                Some(last) => *last = part,
                None => parts.push(part),
            }
        }
        Ok((parts, upload.parted))
    }

    /// Makes parts an object, durably, and ends the upload. On an error the upload stays.
    ///
    /// # Errors
    /// The upload does not exist, a part is missing, the condition is not fulfilled, or the system
    /// call failed.
    pub fn complete(
        &self,
        (bucket, key, id): (&str, &str, &str),
        asked: &[AskedPart],
        due: &Checksum,
        condition: Condition<'_>,
        cause: &Cause,
    ) -> Result<Version, Fault> {
        if !asked.is_sorted_by(|a, b| a.number < b.number) {
            return Err(Fault::PartOrder);
        }
        let _ending = self.endings.begin(id);
        let (dir, upload) = match self.upload(bucket, key, id) {
            Err(Fault::NoUpload) => return self.completed(bucket, key, asked),
            found => found?,
        };
        let there = self.parts_in(&dir)?;
        let mut chosen = Vec::with_capacity(asked.len());
        for AskedPart { number, e_tag, checksum } in asked {
            let is_it = |part: &&Part| {
                part.number == *number && e_tag.as_ref().is_none_or(|e_tag| *e_tag == part.e_tag)
            };
            let part = there.iter().rev().find(is_it).ok_or(Fault::Part(*number))?;
            let own = upload.parted.and_then(|parted| parted.algorithm.of(checksum));
            if own.is_some() && own != part.checksum.as_ref() {
                return Err(Fault::Part(*number));
            }
            chosen.push(part);
        }
        let mut draft = self.draft()?;
        let (e_tag, checksum) = self.join(&chosen, upload.parted, &mut draft)?;
        // Clients may leave out the number of parts behind a checksum of checksums.
        let is_due = |due: &String, found: &String| {
            due == found || found.rsplit_once('-').is_some_and(|(sum, _)| sum == due)
        };
        let differs = |one: &Algorithm| {
            one.of(due).is_some_and(|due| one.of(&checksum).is_none_or(|found| !is_due(due, found)))
        };
        if let Some(parted) = upload.parted.filter(|parted| differs(&parted.algorithm)) {
            return Err(Fault::Digest(parted.algorithm.name()));
        }
        let part = |part: &&Part| PartAbout {
            number: part.number,
            bytes: part.stat.bytes,
            checksum: part.checksum.clone(),
        };
        let parts = chosen.iter().map(part).collect();
        let mut about = About { e_tag, parts, parted: upload.parted, ..upload.about };
        about.set_checksum(&checksum);
        let version = self.commit(bucket, key, draft, about, condition, cause)?;
        // No part is added meanwhile, nor made a directory that nobody finds.
        let _lock = self.lock("", id);
        self.retire(&dir)?;
        Ok(version)
    }

    /// The object of an upload that was completed before: a client that did not get the answer asks
    /// again. Its ETag says that it has the same parts.
    fn completed(&self, bucket: &str, key: &str, asked: &[AskedPart]) -> Result<Version, Fault> {
        let mut sums = Md5::new();
        for part in asked {
            sums.update(&unhex(part.e_tag.as_deref().unwrap_or_default()));
        }
        let due = format!("{}-{}", hex(&sums.finalize()), asked.len());
        match self.open_object(bucket, key, None) {
            Ok(OpenObject { stat, about: Some(about), id, .. }) if about.e_tag == due => {
                Ok(Version { stat, about, id })
            }
            Ok(_) | Err(Fault::NoKey | Fault::Deleted(_)) => Err(Fault::NoUpload),
            Err(fault) => Err(fault),
        }
    }

    /// Writes the parts one behind the other; returns the ETag and the checksum of the object.
    fn join(
        &self,
        chosen: &[&Part],
        parted: Option<Parted>,
        draft: &mut Draft<D>,
    ) -> Result<(String, Checksum), Fault> {
        let (mut sums, mut hasher) = (Md5::new(), ChecksumHasher::default());
        if let Some(parted) = parted.filter(|parted| parted.is_whole) {
            parted.algorithm.start(&mut hasher);
        }
        for (at, part) in chosen.iter().enumerate() {
            if at + 1 < chosen.len() && part.stat.bytes < PART_BYTES_MIN {
                return Err(Fault::PartTooSmall(part.number));
            }
            let file = self.disk.open(&part.path)?;
            let range = 0..file.stat()?.bytes;
            if copy(&file, range, &mut draft.file, &mut hasher)? != part.e_tag {
                return Err(Fault::Part(part.number));
            }
            sums.update(&unhex(&part.e_tag));
        }
        let e_tag = format!("{}-{}", hex(&sums.finalize()), chosen.len());
        let of_parts = chosen.iter().map(|part| part.checksum.clone()).collect::<Option<Vec<_>>>();
        let checksum = match (parted.filter(|parted| !parted.is_whole), of_parts) {
            (Some(parted), Some(of_parts)) => parted.composite(&of_parts)?,
            _ => hasher.finalize(),
        };
        Ok((e_tag, checksum))
    }

    /// Ends an upload, durably, and removes its parts.
    ///
    /// # Errors
    /// The upload does not exist, or the system call failed.
    pub fn abort(&self, bucket: &str, key: &str, id: &str) -> Result<(), Fault> {
        let _ending = self.endings.begin(id);
        let _lock = self.lock("", id);
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::about::Versioning;
    use crate::disk::Local;

    #[test]
    fn an_upload_that_is_completed_twice_at_a_time_makes_one_version() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::open(Local, dir.path()).unwrap();
        vault.create_bucket("box", None).unwrap();
        vault.set_versioning("box", Versioning::Enabled).unwrap();
        for round in 0..20 {
            let key = format!("k{round}");
            let id = vault.begin_upload("box", &key, About::default(), None).unwrap();
            let mut draft = vault.draft().unwrap();
            draft.file.append(b"part").unwrap();
            let mut sums = Md5::new();
            sums.update(b"part");
            let e_tag = hex(&sums.finalize());
            let upload = ("box", key.as_str(), id.as_str());
            vault.add_part(upload, 1, draft, &e_tag, &Checksum::default()).unwrap();
            let part = AskedPart { number: 1, e_tag: Some(e_tag), checksum: Checksum::default() };
            let begin = Barrier::new(3);
            let complete = || {
                begin.wait();
                let asked = std::slice::from_ref(&part);
                let cause = Cause::default();
                vault.complete(upload, asked, &Checksum::default(), &|_| Ok(()), &cause).unwrap()
            };
            let abort = || {
                begin.wait();
                vault.abort("box", &key, "f".repeat(32).as_str())
            };
            let (one, other, foreign) = std::thread::scope(|scope| {
                let [one, other] = [scope.spawn(complete), scope.spawn(complete)];
                let foreign = scope.spawn(abort);
                (one.join().unwrap(), other.join().unwrap(), foreign.join().unwrap())
            });
            assert_eq!((one.id, one.about.e_tag), (other.id, other.about.e_tag));
            assert!(matches!(foreign, Err(Fault::NoUpload)));
            let made = vault.listed_versions("box", &key, Versioning::Enabled).unwrap();
            assert_eq!(made.len(), 1, "{made:?}");
            assert!(vault.uploads("box").unwrap().is_empty());
        }
    }
}
