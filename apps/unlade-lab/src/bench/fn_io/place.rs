//! Where an experiment takes place: its directory, the packages, the inputs, the functions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use toml::Table;

use super::catalogue::{Mode, Subject};

/// Directory of the workloads in the sources.
const WORKLOADS_PATH: &str = "tests/workloads";

/// How long an idle instance is kept where each round is to begin with another one.
pub const SHORT_KEEP_ALIVE: &str = "300ms";
/// How long where a population is to stay.
pub const LONG_KEEP_ALIVE: &str = "1h";

/// The packages that functions need, and the interpreters.
#[derive(Clone, Debug)]
pub struct Packages {
    /// The interpreter of the environment that has them.
    pub python: PathBuf,
    /// The interpreter that it was made of, which instances have.
    pub interpreter: PathBuf,
    pub directory: PathBuf,
}

impl Packages {
    /// Prepares them once: `workloads` is the directory `tests/workloads`.
    ///
    /// # Errors
    /// They cannot be had.
    pub fn prepare(workloads: &Path) -> Result<Packages> {
        let venv = said(Command::new(resolved(workloads)?.join("prepare")))?;
        let python = Path::new(venv.trim()).join("bin/python");
        let asked = |expression: &str| -> Result<PathBuf> {
            let mut command = Command::new(&python);
            command.args(["-c", &format!("import os, sys, sysconfig; print({expression})")]);
            Ok(PathBuf::from(said(command)?.trim()))
        };
        let interpreter = asked("os.path.realpath(sys.executable)")?;
        let directory = asked("sysconfig.get_path('purelib')")?;
        Ok(Packages { python, interpreter, directory })
    }
}

fn resolved(workloads: &Path) -> Result<PathBuf> {
    fs::canonicalize(workloads).with_context(|| {
        format!("{}: name the directory `tests/workloads` by --workloads", workloads.display())
    })
}

/// A directory that is removed afterwards, and what is in it.
#[derive(Debug)]
pub struct Place {
    root: PathBuf,
    /// The functions' sources.
    workloads: PathBuf,
    pub packages: Packages,
    /// The output of `inputs.py`.
    pub description: Value,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Place {
    /// Prepares everything that is done once.
    ///
    /// # Errors
    /// The packages cannot be had, or there is no room.
    pub fn prepare(workloads: &Path, seed: u64) -> Result<Place> {
        let workloads = resolved(workloads)?;
        let packages = Packages::prepare(&workloads)?;
        let root = std::env::temp_dir().join(format!("unlade-bench-fn-{}", std::process::id()));
        fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        let mut place = Place { root, workloads, packages, description: Value::Null };
        let mut make = Command::new(place.python());
        make.arg(place.workloads.join("inputs.py")).arg("--out").arg(place.inputs());
        said({
            make.args(["--seed", &seed.to_string()]);
            make
        })?;
        let text = fs::read_to_string(place.inputs().join("inputs.json"))?;
        place.description = serde_json::from_str(&text).context("inputs.json")?;
        Ok(place)
    }

    /// A directory in it, made.
    ///
    /// # Errors
    /// The system's.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// The interpreter of the environment that has the packages.
    pub fn python(&self) -> &Path {
        &self.packages.python
    }

    /// The directory `tests/workloads`.
    pub fn workloads(&self) -> &Path {
        &self.workloads
    }

    fn inputs(&self) -> PathBuf {
        self.root.join("inputs")
    }

    /// An input's bytes.
    ///
    /// # Errors
    /// It is not there.
    pub fn input(&self, bucket: &str, key: &str) -> Result<Vec<u8>> {
        let path = self.inputs().join("objects").join(bucket).join(key);
        fs::read(&path).with_context(|| path.display().to_string())
    }

    /// Says whether outputs of workloads are right: `outputs` has a file for each, named by its key.
    ///
    /// # Errors
    /// Which are wrong.
    pub fn check(&self, outputs: &Path, names: &[&str]) -> Result<()> {
        let mut check = Command::new(self.python());
        check.arg(self.workloads.join("check.py"));
        check.arg("--inputs").arg(self.inputs()).arg("--outputs").arg(outputs);
        check.arg("--only").args(names);
        said(check).map(|_| ())
    }

    /// Writes functions into a directory for a gateway: each subject in each mode.
    ///
    /// # Errors
    /// The system's; a manifest that is none.
    pub fn functions(
        &self,
        name: &str,
        wanted: &[(&Subject, Mode)],
        isolation: &str,
        keep_alive: &str,
    ) -> Result<PathBuf> {
        let directory = self.directory(name)?;
        for (subject, mode) in wanted {
            let source = self.workloads.join(subject.workload.name);
            let text = fs::read_to_string(source.join("function.toml"))?;
            let manifest = manifest(&text, subject, *mode, isolation, keep_alive)?;
            let target = directory.join(subject.function(*mode));
            fs::create_dir_all(&target)?;
            fs::copy(source.join("app.py"), target.join("app.py"))?;
            fs::write(target.join("function.toml"), manifest.to_string())?;
        }
        // Instances see their code read-only, and would each compile it anew.
        let mut compile = Command::new(self.python());
        compile.args(["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]);
        compile.arg(&directory);
        said(compile)?;
        Ok(directory)
    }
}

/// How long a function may take where its processor may be a program.
const EMULATED_TIMEOUT: &str = "120s";

/// A workload's manifest, as an experiment needs it.
fn manifest(
    text: &str,
    subject: &Subject,
    mode: Mode,
    isolation: &str,
    keep_alive: &str,
) -> Result<Table> {
    let mut table: Table = text.parse().context("function.toml")?;
    for (key, value) in [
        ("mode", mode.manifest()),
        // A tenant a mode: each has a worker of its own, whose use is the mode's.
        ("tenant", mode.name()),
        ("isolation", isolation),
        ("keep_alive", keep_alive),
    ] {
        table.insert(key.to_owned(), value.into());
    }
    if isolation == "qemu" {
        table.insert("timeout".to_owned(), EMULATED_TIMEOUT.into());
    }
    table.insert("concurrency".to_owned(), 1000.into());
    let mut preload = Table::new();
    preload.insert("handler".to_owned(), (mode != Mode::Stock).into());
    let modules = subject.workload.modules.iter().map(|module| toml::Value::from(*module));
    preload.insert("modules".to_owned(), modules.collect::<Vec<_>>().into());
    table.insert("preload".to_owned(), preload.into());
    Ok(table)
}

/// Standard output of a command.
fn said(mut command: Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("running {shown}"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        bail!("{shown}: {}", String::from_utf8_lossy(&text).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the directory `tests/workloads`: of the current directory, of a directory above the
/// program, or of the sources that the program was built from.
pub fn find_workloads() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    let above = executable.ancestors().skip(1).map(|folder| folder.join(WORKLOADS_PATH));
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(WORKLOADS_PATH);
    let mut candidates = std::iter::once(PathBuf::from(WORKLOADS_PATH)).chain(above).chain([built]);
    let found = candidates.find(|path| path.join("inputs.py").exists());
    found.unwrap_or_else(|| PathBuf::from(WORKLOADS_PATH))
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{WORKLOADS, workload};
    use super::*;

    fn subject(name: &str) -> Subject {
        Subject {
            name: name.to_owned(),
            workload: workload(name).unwrap(),
            input_bytes: 0,
            event: Value::Null,
            objects: Vec::new(),
            outputs: Vec::new(),
            is_sized: false,
        }
    }

    #[test]
    fn manifests_of_all_modes_are_manifests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(WORKLOADS_PATH);
        for listed in WORKLOADS {
            let text = fs::read_to_string(root.join(listed.name).join("function.toml")).unwrap();
            for mode in Mode::ALL {
                let subject = subject(listed.name);
                let made = manifest(&text, &subject, mode, "process", SHORT_KEEP_ALIVE)
                    .unwrap()
                    .to_string();
                let parsed: unlade_fn_model::Manifest =
                    unlade_config::parse(&made, "function.toml").unwrap();
                parsed.check().unwrap();
                assert_eq!(parsed.mode.name(), mode.manifest());
                assert_eq!(parsed.preload.handler, mode != Mode::Stock);
                assert!(!parsed.preload.modules.iter().any(|module| module.contains("boto")));
                let kept = if listed.name == "aes" { "DATA_KEY" } else { "" };
                assert!(kept.is_empty() || parsed.environment.contains_key(kept));
            }
        }
        assert!(manifest("a = ", &subject("aes"), Mode::Sdk, "process", "1s").is_err());
    }

    #[test]
    fn what_fails_says_what_it_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo why; exit 3"]);
        assert!(said(command).unwrap_err().to_string().contains("why"));
        assert!(find_workloads().join("inputs.py").exists());
    }
}
