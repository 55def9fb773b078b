//! The disk image of one function: its files, its packages, the guest's side of the protocol, and
//! the configuration of the machine's first process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use unlade_fn_model::isolation::{Image, Mode};

use super::command::HOST;
use super::disk;
use super::python::Python;
use super::stage::Staged;

/// Most directories of packages.
pub(super) const PACKAGES_MAX: usize = 32;
/// The user that runs the function.
const USER: u32 = 1000;
const PACKAGE: &str = "unlade_guest";
/// Ports of the machine's serial device, by their number.
const CONTROL: &str = "/dev/vport0p1";
const CHANNEL: &str = "/dev/vport0p2";

/// The configuration file of `unlade_guest.machine`.
#[derive(Debug, Serialize)]
struct Start<'a> {
    control: &'a str,
    channel: &'a str,
    region: &'a str,
    user: u32,
    handler: Option<&'a str>,
    modules: &'a [String],
    path: Vec<String>,
    environment: BTreeMap<&'a str, String>,
    sdk: &'a str,
}

/// Creates the disk image, an unlinked file. Blocks.
///
/// # Errors
/// The system call failed, or a limit is exceeded.
pub(super) fn build(
    image: &Image,
    python: &Python,
    region: &str,
    cache: &Path,
) -> io::Result<File> {
    if image.packages.len() > PACKAGES_MAX {
        return Err(io::Error::other(format!("more than {PACKAGES_MAX} directories of packages")));
    }
    fs::create_dir_all(cache)?;
    let work = tempfile::Builder::new().prefix("function-").tempdir_in(cache)?;
    let root = work.path().join("root");
    let mut staged = Staged::default();
    let all = |name: &str| name != ".git";
    let own = |name: &str| name != "__pycache__";
    staged.tree(&image.code, &root.join("code"), &all)?;
    staged.tree(&image.guest.join(PACKAGE), &root.join("guest").join(PACKAGE), &own)?;
    for (number, packages) in image.packages.iter().enumerate() {
        staged.tree(packages, &root.join(format!("packages/{number}")), &all)?;
    }
    let start = serde_json::to_vec(&start(image, python, region)).map_err(io::Error::other)?;
    fs::write(root.join("start.json"), start)?;
    compile(python, &root, &["guest", "code"]);
    // Estimate: a compiled file has about the size of its source.
    staged.entries = staged.entries * 2 + 1;
    staged.bytes *= 2;
    let path = work.path().join("disk");
    disk::make(&root, staged, &path)?;
    File::open(path)
}

fn start<'a>(image: &'a Image, python: &Python, region: &'a str) -> Start<'a> {
    let mut path = vec!["/var/task".to_owned()];
    path.extend((0..image.packages.len()).map(|number| format!("/function/packages/{number}")));
    path.push("/function/guest".to_owned());
    path.extend(python.path().iter().map(|path| path.display().to_string()));
    let given = [
        ("LAMBDA_TASK_ROOT", "/var/task"),
        ("HOME", "/tmp"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LANG", "C.UTF-8"),
        ("TZ", ":UTC"),
        ("_HANDLER", &image.handler),
    ];
    let mut environment = BTreeMap::from(given.map(|(name, value)| (name, value.to_owned())));
    let own = image.environment.iter();
    environment.extend(own.map(|(name, value)| (&**name, seen(image, name, value))));
    Start {
        control: CONTROL,
        channel: CHANNEL,
        region,
        user: USER,
        handler: image.preload.handler.then_some(&*image.handler),
        modules: &image.preload.modules,
        path,
        environment,
        sdk: if image.mode == Mode::Stock { "stock" } else { "stub" },
    }
}

/// The value of a variable; endpoints on this machine are replaced by the host's address in a
/// machine with a network.
fn seen(image: &Image, name: &str, value: &str) -> String {
    if !image.network || !name.starts_with("AWS_ENDPOINT_URL") {
        return value.to_owned();
    }
    let local = ["://127.0.0.1:", "://localhost:"].into_iter().find(|local| value.contains(local));
    local.map_or(value.to_owned(), |local| value.replace(local, &format!("://{HOST}:")))
}

/// Compiles sources in advance, because that is slow in an emulated machine. Errors are reported
/// later by the function's import.
fn compile(python: &Python, root: &Path, names: &[&str]) {
    let mut command = Command::new(&python.program);
    command.args(["-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]);
    command.args(names.iter().map(|name| root.join(name)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.status() {
        tracing::debug!(%error, "qemu: not compiled beforehand");
    }
}
