//! Sandboxed processes: a zygote in namespaces of its own, which forks instances.
//!
//! Three parties make a template. The **gateway** (this library, in the process that serves
//! functions) starts a **keeper**: the launcher executable ([`launch`]), which stays outside with
//! the rights of root, and makes what needs them. It starts the **zygote**: the same executable
//! again, first process of a new PID namespace, which builds its root, gives up its rights, and
//! becomes the interpreter. The gateway speaks to the zygote over its control socket
//! (`docs/guest-protocol.md`), and to the keeper over another one (`message`).
//!
//! The zygote has run code of the function's when it forks: nothing that it is able to do may harm
//! the host. It is user 0 of a user namespace whose users are nobody on the host, has no capability
//! there but those to become another of them (`CAP_SETUID`, `CAP_SETGID`) and to go into a root that
//! the keeper has made (`CAP_SYS_CHROOT`), and none outside of it. Each instance has a user, a root
//! with a `/tmp` and control groups of its own, and no capability. Before an instance is handed out
//! the kernel says who it is: the HELLO in its channel carries its sender's user and process
//! (`SCM_CREDENTIALS`).
//!
//! The stages, in order:
//! - `config`: what an operator can say; `probe`: what this machine can do;
//! - `interpreter`: which of the host's files a Python needs;
//! - `spec`: what a sandbox is made of, out of an image;
//! - `message`, `packet`: what gateway and keeper say, with descriptors beside it;
//! - [`launch`]: the executable; `keeper`: its first half, `confine`: its second one;
//! - `root`: files and mounts; `groups`: control groups; `syscalls`: the filter of system calls;
//! - `template`: a zygote, and the start of instances; `serve`: what it and the keeper say;
//! - `instance`: one of them; `usage`: what they use; `output`: what they print.

mod config;
mod confine;
mod groups;
mod instance;
mod interpreter;
mod keeper;
pub mod launch;
mod message;
mod output;
mod packet;
mod probe;
mod root;
mod serve;
mod spec;
mod syscalls;
mod template;
mod usage;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local, Template};

pub use config::{INSTANCES_MAX, Launcher, ProcessConfig};

use interpreter::Interpreter;

/// The backend's name.
pub const NAME: &str = "process";

/// Templates that this process has made: their groups and users are not another one's.
static TEMPLATES: AtomicU32 = AtomicU32::new(0);

/// Sandboxed processes.
pub struct Process {
    config: ProcessConfig,
    launcher: Launcher,
    interpreters: RefCell<HashMap<PathBuf, Rc<Interpreter>>>,
}

impl Process {
    /// A backend; `launcher` is the executable that ends in [`launch::run`].
    pub fn new(config: ProcessConfig, launcher: Launcher) -> Process {
        groups::sweep(&config.cgroup);
        Process { config, launcher, interpreters: RefCell::default() }
    }

    /// What an interpreter needs: asked once.
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
        let interpreter = self.interpreter(&image.python).await?;
        let number = TEMPLATES.fetch_add(1, Ordering::Relaxed);
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

/// What instances can be limited by on this machine: controllers, and of which version of control
/// groups they are.
pub fn limits() -> Vec<(String, u8)> {
    let hierarchies = groups::hierarchies();
    let of = |hierarchy: &groups::Hierarchy| {
        let version = if hierarchy.unified { 2 } else { 1 };
        let names = hierarchy.controllers.iter().cloned();
        names.map(|name| (name, version)).collect::<Vec<_>>()
    };
    hierarchies.iter().flat_map(of).collect()
}

/// An error of the machine's.
fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> IsolationError {
    IsolationError::System { what: what.into(), source: source.into() }
}
