//! Events of changed objects as files, durable with the change.
//!
//! Layout, below `.unlade`:
//! - `outbox/NUMBER.intent`: the event of a change that may not be made yet;
//! - `outbox/NUMBER.made`: an empty file, if the change was made;
//! - `sequence`: the number that no event of this process exceeds.
//!
//! The file of an event is synced, as an intent, in the same step as the metadata of the object, so
//! before the commit point of the change. After the commit point the empty file is made, without a sync. A
//! store that starts finds out if the change of an intent without it was made: the intent says how to see
//! that (its [`Witness`]). The next change of the key would remove this trace, so it first makes the empty
//! file of the former event durable. A failed change looks at the trace at once.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::buckets::FIRST_REGION;
use crate::disk::{self, Disk, there};
use crate::event::{self, Change, Origin, Place};
use crate::fault::Fault;
use crate::record::{Intent, Record, Witness};
use crate::vault::{SMALL_BYTES_MAX, Vault};
use crate::versions::NULL;

/// Digits of a number in a name.
const NUMBER_DIGITS: usize = 16;
const INTENT: &str = "intent";
const MADE: &str = "made";

fn parse_name(name: &str) -> Option<(u64, bool)> {
    let (digits, kind) = name.split_once('.')?;
    let is_made = match kind {
        MADE => true,
        INTENT => false,
        _ => return None,
    };
    let number = u64::from_str_radix(digits, 16).ok();
    Some((number.filter(|_| digits.len() == NUMBER_DIGITS)?, is_made))
}

impl<D: Disk> Vault<D> {
    fn outbox_dir(&self) -> PathBuf {
        self.own("outbox")
    }

    fn event_path(&self, number: u64, kind: &str) -> PathBuf {
        self.outbox_dir().join(format!("{number:016x}.{kind}"))
    }

    /// Begins the event of a change, if a rule of the bucket matches it. The caller has locked the key,
    /// writes the intent before the commit point, and passes the result to [`Vault::conclude`].
    ///
    /// # Errors
    /// There are as many events as may be, or the system call failed.
    pub fn intend(
        &self,
        change: &Change<'_>,
        (bucket, key, version): (&str, &str, Option<&str>),
        origin: &Origin,
        witness: Witness,
    ) -> Result<Option<Intent>, Fault> {
        if self.outbox.gateway().is_none() {
            return Ok(None);
        }
        self.fasten(bucket, key)?;
        let rules = self.notifications(bucket)?;
        let Some(rule) = rules.into_iter().find(|rule| rule.matches(change.name(), key)) else {
            return Ok(None);
        };
        let now_ns = disk::nanoseconds(SystemTime::now());
        let region = self.location(bucket)?;
        let number = self.outbox.begin(u64::try_from(now_ns).unwrap_or(0), |reserved| {
            self.write(&self.own("sequence"), reserved.to_string().as_bytes())
        })?;
        let region = region.as_deref().unwrap_or(FIRST_REGION);
        let version = version.filter(|id| *id != NULL);
        let place = Place { bucket, region, key, version };
        let event = event::event(change, &place, origin, (&rule.id, number, now_ns));
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let record = Record { bucket, key, function: rule.function, witness, event };
        match serde_json::to_vec(&record) {
            Ok(text) => {
                let path = self.event_path(number, INTENT);
                Ok(Some(Intent { number, record, path, text }))
            }
            Err(error) => {
                self.outbox.cancel();
                Err(io::Error::other(error).into())
            }
        }
    }

    /// Makes a removal, or adds a delete marker, with its event: the intent is durable before.
    pub fn intend_and<T>(
        &self,
        intent: Option<Intent>,
        change: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let written = match &intent {
            Some(intent) => self.write_beside(&[intent.file()], None),
            None => Ok(()),
        };
        let done = written.map_err(Fault::from).and_then(|()| change());
        self.conclude(intent, done)
    }

    /// Ends a change: its event goes to the gateway if the change was made, and is removed if not.
    pub fn conclude<T>(&self, intent: Option<Intent>, done: Result<T, Fault>) -> Result<T, Fault> {
        let Some(Intent { number, record, path, .. }) = intent else { return done };
        let is_made = done.is_ok()
            || self.is_made(&record).unwrap_or_else(|error| {
                tracing::warn!(%error, "store: a failed change; its event is given up");
                false
            });
        if is_made {
            // The file is there even if the store is killed; it need not be durable yet.
            if let Err(error) = self.mark(number) {
                tracing::warn!(%error, path = %path.display(), "store: an event without a mark");
            }
            self.outbox.make_ready(number, (record.bucket, record.key));
        } else {
            let removed = there(self.disk.remove_file(&path))
                .and_then(|_| there(self.disk.sync_dir(&self.outbox_dir())));
            if let Err(error) = removed {
                tracing::warn!(%error, path = %path.display(), "store: an event is left behind");
            }
            self.outbox.cancel();
        }
        done
    }

    /// Makes the mark of a key's former event durable, before its trace is removed.
    fn fasten(&self, bucket: &str, key: &str) -> io::Result<()> {
        let Some(number) = self.outbox.loose(bucket, key) else { return Ok(()) };
        self.mark(number)?;
        self.disk.sync_dir(&self.outbox_dir())?;
        self.outbox.fasten(bucket, key);
        if !self.outbox.is_ready(number) {
            // The gateway has taken it meanwhile.
            self.remove_event(number);
        }
        Ok(())
    }

    /// Makes the empty file of an event whose change was made.
    fn mark(&self, number: u64) -> io::Result<()> {
        match self.disk.create(&self.event_path(number, MADE)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns true if the change of an event was made.
    fn is_made(&self, record: &Record) -> io::Result<bool> {
        let (bucket, key) = (record.bucket.as_str(), record.key.as_str());
        Ok(match &record.witness {
            Witness::Object(due_ns) => {
                let now = self.current(bucket, key)?;
                now.is_some_and(|now| now.modified_ns() >= *due_ns)
            }
            Witness::NoObject => self.current(bucket, key)?.is_none(),
            Witness::Version(order) => self.has_order(bucket, key, *order)?,
            Witness::NoVersion(id) => {
                let slots = self.slots(bucket, key, self.versioning(bucket)?)?;
                !slots.iter().any(|slot| slot.id == *id)
            }
        })
    }

    /// Finds the events of a previous process, and removes those of changes that were not made.
    ///
    /// # Errors
    /// The system call failed.
    pub fn load_outbox(&self) -> io::Result<()> {
        let reserved = there(disk::read(&*self.disk, &self.own("sequence"), SMALL_BYTES_MAX))?;
        let reserved = reserved.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
        self.outbox.resume(reserved.unwrap_or(0));
        let names = there(self.disk.read_dir(&self.outbox_dir()))?.unwrap_or_default();
        let found: Vec<(u64, bool)> =
            names.iter().filter_map(|(name, _)| parse_name(name.to_str()?)).collect();
        let marked: BTreeSet<u64> =
            found.iter().filter(|(_, is_made)| *is_made).map(|(number, _)| *number).collect();
        let events: BTreeSet<u64> =
            found.iter().filter(|(_, is_made)| !is_made).map(|(number, _)| *number).collect();
        for number in marked.difference(&events) {
            self.disk.remove_file(&self.event_path(*number, MADE))?;
        }
        for number in events {
            let path = self.event_path(number, INTENT);
            let is_marked = marked.contains(&number);
            let text = disk::read(&*self.disk, &path, SMALL_BYTES_MAX)?;
            match serde_json::from_slice::<Record>(&text) {
                Ok(record) if is_marked || self.is_made(&record)? => {
                    self.mark(number)?;
                    self.outbox.restore(number, (record.bucket, record.key));
                }
                Err(error) if is_marked => {
                    tracing::error!(%error, path = %path.display(), "store: is no event, and left alone");
                }
                // The change was not made, or the file is incomplete and the change not begun.
                _ => self.disk.remove_file(&path)?,
            }
        }
        // A process that was killed has made marks without a sync.
        if !found.is_empty() {
            self.disk.sync_dir(&self.outbox_dir())?;
        }
        Ok(())
    }

    /// Reads an event for the gateway.
    ///
    /// # Errors
    /// The file is not there or no event.
    pub fn record(&self, number: u64) -> io::Result<Record> {
        let text = disk::read(&*self.disk, &self.event_path(number, INTENT), SMALL_BYTES_MAX)?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    }

    /// Removes an event that the gateway has. After a power failure it may be there again.
    pub fn remove_event(&self, number: u64) {
        for kind in [INTENT, MADE] {
            let path = self.event_path(number, kind);
            if let Err(error) = there(self.disk.remove_file(&path)) {
                tracing::warn!(%error, path = %path.display(), "store: an event is sent again");
            }
        }
        self.outbox.remove(number);
    }
}

#[cfg(test)]
mod tests;
