//! Cache of open objects of one worker: serving a cached object needs no system call before its
//! bytes are sent.
//!
//! An entry is valid until an upload or removal by this process touches its name, and for at most
//! [`REVALIDATE`] after the last check. That bounds the delay until a change by another process is
//! noticed.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::name::{NameError, ObjectName};
use crate::reply;
use crate::store::{Object, ObjectError, Store};

/// How long an entry is valid without a check of the file system.
pub const REVALIDATE: Duration = Duration::from_secs(1);
/// Longest cached path, in bytes; longer ones are looked up each time.
const PATH_BYTES_MAX: usize = 512;

/// An open object with the constant parts of its response heads.
#[derive(Debug)]
pub struct OpenObject {
    /// The object.
    pub object: Object,
    /// Status line and all fields of a 200 except Date and Connection.
    pub head_200: Box<[u8]>,
    /// The fields that describe the object, for other statuses.
    pub fields: Box<[u8]>,
}

impl OpenObject {
    fn new(name: &ObjectName, object: Object) -> OpenObject {
        let fields = reply::object_fields(name, &object);
        let head_200 = reply::whole_head(object.bytes, &fields);
        OpenObject { object, head_200: head_200.into(), fields: fields.into() }
    }
}

/// Error of looking up a path.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The path is not a valid object name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The store cannot open the object.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl LookupError {
    /// The HTTP status of the refusal.
    pub fn status(&self) -> u16 {
        match self {
            LookupError::Name(error) => error.status(),
            LookupError::Object(error) => error.status(),
        }
    }
}

/// Bounded cache of open objects by request path, with the clock replacement algorithm.
#[derive(Debug)]
pub struct OpenFiles {
    index: HashMap<Rc<str>, usize>,
    slots: Vec<CacheSlot>,
    hand: usize,
    entries_max: usize,
}

#[derive(Debug)]
struct CacheSlot {
    path: Rc<str>,
    entry: Rc<OpenObject>,
    checked: Instant,
    stripe: usize,
    generation: u64,
    used: bool,
}

impl OpenFiles {
    /// Creates a cache of at most `entries_max` open objects; 0 disables it.
    pub fn new(entries_max: usize) -> OpenFiles {
        OpenFiles { index: HashMap::new(), slots: Vec::new(), hand: 0, entries_max }
    }

    /// Returns the object that a request's path names, from the cache or from the store.
    ///
    /// # Errors
    /// The path is not a valid name, or the store has no such object.
    pub fn get(
        &mut self,
        store: &Store,
        path: &str,
        now: Instant,
    ) -> Result<Rc<OpenObject>, LookupError> {
        if let Some(at) = self.index.get(path).copied()
            && let Some(slot) = self.slots.get_mut(at)
            && slot.generation == store.generation(slot.stripe)
            && now.saturating_duration_since(slot.checked) < REVALIDATE
        {
            slot.used = true;
            return Ok(slot.entry.clone());
        }
        self.load(store, path, now)
    }

    fn load(
        &mut self,
        store: &Store,
        path: &str,
        now: Instant,
    ) -> Result<Rc<OpenObject>, LookupError> {
        let name = ObjectName::from_path(path)?;
        let stripe = store.stripe_of(&name);
        // Read before the file is opened, so that a change in between makes the entry stale.
        let generation = store.generation(stripe);
        let object = match store.lookup(&name) {
            Ok(object) => object,
            Err(error) => {
                self.forget(path);
                return Err(error.into());
            }
        };
        let entry = Rc::new(OpenObject::new(&name, object));
        if self.entries_max > 0 && path.len() <= PATH_BYTES_MAX {
            let path: Rc<str> = path.into();
            let slot = CacheSlot {
                path,
                entry: entry.clone(),
                checked: now,
                stripe,
                generation,
                used: false,
            };
            self.keep(slot);
        }
        Ok(entry)
    }

    fn keep(&mut self, slot: CacheSlot) {
        if let Some(at) = self.index.get(&slot.path).copied() {
            self.slots[at] = slot;
        } else if self.slots.len() < self.entries_max {
            self.index.insert(slot.path.clone(), self.slots.len());
            self.slots.push(slot);
        } else {
            let at = self.victim();
            self.index.remove(&self.slots[at].path);
            self.index.insert(slot.path.clone(), at);
            self.slots[at] = slot;
        }
    }

    /// Finds the next entry that was not used since the hand last passed it.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].used) {
                return at;
            }
        }
    }

    fn forget(&mut self, path: &str) {
        let Some(at) = self.index.remove(path) else { return };
        self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.path.clone(), at);
        }
        self.hand = self.hand.checked_rem(self.slots.len()).unwrap_or(0);
    }

    /// Drops entries last checked at least `older_than` ago, so that an idle worker does not keep
    /// files open (and their space allocated) that another process has removed.
    pub fn expire(&mut self, now: Instant, older_than: Duration) {
        let stale: Vec<Rc<str>> = self
            .slots
            .iter()
            .filter(|slot| now.saturating_duration_since(slot.checked) >= older_than)
            .map(|slot| slot.path.clone())
            .collect();
        for path in stale {
            self.forget(&path);
        }
    }

    /// Returns the number of open objects.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if no object is open.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::condition::Conditions;
    use crate::upload::Upload;

    struct TestStore {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
        store: Arc<Store>,
        start: Instant,
    }

    fn home() -> TestStore {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path(), true).unwrap());
        let path = directory.path().to_owned();
        TestStore { _directory: directory, path, store, start: Instant::now() }
    }

    impl TestStore {
        fn put(&self, path: &str, content: &str) {
            let mut upload = Upload::begin(&self.store).unwrap();
            upload.write(content.as_bytes()).unwrap();
            let name = ObjectName::from_path(path).unwrap();
            upload.commit(&name, &Conditions::default()).unwrap();
        }
    }

    #[test]
    fn a_change_through_the_store_shows_at_once() {
        let home = home();
        let mut files = OpenFiles::new(8);
        home.put("/x", "1");
        let first = files.get(&home.store, "/x", home.start).unwrap();
        let again = files.get(&home.store, "/x", home.start).unwrap();
        assert!(Rc::ptr_eq(&first, &again));
        home.put("/x", "22");
        assert_eq!(files.get(&home.store, "/x", home.start).unwrap().object.bytes, 2);
        let name = ObjectName::from_path("/x").unwrap();
        home.store.delete(&name, &Conditions::default()).unwrap();
        assert_eq!(files.get(&home.store, "/x", home.start).unwrap_err().status(), 404);
        assert!(files.is_empty());
    }

    #[test]
    fn a_change_behind_its_back_shows_after_the_age_limit() {
        let home = home();
        let mut files = OpenFiles::new(8);
        std::fs::write(home.path.join("x"), "1").unwrap();
        files.get(&home.store, "/x", home.start).unwrap();
        std::fs::write(home.path.join("y"), "22").unwrap();
        std::fs::rename(home.path.join("y"), home.path.join("x")).unwrap();
        let before = files.get(&home.store, "/x", home.start).unwrap();
        let after = files.get(&home.store, "/x", home.start + REVALIDATE).unwrap();
        assert_eq!((before.object.bytes, after.object.bytes), (1, 2));
    }

    #[test]
    fn what_is_not_used_goes_first() {
        let home = home();
        let mut files = OpenFiles::new(2);
        for name in ["/a", "/b", "/c"] {
            home.put(name, name);
        }
        let a = files.get(&home.store, "/a", home.start).unwrap();
        files.get(&home.store, "/b", home.start).unwrap();
        files.get(&home.store, "/a", home.start).unwrap();
        files.get(&home.store, "/c", home.start).unwrap();
        assert_eq!(files.len(), 2);
        assert!(Rc::ptr_eq(&a, &files.get(&home.store, "/a", home.start).unwrap()));
    }

    #[test]
    fn idle_entries_expire() {
        let home = home();
        let mut files = OpenFiles::new(4);
        home.put("/a", "a");
        files.get(&home.store, "/a", home.start).unwrap();
        files.expire(home.start + REVALIDATE, Duration::from_secs(5));
        assert_eq!(files.len(), 1);
        files.expire(home.start + Duration::from_secs(5), Duration::from_secs(5));
        assert!(files.is_empty());
    }

    #[test]
    fn names_are_checked_and_absence_is_not_kept() {
        let home = home();
        let mut files = OpenFiles::new(4);
        assert_eq!(files.get(&home.store, "/../x", home.start).unwrap_err().status(), 400);
        assert_eq!(files.get(&home.store, "/x", home.start).unwrap_err().status(), 404);
        home.put("/x", "x");
        assert!(files.get(&home.store, "/x", home.start).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_the_order_the_index_and_the_slots_agree(
            steps in proptest::collection::vec((0u8..4, 0u8..6), 1..60),
        ) {
            let home = home();
            let mut files = OpenFiles::new(3);
            let mut now = home.start;
            for (what, which) in steps {
                let path = format!("/{which}");
                let file = home.path.join(which.to_string());
                match what {
                    0 => std::fs::write(&file, "x").unwrap(),
                    1 => drop(std::fs::remove_file(&file)),
                    2 => now += REVALIDATE,
                    _ => {}
                }
                let found = files.get(&home.store, &path, now);
                if what != 1 {
                    prop_assert!(found.is_ok() || !file.exists());
                }
                prop_assert!(files.len() <= 3);
                prop_assert_eq!(files.index.len(), files.slots.len());
                for (path, at) in &files.index {
                    prop_assert_eq!(&files.slots[*at].path, path);
                }
            }
        }
    }
}
