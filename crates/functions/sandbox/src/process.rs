//! Sandboxed processes: a zygote in namespaces of its own, which forks instances.
//!
//! Three processes form a template. The **gateway** (this library, in the process that serves
//! functions) starts a **supervisor**: the launcher executable ([`launch`]), which stays outside
//! with the rights of root and performs privileged operations. The supervisor starts the
//! **zygote**: the same executable again, the first process of a new PID namespace, which builds
//! its root, drops its privileges, and becomes the interpreter. The gateway sends requests to the
//! zygote over its control socket (`docs/guest-protocol.md`), and to the supervisor over another
//! one (`message`).
//!
//! The zygote has executed code of the function when it forks, so it is untrusted. It is user 0 of
//! a user namespace whose users have no rights on the host. In that namespace it has only the
//! capabilities to become another of these users (`CAP_SETUID`, `CAP_SETGID`) and to enter a root
//! that the supervisor has created (`CAP_SYS_CHROOT`); outside it has none. Each instance has a
//! user, a root with a `/tmp`, and control groups of its own, and no capability. Before an
//! instance is used, the kernel identifies it: the HELLO in its channel carries the user and
//! process of its sender (`SCM_CREDENTIALS`).
//!
//! Modules, in the order of use:
//! - `config`: the operator's configuration; `probe`: the check of this machine; `error`: errors;
//! - `interpreter`: the host's files that a Python needs;
//! - `spec`: the specification of a sandbox, derived from an image;
//! - `message`, `packet`: messages between gateway and supervisor, with descriptors;
//! - [`launch`]: the executable; `supervisor`: its first stage, `confine`: its second one;
//! - `root`: files and mounts; `groups`: control groups; `syscalls`: the system call filter;
//! - `template`: a zygote, and the start of instances; `serve`: messages of zygote and supervisor;
//! - `provided`: instances of a runtime of the function's own, each in a sandbox of its own;
//! - `instance`: one instance; `usage`: resource usage; `output`: captured output.

mod config;
mod confine;
mod error;
mod groups;
mod instance;
mod interpreter;
pub mod launch;
mod message;
mod node;
mod output;
mod packet;
mod probe;
mod provided;
mod root;
mod serve;
mod spec;
mod supervisor;
mod syscalls;
mod template;
mod usage;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local, Runtime, Template};

pub use config::{INSTANCES_MAX, Launcher, ProcessConfig};
pub use error::NAME;
pub use groups::FREEZER;

use interpreter::Interpreter;

/// Number of templates of this process, which makes their groups and users unique.
static TEMPLATES: AtomicU32 = AtomicU32::new(0);

/// The number of the next sandbox.
fn next_number() -> u32 {
    TEMPLATES.fetch_add(1, Ordering::Relaxed)
}

/// The backend of sandboxed processes.
pub struct Process {
    config: ProcessConfig,
    launcher: Launcher,
    interpreters: RefCell<HashMap<PathBuf, Rc<Interpreter>>>,
    /// True once the freezer is held.
    holds_freezer: Cell<bool>,
}

impl Process {
    /// Creates the backend; `launcher` is the executable that calls [`launch::run`].
    pub fn new(config: ProcessConfig, launcher: Launcher) -> Process {
        groups::sweep(&config.cgroup);
        let (interpreters, holds_freezer) = (RefCell::default(), Cell::default());
        Process { config, launcher, interpreters, holds_freezer }
    }

    /// The files that an interpreter needs, cached.
    async fn interpreter(&self, python: &PathBuf) -> Result<Rc<Interpreter>, IsolationError> {
        if let Some(found) = self.interpreters.borrow().get(python) {
            return Ok(found.clone());
        }
        let found = Rc::new(Interpreter::ask(python).await?);
        self.interpreters.borrow_mut().insert(python.clone(), found.clone());
        Ok(found)
    }

    async fn prepared(&self, image: &Image) -> Result<Rc<dyn Template>, IsolationError> {
        self.probe()?;
        if self.config.freeze && !self.holds_freezer.replace(true) {
            groups::hold_freezer(&self.config.cgroup);
        }
        if image.runtime != Runtime::Python {
            let (config, launcher) = (&self.config, &self.launcher);
            let template = provided::Provided::new(image, config, launcher, next_number)?;
            return Ok(Rc::new(template));
        }
        let interpreter = self.interpreter(&image.python).await?;
        let number = next_number();
        let spec = spec::of(image, &interpreter, &self.config, number)?;
        let template = template::Zygote::start(image, spec, &self.config, &self.launcher).await?;
        Ok(Rc::new(template))
    }
}

impl Isolation for Process {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<(), IsolationError> {
        probe::all().map_err(|why| IsolationError::Unusable { backend: NAME, why })
    }

    fn prepare<'a>(
        &'a self,
        image: &'a Image,
    ) -> Local<'a, Result<Rc<dyn Template>, IsolationError>> {
        Box::pin(self.prepared(image))
    }
}

/// The available limits of instances on this machine, and the freezer: controllers, and the version
/// of their control groups.
pub fn limits() -> Vec<(String, u8)> {
    let hierarchies = groups::hierarchies();
    let of = |hierarchy: &groups::Hierarchy| {
        let version = if hierarchy.unified { 2 } else { 1 };
        let names = hierarchy.controllers.iter().cloned();
        names.map(|name| (name, version)).collect::<Vec<_>>()
    };
    hierarchies.iter().flat_map(of).collect()
}
