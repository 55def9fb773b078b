//! Versions of objects.
//!
//! Layout, below `.unlade`:
//! - `versioning/BUCKET`: `Enabled` or `Suspended`; a bucket without it never had versions;
//! - `versions/BUCKET/KEY/`, with an encoded key: a file `ORDER ID.object` for each version, or
//!   `ORDER ID.marker` for a delete marker, and `ORDER ID.json` with the metadata of the former.
//!
//! `ORDER` is the complement of the time in nanoseconds, so that the first name is the newest
//! version. It increases with each version of a key even if the clock is set back. The order and
//! eight random digits are the id of a version for clients; or the id is `null`, for a version that
//! was written while versions are suspended.
//!
//! The object that a bucket without versions had of the key is its `null` version, and older than
//! all versions in the directory. A `null` version in the directory hides it, and hides older ones
//! in the directory: only the newest one exists for clients. So the commit point of a change is
//! one rename, or one removal, here as well.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use s3s::dto::ETagCondition;

use crate::about::{About, Version, Versioning};
use crate::body::{hex, md5_of};
use crate::conditions::Removal;
use crate::disk::{self, Disk, DiskFile as _, Stat, there};
use crate::event::{Change, Origin};
use crate::fault::Fault;
use crate::names;
use crate::record::{Intent, Witness};
use crate::vault::{Cause, Condition, Current, Draft, SMALL_BYTES_MAX, Vault};

/// The id of a version that has no id of its own.
pub const NULL: &str = "null";
const ORDER_DIGITS: usize = 16;
const RANDOM_DIGITS: usize = 8;

/// A version of a key, or a delete marker.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The id for clients.
    pub id: String,
    /// True if it is a delete marker.
    pub is_marker: bool,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// In the key's directory of versions.
    Own { path: PathBuf, modified_ns: i64 },
    /// The object from before versions.
    Unversioned(Current),
}

/// The name of a version in its directory.
struct OwnName {
    order: u64,
    id: String,
    is_marker: bool,
    path: PathBuf,
}

/// The effect of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The version that was removed, or the delete marker that was added.
    pub id: Option<String>,
    /// True if that is a delete marker.
    pub is_marker: bool,
}

/// A version in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The id for clients.
    pub id: String,
    /// True if it is the newest one of its key.
    pub is_latest: bool,
    /// The time of the version, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its file and metadata; `None` for a delete marker.
    pub object: Option<(Stat, Option<About>)>,
}

impl Listed {
    /// Returns true if this version comes behind another one of its key in a list, of which only the
    /// id is known: it is removed. The place of one with the id `null` is unknown; then all are
    /// behind it.
    pub fn is_behind(&self, id: &str) -> bool {
        let Some(order) =
            id.get(..ORDER_DIGITS).and_then(|order| u64::from_str_radix(order, 16).ok())
        else {
            return true;
        };
        if self.id == NULL { self.modified_ns < time_of(order) } else { self.id.as_str() > id }
    }
}

fn is_digits(text: &str, count: usize) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == count && text.bytes().all(is_digit)
}

fn time_of(order: u64) -> i64 {
    i64::try_from(!order).unwrap_or(i64::MAX)
}

impl OwnName {
    fn parse(dir: &Path, name: &str) -> Option<OwnName> {
        let (stem, kind) = name.split_once('.')?;
        let is_marker = match kind {
            "object" => false,
            "marker" => true,
            _ => return None,
        };
        let (digits, rest) = stem.split_at_checked(ORDER_DIGITS)?;
        if !is_digits(digits, ORDER_DIGITS) {
            return None;
        }
        let id = match rest {
            NULL => NULL.to_owned(),
            _ if is_digits(rest, RANDOM_DIGITS) => stem.to_owned(),
            _ => return None,
        };
        let order = u64::from_str_radix(digits, 16).ok()?;
        Some(OwnName { order, id, is_marker, path: dir.join(name) })
    }
}

impl<D: Disk> Vault<D> {
    fn versioning_path(&self, bucket: &str) -> PathBuf {
        self.own("versioning").join(bucket)
    }

    fn versions_of(&self, bucket: &str) -> PathBuf {
        self.own("versions").join(bucket)
    }

    fn versions_dir(&self, bucket: &str, key: &str) -> PathBuf {
        self.versions_of(bucket).join(names::ordered_path(key))
    }

    /// The state of versions in a bucket.
    ///
    /// # Errors
    /// The system call failed, or the state is none.
    pub fn versioning(&self, bucket: &str) -> io::Result<Versioning> {
        let path = self.versioning_path(bucket);
        let text = there(disk::read(&*self.disk, &path, SMALL_BYTES_MAX))?;
        match text.as_deref() {
            None => Ok(Versioning::Off),
            Some(b"Enabled") => Ok(Versioning::Enabled),
            Some(b"Suspended") => Ok(Versioning::Suspended),
            Some(_) => Err(io::Error::other(format!(
                "{} is neither Enabled nor Suspended; write one of them",
                path.display()
            ))),
        }
    }

    /// Sets the state of versions in a bucket, durably.
    ///
    /// # Errors
    /// The bucket does not exist, versions cannot be turned off, or the system call failed.
    pub fn set_versioning(&self, bucket: &str, versioning: Versioning) -> Result<(), Fault> {
        let _alone = self.alone();
        self.check_bucket(bucket)?;
        let text = match versioning {
            Versioning::Enabled => "Enabled",
            Versioning::Suspended => "Suspended",
            Versioning::Off => return Err(Fault::Argument("versions are not turned off".into())),
        };
        Ok(self.write(&self.versioning_path(bucket), text.as_bytes())?)
    }

    /// The names of all versions of a key, the newest first, with those that clients do not see.
    fn own_names(&self, bucket: &str, key: &str) -> io::Result<Vec<OwnName>> {
        let dir = self.versions_dir(bucket, key);
        let found = there(self.disk.read_dir(&dir))?.unwrap_or_default();
        let parse = |(name, _): &(std::ffi::OsString, _)| OwnName::parse(&dir, name.to_str()?);
        let mut names: Vec<OwnName> = found.iter().filter_map(parse).collect();
        names.sort_by_key(|name| name.order);
        Ok(names)
    }

    /// The versions of a key, the newest first.
    ///
    /// # Errors
    /// The system call failed.
    pub fn slots(&self, bucket: &str, key: &str, state: Versioning) -> io::Result<Vec<Slot>> {
        let mut slots: Vec<Slot> = Vec::new();
        let mut has_null = false;
        // A writer adds a version before it removes this file, so one of both is seen.
        let current = self.current(bucket, key)?;
        if state != Versioning::Off {
            for OwnName { order, id, is_marker, path } in self.own_names(bucket, key)? {
                let is_null = id == NULL;
                if !(is_null && has_null) {
                    let place = Place::Own { path, modified_ns: time_of(order) };
                    slots.push(Slot { id, is_marker, place });
                }
                has_null |= is_null;
            }
        }
        if !has_null && let Some(current) = current {
            let place = Place::Unversioned(current);
            slots.push(Slot { id: NULL.to_owned(), is_marker: false, place });
        }
        Ok(slots)
    }

    /// The file of a version.
    pub fn file_of<'a>(&self, slot: &'a Slot) -> &'a Path {
        match &slot.place {
            Place::Own { path, .. } => path,
            Place::Unversioned(current) => &current.path,
        }
    }

    /// The metadata of a version's file.
    ///
    /// # Errors
    /// The system call failed.
    pub fn about_slot(
        &self,
        bucket: &str,
        key: &str,
        slot: &Slot,
        stat: &Stat,
    ) -> io::Result<Option<About>> {
        match &slot.place {
            Place::Own { path, .. } => self.read_about(&path.with_extension("json")),
            Place::Unversioned(_) => self.about(bucket, key, stat),
        }
    }

    /// Replaces the metadata of an object, or of its version with an id, durably. The caller has
    /// locked the key.
    ///
    /// # Errors
    /// The version does not exist, or the system call failed.
    pub fn replace_about(
        &self,
        bucket: &str,
        key: &str,
        id: Option<&str>,
        stat: &Stat,
        about: &About,
    ) -> Result<(), Fault> {
        let slots = self.slots(bucket, key, self.versioning(bucket)?)?;
        let path = match Self::choose(slots, id)?.place {
            Place::Own { path, .. } => path.with_extension("json"),
            Place::Unversioned(_) => self.about_path(bucket, key, stat),
        };
        let text = serde_json::to_vec(about).map_err(io::Error::other)?;
        Ok(self.write(&path, &text)?)
    }

    /// Chooses a version by its id, or the newest one.
    ///
    /// # Errors
    /// There is no such version, or it is a delete marker.
    pub fn choose(slots: Vec<Slot>, asked: Option<&str>) -> Result<Slot, Fault> {
        let found = match asked {
            None => slots.into_iter().next().ok_or(Fault::NoKey)?,
            Some(id) => slots.into_iter().find(|slot| slot.id == id).ok_or(Fault::NoVersion)?,
        };
        match (&found.place, found.is_marker, asked) {
            (_, false, _) => Ok(found),
            (_, true, None) => Err(Fault::Deleted(found.id)),
            (Place::Own { modified_ns, .. }, true, Some(_)) => {
                Err(Fault::Marker { modified_ns: *modified_ns, id: found.id })
            }
            (Place::Unversioned(_), true, Some(_)) => Err(Fault::NoVersion),
        }
    }

    /// Makes a draft the newest version of a key, durably. The caller has locked the key.
    pub fn add_version(
        &self,
        (bucket, key, state): (&str, &str, Versioning),
        draft: &mut Draft<D>,
        about: About,
        condition: Condition<'_>,
        cause: &Cause,
    ) -> Result<Version, Fault> {
        let slots = self.slots(bucket, key, state)?;
        let before = match slots.first().filter(|slot| !slot.is_marker) {
            Some(slot) => {
                let stat = self.disk.stat(self.file_of(slot))?;
                let about = self.about_slot(bucket, key, slot, &stat)?.unwrap_or_default();
                Some(Version { stat, about, id: Some(slot.id.clone()) })
            }
            None => None,
        };
        condition(before.as_ref())?;
        let (dir, name, id) = self.new_name(bucket, key, state)?;
        draft.file.set_modified(time_of(name))?;
        let stem = stem(name, &id);
        let text = serde_json::to_vec(&about).map_err(io::Error::other)?;
        let stat = draft.file.stat()?;
        let change = cause.change(stat.bytes, &about);
        let place = (bucket, key, Some(id.as_str()));
        let intent = self.intend(&change, place, &cause.origin, Witness::Version(name))?;
        let path = dir.join(format!("{stem}.json"));
        let own: (&Path, &[u8]) = (&path, &text);
        let files: Vec<_> = [own].into_iter().chain(intent.as_ref().map(Intent::file)).collect();
        let written = self.write_beside(&files, Some(&draft.file));
        let settled =
            written.and_then(|()| self.settle(draft, &dir.join(format!("{stem}.object"))));
        self.conclude(intent, settled.map_err(Fault::from))?;
        if state == Versioning::Suspended {
            self.remove_nulls(bucket, key, Some(name))?;
        }
        Ok(Version { stat, about, id: Some(id) })
    }

    /// Returns true if a key has a version or delete marker of an order.
    ///
    /// # Errors
    /// The system call failed.
    pub fn has_order(&self, bucket: &str, key: &str, order: u64) -> io::Result<bool> {
        Ok(self.own_names(bucket, key)?.iter().any(|name| name.order == order))
    }

    /// The directory, the order and the id of the next version of a key.
    fn new_name(
        &self,
        bucket: &str,
        key: &str,
        state: Versioning,
    ) -> Result<(PathBuf, u64, String), Fault> {
        let now = u64::try_from(disk::nanoseconds(SystemTime::now())).unwrap_or(0);
        let newest = self.own_names(bucket, key)?.first().map_or(0, |name| !name.order);
        let order = !now.max(newest.saturating_add(1));
        let id = match state {
            Versioning::Enabled => {
                let mut random = [0; RANDOM_DIGITS / 2];
                rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                    .map_err(io::Error::from)?;
                format!("{order:016x}{}", hex(&random))
            }
            Versioning::Off | Versioning::Suspended => NULL.to_owned(),
        };
        Ok((self.versions_dir(bucket, key), order, id))
    }

    /// Removes all `null` versions of a key, durably, except one. The newest one is removed last:
    /// it hides the others.
    fn remove_nulls(&self, bucket: &str, key: &str, except: Option<u64>) -> Result<(), Fault> {
        self.remove_unversioned(bucket, key)?;
        for name in self.own_names(bucket, key)?.iter().rev() {
            if name.id == NULL && except != Some(name.order) {
                self.remove_own(name)?;
            }
        }
        Ok(())
    }

    fn remove_own(&self, name: &OwnName) -> io::Result<()> {
        there(self.disk.remove_file(&name.path))?;
        if let Some(dir) = name.path.parent() {
            self.disk.sync_dir(dir)?;
        }
        there(self.disk.remove_file(&name.path.with_extension("json"))).map(drop)
    }

    /// Checks the conditions of a removal. Returns false if there is no such version.
    fn check_removal(
        &self,
        (bucket, key, state): (&str, &str, Versioning),
        asked: Option<&str>,
        removal: &Removal,
    ) -> Result<bool, Fault> {
        let slots = self.slots(bucket, key, state)?;
        let is_it = |slot: &&Slot| asked.is_none_or(|asked| slot.id == asked);
        let Some(slot) = slots.iter().find(is_it) else { return Ok(false) };
        if let (true, Place::Own { modified_ns, .. }) = (slot.is_marker, &slot.place) {
            return removal.check(None, *modified_ns, None).map(|()| true);
        }
        let path = self.file_of(slot);
        let stat = self.disk.stat(path)?;
        let about = self.about_slot(bucket, key, slot, &stat)?;
        let e_tag = match about.map(|about| about.e_tag).filter(|e_tag| !e_tag.is_empty()) {
            Some(e_tag) => e_tag,
            None => md5_of(&self.disk.open(path)?, stat.bytes)?,
        };
        removal.check(Some(&e_tag), stat.modified_ns, Some(stat.bytes)).map(|()| true)
    }

    /// Removes a version, or the newest one by a delete marker, durably; a missing one is not an
    /// error.
    ///
    /// # Errors
    /// The bucket does not exist, a condition is not fulfilled, or the system call failed.
    pub fn delete(
        &self,
        bucket: &str,
        key: &str,
        asked: Option<&str>,
        removal: &Removal,
        origin: &Origin,
    ) -> Result<Deleted, Fault> {
        let _shared = self.shared();
        self.check(bucket, key)?;
        let _own = self.lock(bucket, key);
        let state = self.versioning(bucket)?;
        if !removal.is_empty() && !self.check_removal((bucket, key, state), asked, removal)? {
            if asked.is_none() && removal.if_match == Some(ETagCondition::Any) {
                return Err(Fault::Precondition);
            }
            // Nothing is removed, and no delete marker is added.
            return Ok(Deleted { id: asked.map(str::to_owned), is_marker: false });
        }
        match (asked, state) {
            (None, Versioning::Off) => {
                // A removal of no object is no change.
                let intent = match self.current(bucket, key)? {
                    Some(_) => {
                        let place = (bucket, key, None);
                        self.intend(&Change::Removed, place, origin, Witness::NoObject)?
                    }
                    None => None,
                };
                self.intend_and(intent, || self.remove_unversioned(bucket, key))?;
                Ok(Deleted::default())
            }
            (None, state) => {
                let (dir, order, id) = self.new_name(bucket, key, state)?;
                let path = dir.join(format!("{}.marker", stem(order, &id)));
                let place = (bucket, key, Some(id.as_str()));
                let witness = Witness::Version(order);
                let intent = self.intend(&Change::Marked, place, origin, witness)?;
                self.intend_and(intent, || Ok(self.keep(self.draft()?, &path)?))?;
                if state == Versioning::Suspended {
                    self.remove_nulls(bucket, key, Some(order))?;
                }
                Ok(Deleted { id: Some(id), is_marker: true })
            }
            (Some(asked), state) => {
                let slots = self.slots(bucket, key, state)?;
                let is_marker = slots.iter().any(|slot| slot.id == asked && slot.is_marker);
                let intent = match slots.iter().any(|slot| slot.id == asked) {
                    true => {
                        let place = (bucket, key, Some(asked));
                        let witness = Witness::NoVersion(asked.to_owned());
                        self.intend(&Change::Removed, place, origin, witness)?
                    }
                    false => None,
                };
                self.intend_and(intent, || self.remove_version(bucket, key, (asked, state)))?;
                self.tidy(bucket, key)?;
                Ok(Deleted { id: Some(asked.to_owned()), is_marker })
            }
        }
    }

    /// Removes the version of an id, durably; a missing one is not an error.
    fn remove_version(
        &self,
        bucket: &str,
        key: &str,
        (id, state): (&str, Versioning),
    ) -> Result<(), Fault> {
        if id == NULL {
            return self.remove_nulls(bucket, key, None);
        }
        if state != Versioning::Off {
            let names = self.own_names(bucket, key)?;
            for name in names.iter().filter(|name| name.id == id) {
                self.remove_own(name)?;
            }
        }
        Ok(())
    }

    /// Removes the directory of a key that has no version.
    fn tidy(&self, bucket: &str, key: &str) -> io::Result<()> {
        let dir = self.versions_dir(bucket, key);
        if self.own_names(bucket, key)?.is_empty() {
            self.remove_tree(&dir)?;
            self.prune(&dir, &self.versions_of(bucket));
        }
        Ok(())
    }

    /// The versions of a key for a list, the newest first.
    ///
    /// # Errors
    /// The system call failed.
    pub fn listed_versions(
        &self,
        bucket: &str,
        key: &str,
        state: Versioning,
    ) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for (at, slot) in self.slots(bucket, key, state)?.into_iter().enumerate() {
            let (modified_ns, object) = match (&slot.place, slot.is_marker) {
                (Place::Own { modified_ns, .. }, true) => (*modified_ns, None),
                _ => {
                    // It may go at any time.
                    let Some(stat) = there(self.disk.stat(self.file_of(&slot)))? else { continue };
                    let about = self.about_slot(bucket, key, &slot, &stat)?;
                    (stat.modified_ns, Some((stat, about)))
                }
            };
            found.push(Listed { id: slot.id, is_latest: at == 0, modified_ns, object });
        }
        Ok(found)
    }

    /// Returns true if a bucket has versions or delete markers.
    ///
    /// # Errors
    /// The system call failed.
    pub fn has_versions(&self, bucket: &str) -> io::Result<bool> {
        let is_one = |path: &Path| {
            let kind = path.extension().and_then(std::ffi::OsStr::to_str);
            matches!(kind, Some("object" | "marker"))
        };
        self.has(&self.versions_of(bucket), &mut |path| is_one(path))
    }

    /// Removes the state of versions of a bucket that does not exist.
    ///
    /// # Errors
    /// The system call failed.
    pub fn remove_versioning(&self, bucket: &str) -> io::Result<()> {
        self.remove_tree(&self.versions_of(bucket))?;
        let path = self.versioning_path(bucket);
        match (there(self.disk.remove_file(&path))?, path.parent()) {
            (Some(()), Some(dir)) => self.disk.sync_dir(dir),
            _ => Ok(()),
        }
    }

    /// The root of the tree of a bucket's versions.
    pub fn versions_root(&self, bucket: &str) -> PathBuf {
        self.versions_of(bucket)
    }
}

fn stem(order: u64, id: &str) -> String {
    if id == NULL { format!("{order:016x}{NULL}") } else { id.to_owned() }
}

#[cfg(test)]
mod tests;
