//! A version of a function that is served.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use unlade_fn_model::Manifest;
use unlade_fn_model::isolation::{Preload, Template};
use unlade_fn_model::lifecycle::Version;
use unlade_fn_model::pool::{FunctionId, Share};
use unlade_s3::hint;

use crate::deploy::Code;
use crate::observed::Observed;
use crate::tenant::Tenant;

/// A version of a function. A new deployment creates a new value.
pub struct Function {
    /// The number in the pool.
    pub id: FunctionId,
    /// Its name.
    pub name: String,
    /// The manifest.
    pub manifest: Manifest,
    /// The version.
    pub version: Version,
    /// Its files.
    pub code: Rc<Code>,
    /// The operator's role that it has; `None` for the rights in its manifest.
    pub role_name: Option<String>,
    /// The number of its role, which no other deployment has.
    pub role: u64,
    /// Its tenant.
    pub tenant: Rc<Tenant>,
    /// Its metrics and log, which all versions share.
    pub observed: Rc<Observed>,
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
    /// True if it was deployed: the gateway owns its files.
    pub is_deployed: bool,
    /// Its limits in the pool, once it is served.
    pub(crate) share: Cell<Option<Share>>,
}

/// The name of a version among the functions that are served.
pub fn key(name: &str, version: Version) -> String {
    match version {
        Version::Latest => name.to_owned(),
        Version::Number(number) => format!("{name}:{number}"),
    }
}

impl Function {
    /// Its name among the functions that are served.
    pub fn key(&self) -> String {
        key(&self.name, self.version)
    }
}

impl Drop for Function {
    /// Runs when the last instance has gone, or if the function was never served.
    fn drop(&mut self) {
        // The task that watches its template waits for this.
        self.removed.notify_one();
        self.tenant.forget_role(self.role);
    }
}
