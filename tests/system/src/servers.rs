//! Servers that nobody here wrote, as they are, with the objects of a lab.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::counters::wait_for;
use crate::{Lab, Program, said};

/// Time limit of a start.
const PATIENCE: Duration = Duration::from_secs(60);
/// The objects that every server has.
const OBJECTS: [&str; 5] = ["1KiB", "4KiB", "64KiB", "256KiB", "1MiB"];
/// Path of the build of `scripts/setup --with-minio` (guest/python/tests/differential/minio.py).
const MINIO_CACHED: &str = "unlade/minio-v0.0.0-20260212201848-7aac2a2c5b7c/minio";
const MINIO_KEY: &str = "testing";
const MINIO_SECRET: &str = "testing-secret";

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// nginx.
    Nginx,
    /// Apache's event module. It closes a connection after a hundred responses.
    Apache,
    /// `http.server` of Python's standard library.
    Python,
    /// A server with `net/http` of Go's standard library.
    Go,
    /// MinIO, with a bucket that anyone can read.
    Minio,
}

/// A server that runs.
pub struct Running {
    _program: Program,
    _root: TempDir,
    /// The beginning of its objects' paths.
    pub prefix: &'static str,
}

/// Finds MinIO; the error is the reason why there is none.
///
/// # Errors
/// It is not installed.
pub fn minio() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("UNLADE_MINIO") {
        return Ok(named.into());
    }
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    let cached = cache.map(|cache| cache.join(MINIO_CACHED)).filter(|path| path.is_file());
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut named = std::env::split_paths(&paths).map(|path| path.join("minio"));
    cached.or_else(|| named.find(|path| path.is_file())).ok_or_else(|| {
        "no minio: scripts/setup --with-minio builds it, or name one in UNLADE_MINIO".to_owned()
    })
}

impl Server {
    /// Starts it at a port of the lab's first server. Its log is `logs/stock.log` in the lab's directory, if
    /// it has one.
    ///
    /// # Panics
    /// It does not start, or not answer.
    pub fn start(self, lab: &Lab, port: u16) -> Running {
        let root = tempfile::tempdir().unwrap();
        let (program, arguments) = match self {
            Server::Nginx => nginx(lab, port),
            Server::Apache => apache(lab, port, root.path()),
            Server::Python => python(lab, port),
            Server::Go => go(lab, port, root.path()),
            Server::Minio => minio_at(port, root.path()),
        };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let program = lab.start("s1", &program, &arguments);
        let prefix = if self == Server::Minio { "box/" } else { "" };
        if self == Server::Minio {
            fill_minio(lab, port);
        }
        let url = format!("http://127.0.0.1:{port}/{prefix}1KiB");
        let curl = ["curl", "-sf", "-o", "/dev/null", &url];
        let answers = wait_for(PATIENCE, || lab.exec("s1", &curl).status.success());
        assert!(answers, "{self:?} does not answer at {url}");
        Running { _program: program, _root: root, prefix }
    }
}

type Launch = (PathBuf, Vec<String>);

/// Returns the directory of a lab's objects.
pub fn objects(lab: &Lab) -> String {
    lab.dir().join("objects").display().to_string()
}

fn nginx(lab: &Lab, port: u16) -> Launch {
    let (file, dir) = (lab.dir().join("config/stock.conf"), lab.dir());
    let text = format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {dir}/stock.pid;\nevents {{}}\nhttp {{\n  \
         log_format clients '$http_x_forwarded_for $request';\n  \
         access_log {dir}/logs/stock.log clients;\n  sendfile on;\n  \
         server {{ listen {port}; root {objects}; }}\n}}\n",
        dir = dir.display(),
        objects = objects(lab),
    );
    fs::write(&file, text).unwrap();
    let error_log = dir.join("logs/stock-error.log").display().to_string();
    ("nginx".into(), vec!["-c".to_owned(), file.display().to_string(), "-e".to_owned(), error_log])
}

/// Apache gives up root, so it gets objects that others can read.
fn apache(lab: &Lab, port: u16, root: &Path) -> Launch {
    fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    for object in OBJECTS {
        let copied = root.join(object);
        fs::copy(lab.dir().join("objects").join(object), &copied).unwrap();
        fs::set_permissions(&copied, Permissions::from_mode(0o644)).unwrap();
    }
    let dir = lab.dir();
    let (file, dir) = (dir.join("config/apache.conf"), dir.display());
    let modules = "/usr/lib/apache2/modules";
    let text = format!(
        "LoadModule mpm_event_module {modules}/mod_mpm_event.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\n\
         ServerName one.objects.lab\nListen {port}\nUser www-data\nGroup www-data\n\
         PidFile {dir}/apache.pid\nDefaultRuntimeDir {dir}\nErrorLog {dir}/logs/apache.log\n\
         LogFormat \"%{{X-Forwarded-For}}i %r\" clients\nCustomLog {dir}/logs/stock.log clients\n\
         DocumentRoot {}\n",
        root.display(),
    );
    fs::write(&file, text).unwrap();
    ("apache2".into(), vec!["-X".to_owned(), "-f".to_owned(), file.display().to_string()])
}

fn python(lab: &Lab, port: u16) -> Launch {
    let port = port.to_string();
    let fixed = ["-m", "http.server", &port, "--protocol", "HTTP/1.1", "--directory"];
    ("python3".into(), fixed.into_iter().map(str::to_owned).chain([objects(lab)]).collect())
}

fn go(lab: &Lab, port: u16, root: &Path) -> Launch {
    let program = root.join("server");
    go_program("servers/go", &program);
    let log = lab.dir().join("logs/stock.log").display().to_string();
    (program, vec![format!(":{port}"), objects(lab), log])
}

/// Builds a Go program of this crate.
///
/// # Panics
/// It does not build.
pub fn go_program(source: &str, to: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(to).arg(".").current_dir(source);
    build.env("GOPROXY", "off").env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
    let built = build.env("CGO_ENABLED", "0").output().unwrap();
    assert!(built.status.success(), "{}", said(&built));
}

fn minio_at(port: u16, root: &Path) -> Launch {
    let variables = [
        format!("MINIO_ROOT_USER={MINIO_KEY}"),
        format!("MINIO_ROOT_PASSWORD={MINIO_SECRET}"),
        "MINIO_BROWSER=off".to_owned(),
    ];
    let program = minio().unwrap().display().to_string();
    let address = format!(":{port}");
    let server = ["server", "--quiet", "--address", &address].map(str::to_owned);
    let all = variables.into_iter().chain([program]).chain(server);
    ("env".into(), all.chain([root.join("store").display().to_string()]).collect())
}

/// Fills a bucket, and lets anyone read it.
fn fill_minio(lab: &Lab, port: u16) {
    let user = format!("{MINIO_KEY}:{MINIO_SECRET}");
    let curl = ["curl", "-sS", "-f", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &user];
    let base = format!("http://127.0.0.1:{port}/box");
    let make = [&curl[..], &["-X", "PUT", &base]].concat();
    let made = wait_for(PATIENCE, || lab.exec("s1", &make).status.success());
    assert!(made, "MinIO does not answer");
    let policy = lab.dir().join("config/policy.json");
    let text = "{\"Version\":\"2012-10-17\",\"Statement\":[{\"Effect\":\"Allow\",\"Principal\":\"*\",\
                \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::box/*\"}]}";
    fs::write(&policy, text).unwrap();
    let file = policy.display().to_string();
    let url = format!("{base}?policy=");
    let allow = [&curl[..], &["-T", &file, &url]].concat();
    let allowed = lab.exec("s1", &allow);
    assert!(allowed.status.success(), "{}", said(&allowed));
    for object in OBJECTS {
        let file = lab.dir().join("objects").join(object).display().to_string();
        let url = format!("{base}/{object}");
        let put = [&curl[..], &["-T", &file, &url]].concat();
        let stored = lab.exec("s1", &put);
        assert!(stored.status.success(), "{object}: {}", said(&stored));
    }
}
