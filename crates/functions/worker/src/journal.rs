//! The journal of early acknowledgements: a file whose records are durable before the caller
//! receives its success.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};
use unlade_s3::journal::{MAGIC, RECORD_BYTES_MAX, UnfinishedWrite, Write, begun, ended, replay};

use crate::store::Body;

/// Largest journal that is read at start.
const FILE_BYTES_MAX: u64 = 16 << 30;
/// A journal that is longer takes no further writes until all of its writes have ended and it is
/// empty again. One record more still stays below the limit of a readable journal.
const GROWTH_BYTES_MAX: u64 = 1 << 30;

/// A journal that was read and is locked. It may be moved between threads.
#[derive(Debug)]
pub struct Opened {
    file: File,
    next_id: u64,
    length: u64,
    unfinished: Vec<UnfinishedWrite>,
}

/// An open journal, locked.
#[derive(Debug)]
pub struct Journal {
    file: Arc<File>,
    next_id: Cell<u64>,
    open: Cell<usize>,
    length: Cell<u64>,
    growth_bytes_max: u64,
    /// Serializes the appends of records.
    turn: Rc<tokio::sync::Mutex<()>>,
    failed: RefCell<Option<String>>,
}

impl Journal {
    /// Opens a journal, or creates it. Returns the writes that were not finished.
    ///
    /// # Errors
    /// The system call failed; [`io::ErrorKind::WouldBlock`] if another worker has locked it.
    pub fn open(path: &Path) -> io::Result<(Journal, Vec<UnfinishedWrite>)> {
        Journal::read(path).map(Journal::from)
    }

    /// Reads a journal, or creates it.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn read(path: &Path) -> io::Result<Opened> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        if file.metadata()?.len() > FILE_BYTES_MAX {
            return Err(io::Error::other("the journal is too long to be read"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let found = replay(&bytes);
        let mut length = found.whole_bytes as u64;
        if length == 0 {
            if bytes.len() >= MAGIC.len() {
                return Err(io::Error::other("the file is no journal; move it away"));
            }
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(MAGIC)?;
            length = MAGIC.len() as u64;
        }
        // A torn record was never acknowledged.
        file.set_len(length)?;
        file.sync_all()?;
        let next_id = found.next_id.max(1);
        Ok(Opened { file, next_id, length, unfinished: found.unfinished })
    }

    /// Creates a journal from one that was read. Returns the writes that were not finished.
    pub fn from(opened: Opened) -> (Journal, Vec<UnfinishedWrite>) {
        let journal = Journal {
            file: Arc::new(opened.file),
            next_id: Cell::new(opened.next_id),
            open: Cell::new(opened.unfinished.len()),
            length: Cell::new(opened.length),
            growth_bytes_max: GROWTH_BYTES_MAX,
            turn: Rc::default(),
            failed: RefCell::default(),
        };
        (journal, opened.unfinished)
    }

    /// Makes the start of a write durable; `None` if that fails. Must not be cancelled: the record
    /// would be written all the same.
    pub async fn begun(
        &self,
        parameters: &Map<String, Value>,
        invocation: &str,
        body: &Body,
    ) -> Option<u64> {
        let _turn = self.turn.lock().await;
        if self.failed.borrow().is_some() || self.length.get() > self.growth_bytes_max {
            return None;
        }
        let id = self.next_id.get();
        let write = Write {
            operation: "PutObject".to_owned(),
            parameters: parameters.clone(),
            invocation: invocation.to_owned(),
        };
        let mut record = Vec::with_capacity(body.bytes().len() + 1024);
        begun(&mut record, id, &write, &[body.bytes()]);
        if record.len() > RECORD_BYTES_MAX {
            return None;
        }
        self.append(record, true).await?;
        self.next_id.set(id + 1);
        self.open.set(self.open.get() + 1);
        Some(id)
    }

    /// Records that a write has ended. If this record is lost, the write is repeated.
    pub async fn ended(&self, id: u64) {
        let _turn = self.turn.lock().await;
        let mut record = Vec::new();
        ended(&mut record, id);
        self.open.set(self.open.get().saturating_sub(1));
        if self.append(record, false).await.is_some() && self.open.get() == 0 {
            let empty = MAGIC.len() as u64;
            if self.file.set_len(empty).is_ok() {
                self.length.set(empty);
            }
        }
    }

    async fn append(&self, record: Vec<u8>, durable: bool) -> Option<()> {
        use std::os::unix::fs::FileExt;
        let (file, at, bytes) = (self.file.clone(), self.length.get(), record.len() as u64);
        let work = tokio::task::spawn_blocking(move || {
            let written = file.write_all_at(&record, at);
            let kept = written.and_then(|()| if durable { file.sync_data() } else { Ok(()) });
            if kept.is_err() {
                // A record that was not acknowledged must not be replayed.
                let _ = file.set_len(at);
            }
            kept
        });
        match work.await {
            Ok(Ok(())) => {
                self.length.set(at + bytes);
                Some(())
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "journal: writes are made at once from now on");
                *self.failed.borrow_mut() = Some(error.to_string());
                None
            }
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn what_was_not_finished_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let parameters = Map::from_iter([("Key".to_owned(), "k".into())]);
        let (journal, none) = Journal::open(&path).unwrap();
        assert!(none.is_empty());
        let busy = Journal::open(&path).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
        runtime().block_on(async {
            let body = Body::from(b"one".to_vec());
            let first = journal.begun(&parameters, "i", &body).await.unwrap();
            journal.begun(&parameters, "i", &Body::from(b"two".to_vec())).await.unwrap();
            journal.ended(first).await;
        });
        drop(journal);
        let (journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id, found[0].body.as_slice()), (2, &b"two"[..]));
        runtime().block_on(journal.ended(2));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), MAGIC.len() as u64);
        drop(journal);
        std::fs::write(&path, b"something else").unwrap();
        assert!(Journal::open(&path).is_err());
    }

    #[test]
    fn one_that_has_grown_takes_no_more_until_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&dir.path().join("journal")).unwrap();
        journal.growth_bytes_max = 100;
        runtime().block_on(async {
            let body = Body::from(vec![1; 200]);
            let first = journal.begun(&Map::new(), "i", &body).await.unwrap();
            assert_eq!(journal.begun(&Map::new(), "i", &body).await, None);
            journal.ended(first).await;
            assert!(journal.begun(&Map::new(), "i", &body).await.is_some());
        });
    }
}
