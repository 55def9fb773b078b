//! The object server's state of one worker.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{LookupError, OpenFiles, OpenObject};
use crate::store::Store;

/// The objects as one worker serves them. Only the store is shared between threads.
#[derive(Debug)]
pub struct Objects {
    /// The directory of the objects.
    pub store: Arc<Store>,
    files: RefCell<OpenFiles>,
    writable: bool,
}

impl Objects {
    /// Creates the state of a worker that keeps at most `open_files_max` objects open.
    pub fn new(store: Arc<Store>, open_files_max: usize, writable: bool) -> Objects {
        Objects { store, files: RefCell::new(OpenFiles::new(open_files_max)), writable }
    }

    /// Returns true if objects may be changed.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the object that a request's path names.
    ///
    /// # Errors
    /// The path is not a valid name, or the store has no such object.
    pub fn get(&self, path: &str) -> Result<Rc<OpenObject>, LookupError> {
        self.files.borrow_mut().get(&self.store, path, Instant::now())
    }

    /// Closes objects last checked at least `older_than` ago.
    pub fn expire(&self, older_than: Duration) {
        self.files.borrow_mut().expire(Instant::now(), older_than);
    }
}
