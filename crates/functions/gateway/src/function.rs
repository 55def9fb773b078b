//! A deployed function.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::Notify;
use unlade_fn_model::Manifest;
use unlade_fn_model::isolation::{Preload, Template};
use unlade_fn_model::pool::FunctionId;
use unlade_s3::hint;

use crate::deploy;
use crate::tenant::Tenant;

/// A deployed function. A new deployment creates a new value.
pub struct Function {
    /// The number in the pool.
    pub id: FunctionId,
    /// Its name.
    pub name: String,
    /// The manifest.
    pub manifest: Manifest,
    /// Its files.
    pub code: PathBuf,
    /// The number of its role, which later deployments reuse.
    pub role: u64,
    /// Its tenant.
    pub tenant: Rc<Tenant>,
    /// The objects that its invocations will read, according to the manifest.
    pub(crate) hints: Vec<hint::Template>,
    /// Modules that its templates preload: fewer than in the manifest if a template has failed to
    /// preload them.
    pub(crate) preload: RefCell<Preload>,
    /// Its template, once it was created.
    pub(crate) template: tokio::sync::Mutex<Option<Rc<dyn Template>>>,
    /// True once it was removed or replaced.
    pub(crate) is_removed: Cell<bool>,
    /// Notified when it is removed, replaced or dropped.
    pub(crate) removed: Rc<Notify>,
    /// True if it was deployed: the gateway owns its files and removes them with it.
    pub is_deployed: bool,
    /// True if its files are kept when it is dropped.
    pub(crate) is_kept: Cell<bool>,
}

impl Drop for Function {
    /// Runs when the last instance has gone, or if the function was never served.
    fn drop(&mut self) {
        // The task that watches its template waits for this.
        self.removed.notify_one();
        if self.is_removed.get() && self.is_deployed && !self.is_kept.get() {
            deploy::discard(&self.code);
        }
    }
}
