//! Virtual machines of QEMU: with KVM if it works, else emulated in software.
//!
//! A function's machine boots once, imports the function and is saved. Its RAM is a file in
//! memory; every instance maps that file privately, so pages that it does not write are shared.
//! The region shared with the worker lies at a fixed address and is another file in each instance.
//!
//! Modules, in the order of an instance's creation:
//! - [`config`]: the operator's configuration; `error`: errors;
//! - `parts`: QEMU, a kernel, busybox: found, or downloaded once;
//! - `cpio`, `initramfs`: the machine's initial root file system;
//! - `stage`, `disk`: directories as read-only disk images;
//! - `python`: the disk with the interpreter, built once; `function_disk`: that of a function;
//! - `memory`, `command`: the machine's memory, QEMU's command line;
//! - `machine`: its process, with `user`, `console` and `monitor`;
//! - `template`: boots, saves, restores; `holes`: removes zero pages;
//! - `usage`: the resource usage of an instance.

pub mod config;

mod command;
mod console;
mod cpio;
mod disk;
mod error;
mod function_disk;
mod holes;
mod initramfs;
mod machine;
mod memory;
mod monitor;
mod parts;
mod python;
mod stage;
mod template;
mod usage;
mod user;

use std::cell::Cell;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local, Mode, Template};

pub use command::Accelerator;
pub use config::{Choice, QemuConfig};

use command::KVM;
use error::{NAME, system, unusable};
use machine::Plan;
use memory::Memory;
use parts::Parts;
use python::Python;
use template::QemuTemplate;
use user::Users;

/// Limit of a machine's boot with KVM: with hardware virtualization a machine has started by then;
/// emulation behind a `/dev/kvm` has not.
const KVM_BOOT_TIMEOUT_MAX: Duration = Duration::from_secs(20);

/// The backend of virtual machines.
#[derive(Debug)]
pub struct Qemu {
    config: QemuConfig,
    accelerator: Cell<Option<Accelerator>>,
    /// Serializes the search for a working accelerator.
    trying: Mutex<()>,
    users: Rc<Users>,
}

impl Qemu {
    /// Creates the backend without starting anything.
    pub fn new(config: QemuConfig) -> Qemu {
        let users = Rc::new(Users::new(config.user_first));
        Qemu { config, accelerator: Cell::new(None), trying: Mutex::new(()), users }
    }

    /// The accelerator; known after the first template.
    pub fn accelerator(&self) -> Option<Accelerator> {
        self.accelerator.get()
    }

    /// The found parts of machines, as text for humans; `None` if they must be downloaded.
    pub fn found(&self) -> Option<String> {
        let parts = Parts::find(&self.config).ok()?;
        let kvm = match self.accelerators().first() {
            Some(Accelerator::Kvm) => "KVM is tried, else software",
            _ if self.config.accelerator == Choice::Auto && Path::new(KVM).exists() => {
                "in software: slow (the users of machines may not open /dev/kvm: let its group)"
            }
            _ => "in software: slow",
        };
        Some(format!("Linux {} by {}; {kvm}", parts.version, parts.qemu.display()))
    }

    /// Builds the files that all functions share: the parts, the initial root, the interpreter's
    /// disk. Blocks; the first time takes about a minute if QEMU has to be downloaded.
    ///
    /// # Errors
    /// The missing requirement, and the remedy.
    pub fn build(&self, python: &Path) -> Result<(), IsolationError> {
        let parts = Parts::get(&self.config)?;
        let cache = self.config.cache();
        first_root(&parts, &cache).map_err(system("the first root"))?;
        Python::ask(python)?.disk(&cache).map(drop)
    }

    /// The accelerators to try, fastest first.
    fn accelerators(&self) -> Vec<Accelerator> {
        let may_kvm = || user::may_open(Path::new(KVM));
        match (self.accelerator.get(), self.config.accelerator) {
            (Some(known), _) => vec![known],
            (None, Choice::Kvm) => vec![Accelerator::Kvm],
            (None, Choice::Tcg) => vec![Accelerator::Tcg],
            (None, Choice::Auto) if may_kvm() => vec![Accelerator::Kvm, Accelerator::Tcg],
            (None, Choice::Auto) => vec![Accelerator::Tcg],
        }
    }

    async fn plan(&self, image: &Image, accelerator: Accelerator) -> Result<Plan, IsolationError> {
        let (config, wanted) = (self.config.clone(), image.clone());
        let built = tokio::task::spawn_blocking(move || build(&config, &wanted)).await;
        let built = built.map_err(|error| system("building")(io::Error::other(error)))??;
        Ok(Plan {
            function: image.function.clone(),
            parts: built.parts,
            accelerator,
            memory: built.memory,
            initramfs: built.initramfs,
            python: built.python,
            scratch_bytes: image.scratch_bytes,
            has_network: image.network,
            users: self.users.clone(),
            disks: built.disks,
        })
    }

    async fn template(&self, image: &Image) -> Result<QemuTemplate, IsolationError> {
        if image.mode == Mode::Tcp {
            let why = "a machine has no way to the relay, which the mode tcp needs: use \
                       isolation = \"process\"";
            return Err(unusable(why));
        }
        let trying = self.trying.lock().await;
        let accelerators = self.accelerators();
        let _alone = (accelerators.len() > 1).then_some(trying);
        let mut tried = Err(unusable("no accelerator"));
        for (at, accelerator) in accelerators.iter().enumerate() {
            let is_last = at + 1 == accelerators.len();
            let mut config = self.config.clone();
            if !is_last {
                config.boot_timeout = config.boot_timeout.min(KVM_BOOT_TIMEOUT_MAX);
            }
            let plan = self.plan(image, *accelerator).await?;
            tried = QemuTemplate::new(plan, config).await;
            match &tried {
                Ok(_) => {
                    self.accelerator.set(Some(*accelerator));
                    break;
                }
                Err(error) if !is_last => {
                    tracing::warn!(%error, "qemu: KVM does not start a machine: emulated instead");
                }
                Err(_) => {}
            }
        }
        tried
    }
}

impl Isolation for Qemu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<(), IsolationError> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(unusable("the machines are x86-64; this one is not"));
        }
        disk::mke2fs().map_err(unusable)?;
        if self.config.accelerator == Choice::Kvm && !Path::new(KVM).exists() {
            return Err(unusable(format!("{KVM} is missing: say accelerator = \"tcg\"")));
        }
        parts::unfetchable(&self.config).map_or(Ok(()), |why| Err(unusable(why)))
    }

    fn prepare<'a>(
        &'a self,
        image: &'a Image,
    ) -> Local<'a, Result<Rc<dyn Template>, IsolationError>> {
        Box::pin(async move {
            self.probe()?;
            let template: Rc<dyn Template> = Rc::new(self.template(image).await?);
            Ok(template)
        })
    }
}

/// The files that take long to build.
struct Built {
    parts: Parts,
    memory: Memory,
    initramfs: PathBuf,
    python: PathBuf,
    disks: [fs::File; 2],
}

/// Builds the files for a function's machines. Blocks.
fn build(config: &QemuConfig, image: &Image) -> Result<Built, IsolationError> {
    let parts = Parts::get(config)?;
    let cache = config.cache();
    let initramfs = first_root(&parts, &cache).map_err(system("the first root"))?;
    let memory = Memory::new(image.memory_bytes, image.region_bytes).map_err(unusable)?;
    let python = Python::ask(&image.python)?;
    let base = python.disk(&cache)?;
    let function = function_disk::build(image, &python, &memory.place(), &cache)
        .map_err(system(format!("the disk of {}", image.function)))?;
    Ok(Built { parts, memory, initramfs, python: python.program, disks: [base, function] })
}

/// The initramfs of a kernel, in `cache`: built if it does not exist.
fn first_root(parts: &Parts, cache: &Path) -> io::Result<PathBuf> {
    let bytes = initramfs::build(parts)?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let name = format!("initramfs-{}-{:016x}", parts.version, hasher.finish());
    let path = cache.join(name);
    if !path.exists() {
        fs::create_dir_all(cache)?;
        let file = tempfile::NamedTempFile::new_in(cache)?;
        fs::write(file.path(), bytes)?;
        disk::readable(file.path())?;
        file.persist(&path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_tried() {
        let of = |accelerator| Qemu::new(QemuConfig { accelerator, ..QemuConfig::default() });
        assert_eq!(of(Choice::Tcg).accelerators(), [Accelerator::Tcg]);
        assert_eq!(of(Choice::Kvm).accelerators(), [Accelerator::Kvm]);
        assert_eq!(of(Choice::Auto).accelerators().last(), Some(&Accelerator::Tcg));
        let known = of(Choice::Auto);
        known.accelerator.set(Some(Accelerator::Tcg));
        assert_eq!(known.accelerators(), [Accelerator::Tcg], "what worked is kept");
    }
}
