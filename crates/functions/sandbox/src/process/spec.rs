//! The specification of a sandbox, derived from an image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unlade_fn_model::isolation::{Image, IsolationError, Mode, Runtime};

use super::config::{IDS_END, IDS_OF_TEMPLATE, Launcher, ProcessConfig};
use super::error::system;
use super::groups::{self, Hierarchy, Limits};
use super::interpreter::Interpreter;
use super::node;

/// The directory of the function's code.
pub const TASK: &str = "/var/task";
/// The executable that is the first process, for a runtime of the function's own.
const INIT: &str = "/opt/unlade/init";
/// The function's executable, for a runtime of its own.
const BOOTSTRAP: &str = "bootstrap";
/// The directory of the guest's package.
const GUEST: &str = "/opt/unlade";
/// The parent directory of packages, by number.
const PACKAGES: &str = "/opt/python";
/// The directory of the relay's socket: each start of the worker creates a new socket file.
const RELAY: &str = "/run/unlade";
/// Writable directories, separate for the zygote and each instance.
const SCRATCH: [&str; 2] = ["/tmp", "/dev/shm"];
/// Common files of the host that programs read; missing ones are not required.
const SYSTEM: [&str; 6] = [
    "/usr",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/etc/mime.types",
    "/etc/ssl/openssl.cnf",
];
/// Directories that are links into `/usr` on most systems.
const MERGED: [&str; 7] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/libo32"];
/// Additional files for a function with a network.
const NETWORK: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki"];

/// A read-only mount of the host's file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// The path on the host.
    pub source: PathBuf,
    /// The path in the sandbox.
    pub target: PathBuf,
}

/// The specification of a sandbox, as the supervisor receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The host name in the sandbox.
    pub host: String,
    /// True if it has the host's network.
    pub network: bool,
    /// True if it has a loopback interface of its own; false if it has none, or the host's.
    pub loopback: bool,
    /// True if the program gets the control socket as its standard input, false if its number.
    pub control_is_stdin: bool,
    /// Mounts; parents precede their children.
    pub binds: Vec<Bind>,
    /// Symbolic links: path and target.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The first of its users and groups, in the host's numbering: the zygote's.
    pub ids_first: u32,
    /// The limits of an instance, and of the zygote.
    pub limits: Limits,
    /// The hierarchies of control groups.
    pub hierarchies: Vec<Hierarchy>,
    /// The parent control group, below the roots of the hierarchies.
    pub group: String,
    /// The interpreter.
    pub program: PathBuf,
    /// Its arguments, without the control socket's number.
    pub arguments: Vec<String>,
    /// The complete environment.
    pub environment: BTreeMap<String, String>,
    /// Variables of an instance that the program does not have. They are in each request for an
    /// instance, so the supervisor does not get them.
    #[serde(skip)]
    pub instance_environment: BTreeMap<String, String>,
}

/// Creates the specification of the template with this number.
///
/// # Errors
/// A required file is missing, or not readable by every user.
pub fn of(
    image: &Image,
    interpreter: &Interpreter,
    config: &ProcessConfig,
    number: u32,
) -> Result<Spec, IsolationError> {
    let (mut binds, links) = files(image, &interpreter.places)?;
    binds.extend(directory(&image.guest.join("unlade_guest"), &guest_package())?);
    for (number, packages) in image.packages.iter().enumerate() {
        binds.extend(directory(packages, &Path::new(PACKAGES).join(number.to_string()))?);
    }
    let spec = common(image, (binds, links), config, number);
    Ok(Spec {
        program: interpreter.executable.clone(),
        arguments: arguments(image),
        environment: environment(image, interpreter),
        ..spec
    })
}

/// Creates the specification of one instance of a function with a runtime of its own.
///
/// # Errors
/// As [`of`]; the code has no executable `bootstrap`.
pub fn provided(
    image: &Image,
    launcher: &Launcher,
    config: &ProcessConfig,
    number: u32,
) -> Result<Spec, IsolationError> {
    let (mut binds, mut links) = files(image, &[])?;
    match image.runtime {
        Runtime::Node => {
            let package = Path::new(GUEST).join(node::PACKAGE);
            links.push((PathBuf::from(node::MODULES), package.join("node_modules")));
            binds.extend(directory(&image.guest.join(node::PACKAGE), &package)?);
            let source = node::program(image)?;
            binds.push(Bind { source, target: PathBuf::from(node::PROGRAM) });
        }
        _ => executable(image)?,
    }
    let program = std::fs::canonicalize(&launcher.program);
    let source = program.map_err(|e| system(launcher.program.display().to_string(), e))?;
    binds.push(Bind { source, target: PathBuf::from(INIT) });
    let spec = common(image, (binds, links), config, number);
    Ok(Spec {
        loopback: true,
        control_is_stdin: true,
        program: PathBuf::from(INIT),
        arguments: launcher.init.clone(),
        // Nothing of the function is in the environment of init: LD_PRELOAD and others would bring
        // code of the package into a process that is outside the instance's control groups.
        environment: BTreeMap::new(),
        instance_environment: match image.runtime {
            Runtime::Node => node::environment(image, GUEST, environment_provided(image)),
            _ => environment_provided(image),
        },
        ..spec
    })
}

/// Checks that the code has its executable.
fn executable(image: &Image) -> Result<(), IsolationError> {
    use std::os::unix::fs::PermissionsExt;
    let found = std::fs::metadata(image.code.join(BOOTSTRAP));
    if found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o5 == 0o5) {
        return Ok(());
    }
    let why = "runtime = \"provided\" needs an executable file `bootstrap` beside the function's \
               files, readable by all (chmod 755 bootstrap)";
    Err(IsolationError::Function { function: image.function.clone(), why: why.to_owned() })
}

/// The part of a specification that does not depend on the runtime.
fn common(image: &Image, (binds, links): Files, config: &ProcessConfig, number: u32) -> Spec {
    let span = IDS_END.saturating_sub(config.ids_first) / IDS_OF_TEMPLATE;
    let ids_first = config.ids_first + (number % span.max(1)) * IDS_OF_TEMPLATE;
    Spec {
        host: image.function.replace('_', "-"),
        network: image.network,
        loopback: false,
        control_is_stdin: false,
        binds: outermost(binds),
        links,
        ids_first,
        limits: Limits {
            memory_bytes: image.memory_bytes,
            scratch_bytes: image.scratch_bytes,
            processes: config.processes_max,
            files: config.files_max,
        },
        hierarchies: groups::hierarchies(),
        group: groups::of_template(&config.cgroup, number, &image.function),
        program: PathBuf::new(),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        instance_environment: BTreeMap::new(),
    }
}

type Files = (Vec<Bind>, Vec<(PathBuf, PathBuf)>);

/// The place of the guest's package.
fn guest_package() -> PathBuf {
    Path::new(GUEST).join("unlade_guest")
}

/// A mount of a directory that every user has to be able to read.
fn directory(source: &Path, target: &Path) -> Result<[Bind; 1], IsolationError> {
    readable(source)?;
    let source = std::path::absolute(source).map_err(|e| system("absolute path", e))?;
    Ok([Bind { source, target: target.to_owned() }])
}

/// The files of the host, those at `places` included, and the function's code.
fn files(image: &Image, places: &[PathBuf]) -> Result<Files, IsolationError> {
    let mut binds = Vec::new();
    let same = |path: &Path| Bind { source: path.to_owned(), target: path.to_owned() };
    let mut links = Vec::new();
    for name in MERGED {
        match std::fs::read_link(name) {
            Ok(target) => links.push((PathBuf::from(name), target)),
            Err(_) if Path::new(name).exists() => binds.push(same(Path::new(name))),
            Err(_) => {}
        }
    }
    let network: &[&str] = if image.network { &NETWORK } else { &[] };
    let named = SYSTEM.iter().chain(network).map(Path::new).filter(|path| path.exists());
    binds.extend(named.chain(places.iter().map(PathBuf::as_path)).map(same));
    binds.extend(directory(&image.code, Path::new(TASK))?);
    if let Some(relay) = image.relay.as_deref().and_then(Path::parent) {
        let source = std::path::absolute(relay).map_err(|e| system("absolute path", e))?;
        binds.push(Bind { source, target: PathBuf::from(RELAY) });
    }
    Ok((binds, links))
}

/// Checks that every user may read a directory, because the function's user owns nothing.
fn readable(path: &Path) -> Result<(), IsolationError> {
    use std::os::unix::fs::PermissionsExt;
    let what = || format!("{}", path.display());
    let metadata = std::fs::metadata(path).map_err(|source| system(what(), source))?;
    match metadata.is_dir() && metadata.permissions().mode() & 0o5 == 0o5 {
        true => Ok(()),
        false => {
            let why = "must be a directory that others may read and enter (chmod o+rx)";
            Err(system(what(), std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)))
        }
    }
}

/// Sorts parents first, and removes mounts that are visible through a parent: a mount point cannot
/// be created in the host's directory.
fn outermost(mut binds: Vec<Bind>) -> Vec<Bind> {
    binds.sort_by(|one, other| one.target.cmp(&other.target));
    let mut kept: Vec<Bind> = Vec::new();
    for bind in binds {
        if !kept.iter().any(|parent| bind.target.starts_with(&parent.target)) {
            kept.push(bind);
        }
    }
    kept
}

fn arguments(image: &Image) -> Vec<String> {
    let sdk = match image.mode {
        Mode::Stock => "stock",
        Mode::Tcp => "tcp",
        Mode::Sdk | Mode::Prefetch | Mode::Offload => "stub",
    };
    let mut words = vec!["-s", "-m", "unlade_guest.zygote", "--sdk", sdk];
    if image.preload.handler {
        words.extend(["--handler", &image.handler]);
    }
    for module in &image.preload.modules {
        words.extend(["--import", module]);
    }
    for directory in SCRATCH {
        words.extend(["--scratch", directory]);
    }
    words.into_iter().map(str::to_owned).collect()
}

fn environment(image: &Image, interpreter: &Interpreter) -> BTreeMap<String, String> {
    let beside = interpreter.executable.parent().unwrap_or(Path::new("/usr/bin"));
    let mut path = vec![GUEST.to_owned()];
    path.extend((0..image.packages.len()).map(|number| format!("{PACKAGES}/{number}")));
    let mut out: BTreeMap<String, String> = [
        ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", beside.display())),
        ("HOME", "/tmp".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", ":UTC".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    out.extend(image.environment.clone());
    // The function cannot override these.
    out.insert("PYTHONPATH".to_owned(), path.join(":"));
    out.insert("LAMBDA_TASK_ROOT".to_owned(), TASK.to_owned());
    if let Some(name) = image.relay.as_deref().and_then(Path::file_name) {
        let path = Path::new(RELAY).join(name).display().to_string();
        out.insert("UNLADE_RELAY_PATH".to_owned(), path);
    }
    out
}

/// The environment of a runtime of the function's own: as Lambda's, without the two ports.
fn environment_provided(image: &Image) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/opt/bin"),
        ("LD_LIBRARY_PATH", "/var/task:/var/task/lib:/opt/lib"),
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("TZ", ":UTC"),
        ("AWS_EXECUTION_ENV", "AWS_Lambda_provided"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("LAMBDA_RUNTIME_DIR", "/var/runtime"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    out.insert("AWS_LAMBDA_LOG_GROUP_NAME".to_owned(), format!("/aws/lambda/{}", image.function));
    out.insert("AWS_LAMBDA_LOG_STREAM_NAME".to_owned(), "instance".to_owned());
    out.extend(image.environment.clone());
    // The function cannot override this.
    out.insert("LAMBDA_TASK_ROOT".to_owned(), TASK.to_owned());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_fn_model::isolation::{Preload, Runtime};

    fn image(directory: &Path) -> Image {
        std::fs::create_dir_all(directory.join("guest/unlade_guest")).unwrap();
        std::fs::create_dir_all(directory.join("code")).unwrap();
        Image {
            function: "thumb_nail".to_owned(),
            handler: "app.handler".to_owned(),
            code: directory.join("code"),
            guest: directory.join("guest"),
            runtime: Runtime::Python,
            python: "/usr/bin/python3".into(),
            node: "/usr/bin/node".into(),
            packages: Vec::new(),
            environment: [("HOME", "/x"), ("PYTHONPATH", "/y")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            memory_bytes: 1 << 27,
            scratch_bytes: 1 << 26,
            mode: Mode::Offload,
            preload: Preload { handler: true, modules: vec!["json".to_owned()] },
            relay: None,
            network: false,
            region_bytes: 0,
        }
    }

    fn python() -> Interpreter {
        Interpreter {
            executable: "/home/u/venv/bin/python".into(),
            version: (3, 11),
            places: vec!["/home/u/venv".into(), "/usr".into(), "/home/u/venv/lib".into()],
        }
    }

    fn opened(path: &Path) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn an_image_becomes_a_specification() {
        let directory = tempfile::tempdir().unwrap();
        opened(directory.path());
        let image = image(directory.path());
        let config = ProcessConfig::default();
        let spec = of(&image, &python(), &config, 3).unwrap();
        assert_eq!(spec.ids_first, config.ids_first + 3 * 1024);
        assert_eq!(spec.host, "thumb-nail");
        assert_eq!(spec.environment["HOME"], "/x", "the function's to say");
        assert_eq!(spec.environment["PYTHONPATH"], "/opt/unlade", "not the function's");
        let said = spec.arguments.join(" ");
        assert_eq!(
            said,
            "-s -m unlade_guest.zygote --sdk stub --handler app.handler --import json \
             --scratch /tmp --scratch /dev/shm"
        );
        let targets: Vec<_> = spec.binds.iter().map(|bind| bind.target.to_str().unwrap()).collect();
        assert!(targets.contains(&"/home/u/venv") && !targets.contains(&"/home/u/venv/lib"));
        assert!(targets.contains(&"/var/task") && targets.contains(&"/opt/unlade/unlade_guest"));
        assert!(!targets.contains(&"/etc/resolv.conf"), "there is no network");
        // Users wrap around before the end of the range.
        let last = of(&image, &python(), &config, u32::MAX).unwrap();
        assert!(last.ids_first >= config.ids_first);
        assert!(last.ids_first + IDS_OF_TEMPLATE <= IDS_END);
    }

    #[test]
    fn nothing_of_a_function_is_in_the_environment_of_init() {
        let directory = tempfile::tempdir().unwrap();
        opened(directory.path());
        let mut image = image(directory.path());
        image.environment.insert("LD_PRELOAD".to_owned(), "/var/task/x.so".to_owned());
        let bootstrap = image.code.join(BOOTSTRAP);
        std::fs::write(&bootstrap, "#!/bin/sh\n").unwrap();
        opened(&bootstrap);
        let program = std::env::current_exe().unwrap();
        let launcher = Launcher { program, arguments: Vec::new(), init: vec!["init".to_owned()] };
        let spec = provided(&image, &launcher, &ProcessConfig::default(), 0).unwrap();
        assert!(spec.environment.is_empty(), "{:?}", spec.environment);
        let of_instance = &spec.instance_environment;
        assert_eq!(of_instance["LD_PRELOAD"], "/var/task/x.so");
        assert!(of_instance["LD_LIBRARY_PATH"].contains("/var/task"));
        // The packet for the supervisor has none of it.
        assert!(!serde_json::to_string(&spec).unwrap().contains("LD_PRELOAD"));
    }

    #[test]
    fn node_has_its_package_and_its_program() {
        let directory = tempfile::tempdir().unwrap();
        opened(directory.path());
        let package = directory.path().join("guest/unlade_node");
        std::fs::create_dir_all(&package).unwrap();
        let launcher = Launcher {
            program: "/bin/sh".into(),
            arguments: Vec::new(),
            init: vec!["fn".to_owned(), "init".to_owned()],
        };
        let image =
            Image { runtime: Runtime::Node, node: "/bin/sh".into(), ..image(directory.path()) };
        let config = ProcessConfig::default();
        let spec = provided(&image, &launcher, &config, 0).unwrap();
        let targets: Vec<_> = spec.binds.iter().map(|bind| bind.target.to_str().unwrap()).collect();
        assert!(targets.contains(&"/opt/unlade/unlade_node") && targets.contains(&node::PROGRAM));
        assert!(spec.links.iter().any(|(path, _)| path == Path::new("/node_modules")));
        assert!(spec.instance_environment["UNLADE_BOOTSTRAP"].contains("bootstrap.js"));
        assert!(spec.loopback && spec.control_is_stdin);
        // Without Node.js it is said what to do.
        let absent = Image { node: directory.path().join("node"), ..image };
        let error = provided(&absent, &launcher, &config, 0).unwrap_err().to_string();
        assert!(error.contains("node = ") && error.contains("apt-get install"), "{error}");
    }

    #[test]
    fn code_that_others_cannot_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let image = image(directory.path());
        std::fs::set_permissions(&image.code, PermissionsExt::from_mode(0o700)).unwrap();
        let error = of(&image, &python(), &ProcessConfig::default(), 0).unwrap_err();
        assert!(error.to_string().contains("chmod o+rx"), "{error}");
    }
}
