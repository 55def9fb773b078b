//! The records of deployed functions, in memory and on the disk. A change is durable before it is
//! visible; changes of one function follow each other.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use tokio::sync::Mutex;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::Record;

use crate::deploy::{self, Code};
use crate::record_file;

/// See the [module](self).
pub struct Registry {
    state: PathBuf,
    records: RefCell<BTreeMap<String, Rc<Record>>>,
    codes: RefCell<HashMap<PathBuf, Weak<Code>>>,
    /// The function and the alias of each URL, by its identifier.
    urls: RefCell<HashMap<String, (String, String)>>,
    turns: RefCell<HashMap<String, Rc<Mutex<()>>>>,
    deploying: Rc<RefCell<BTreeSet<String>>>,
}

/// The right to deploy a function; no other deployment of it runs meanwhile.
pub struct Deploying {
    name: String,
    all: Rc<RefCell<BTreeSet<String>>>,
}

impl Drop for Deploying {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(&self.name);
    }
}

impl Registry {
    /// Creates a registry without records.
    pub fn new(state: &Path) -> Registry {
        Registry {
            state: state.to_owned(),
            records: RefCell::default(),
            codes: RefCell::default(),
            urls: RefCell::default(),
            turns: RefCell::default(),
            deploying: Rc::default(),
        }
    }

    /// Reads all records, after the removal of files that none of them names.
    ///
    /// # Errors
    /// The system call failed.
    pub fn load(&self) -> Result<(), deploy::DeployError> {
        deploy::sweep(&self.state)?;
        let found = deploy::deployed(&self.state)?;
        for (name, record) in found {
            self.put(&name, Some(record));
        }
        Ok(())
    }

    /// Makes a durable record visible, or its removal.
    fn put(&self, name: &str, record: Option<Record>) {
        let mut urls = self.urls.borrow_mut();
        urls.retain(|_, (function, _)| function != name);
        let mut records = self.records.borrow_mut();
        let Some(record) = record else {
            records.remove(name);
            return;
        };
        let own = record.urls.iter();
        urls.extend(own.map(|(alias, url)| (url.id.clone(), (name.to_owned(), alias.clone()))));
        records.insert(name.to_owned(), Rc::new(record));
    }

    /// The function and the alias of a URL; the alias is empty for that of the function itself.
    pub fn url(&self, id: &str) -> Option<(String, String)> {
        self.urls.borrow().get(id).cloned()
    }

    /// The record of a function.
    pub fn get(&self, name: &str) -> Option<Rc<Record>> {
        self.records.borrow().get(name).cloned()
    }

    /// All records, by name.
    pub fn all(&self) -> Vec<(String, Rc<Record>)> {
        let records = self.records.borrow();
        records.iter().map(|(name, record)| (name.clone(), record.clone())).collect()
    }

    /// The directory of a revision's files, shared by all functions that use it.
    pub fn code(&self, path: &Path) -> Rc<Code> {
        let mut codes = self.codes.borrow_mut();
        if let Some(code) = codes.get(path).and_then(Weak::upgrade) {
            return code;
        }
        codes.retain(|_, code| code.strong_count() > 0);
        let code = Rc::new(Code::new(path));
        codes.insert(path.to_owned(), Rc::downgrade(&code));
        code
    }

    /// Removes the files of a revision as soon as no function uses them, unless the function's
    /// record names them.
    pub fn release(&self, name: &str, number: u64) {
        let is_named = |record: &Rc<Record>| record.codes().contains(&number);
        if !self.get(name).is_some_and(|record| is_named(&record)) {
            self.code(&deploy::code(&self.state, name, number)).doom();
        }
    }

    /// Begins a deployment.
    ///
    /// # Errors
    /// Another deployment of the function is running.
    pub fn deploying(&self, name: &str) -> Result<Deploying, Refusal> {
        if !self.deploying.borrow_mut().insert(name.to_owned()) {
            let why = format!(
                "The operation cannot be performed at this time. An update is in progress for \
                 the function {name}; try again when it has ended"
            );
            return Err(Refusal::Conflict(why));
        }
        Ok(Deploying { name: name.to_owned(), all: self.deploying.clone() })
    }

    /// Returns true if a deployment of the function is running.
    pub fn is_deploying(&self, name: &str) -> bool {
        self.deploying.borrow().contains(name)
    }

    /// Changes the record of a function: creates it, or removes it if the result has none. The
    /// change is durable when this returns.
    ///
    /// # Errors
    /// The change is refused, or cannot be stored; the record is then as before.
    pub async fn change<T>(
        &self,
        name: &str,
        act: impl FnOnce(Option<Record>) -> Result<(Option<Record>, T), Refusal>,
    ) -> Result<T, Refusal> {
        let turn = self.turns.borrow_mut().entry(name.to_owned()).or_default().clone();
        let result = {
            let _turn = turn.lock().await;
            self.store(name, act).await
        };
        // The map and this call have the turn: no other one waits.
        if Rc::strong_count(&turn) == 2 {
            self.turns.borrow_mut().remove(name);
        }
        result
    }

    async fn store<T>(
        &self,
        name: &str,
        act: impl FnOnce(Option<Record>) -> Result<(Option<Record>, T), Refusal>,
    ) -> Result<T, Refusal> {
        let before = self.get(name);
        let (after, result) = act(before.as_deref().cloned())?;
        let home = deploy::home(&self.state, name);
        let write = move || {
            match &after {
                Some(record) => record_file::write(&home, record)?,
                None => record_file::remove(&home)?,
            }
            Ok(after)
        };
        let stored = tokio::task::spawn_blocking(write).await;
        let stored = stored.unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = |error| Refusal::Service(format!("{name} cannot be stored: {error}"));
        self.put(name, stored.map_err(failed)?);
        for number in before.iter().flat_map(|record| record.codes()) {
            self.release(name, number);
        }
        Ok(result)
    }

    /// Changes an existing record, as [`Registry::change`].
    ///
    /// # Errors
    /// There is no such function, the change is refused, or it cannot be stored.
    pub async fn edit<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut Record) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let absent = || Refusal::NotFound(name.to_owned());
        self.get(name).ok_or_else(absent)?;
        self.change(name, |record| {
            let mut record = record.ok_or_else(absent)?;
            let result = act(&mut record)?;
            Ok((Some(record), result))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use unlade_fn_model::Manifest;
    use unlade_fn_model::lifecycle::{Qualifier, UrlAuth, UrlChange, Version};

    use super::*;

    fn record(number: u64) -> Record {
        let manifest = Manifest::of_handler("app.handler");
        Record::new("t", deploy::edition(manifest, number, &[], &deploy::stamp()))
    }

    #[tokio::test]
    async fn a_change_is_durable_or_has_not_happened() {
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path());
        let tag = |record: &mut Record| record.tag([("k".to_owned(), "v".to_owned())].into());
        assert_eq!(registry.edit("f", tag).await.unwrap_err().status(), 404);
        assert!(registry.turns.borrow().is_empty(), "an absent function leaves nothing");
        let code = deploy::code(state.path(), "f", 1);
        std::fs::create_dir_all(&code).unwrap();
        registry.change("f", |_| Ok((Some(record(1)), ()))).await.unwrap();
        registry.edit("f", tag).await.unwrap();
        let refused = registry.edit("f", |record| {
            record.tags.clear();
            Err::<(), _>(Refusal::Conflict("no".to_owned()))
        });
        assert_eq!(refused.await.unwrap_err().status(), 409);
        let again = Registry::new(state.path());
        again.load().unwrap();
        assert_eq!(again.all(), registry.all());
        assert_eq!(again.get("f").unwrap().tags["k"], "v");
        // A record that cannot be stored does not change.
        let home = deploy::home(state.path(), "f");
        std::fs::create_dir(home.join("record.new")).unwrap();
        let stored = registry.edit("f", |record| record.reserve(Some(1))).await;
        assert_eq!(stored.unwrap_err().status(), 500);
        assert_eq!(registry.get("f").unwrap().reserved, None);
        std::fs::remove_dir(home.join("record.new")).unwrap();
        registry.change("f", |_| Ok((None, ()))).await.unwrap();
        assert!(registry.get("f").is_none() && !code.exists());
        assert!(registry.turns.borrow().is_empty());
    }

    #[tokio::test]
    async fn a_url_is_found_as_long_as_its_function_has_it() {
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path());
        for name in ["f", "g"] {
            std::fs::create_dir_all(deploy::code(state.path(), name, 1)).unwrap();
            registry.change(name, |_| Ok((Some(record(1)), ()))).await.unwrap();
            let change = UrlChange { auth: Some(UrlAuth::None), cors: None };
            let id = format!("of{name}");
            let make = |own: &mut Record| own.create_url(None, &id, change, String::new());
            registry.edit(name, make).await.unwrap();
        }
        let of = |name: &str| Some((name.to_owned(), String::new()));
        assert_eq!((registry.url("off"), registry.url("ofg")), (of("f"), of("g")));
        let again = Registry::new(state.path());
        again.load().unwrap();
        assert_eq!(again.url("off"), of("f"));
        registry.edit("f", |own| own.delete_url(None)).await.unwrap();
        assert_eq!((registry.url("off"), registry.url("ofg")), (None, of("g")));
        registry.change("g", |_| Ok((None, ()))).await.unwrap();
        assert_eq!(registry.url("ofg"), None);
    }

    #[tokio::test]
    async fn files_stay_while_a_version_or_an_instance_needs_them() {
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(state.path());
        let path = |number| deploy::code(state.path(), "f", number);
        for number in 1..=3 {
            std::fs::create_dir_all(path(number)).unwrap();
        }
        let mut first = record(1);
        first.publish(Default::default(), deploy::stamp()).unwrap();
        registry.change("f", |_| Ok((Some(first), ()))).await.unwrap();
        let update = |number| move |own: &mut Record| own.update(record(number).latest, None);
        registry.edit("f", update(2)).await.unwrap();
        assert!(path(1).exists(), "version 1 has it");
        let used = registry.code(&path(2));
        registry.edit("f", update(3)).await.unwrap();
        assert!(path(2).exists(), "an instance has it");
        drop(used);
        assert!(!path(2).exists());
        let first = Qualifier::Version(Version::Number(1));
        registry.edit("f", |own| own.delete_version(&first)).await.unwrap();
        assert!(!path(1).exists() && path(3).exists());
    }

    #[test]
    fn one_deployment_of_a_function_runs() {
        let registry = Registry::new(Path::new("/nothing"));
        let first = registry.deploying("f").unwrap();
        assert_eq!(registry.deploying("f").err().unwrap().status(), 409);
        assert!(registry.is_deploying("f") && registry.deploying("g").is_ok());
        drop(first);
        assert!(!registry.is_deploying("f") && registry.deploying("f").is_ok());
    }
}
