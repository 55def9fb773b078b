//! The host's files that a Python interpreter needs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;
use unlade_fn_model::isolation::IsolationError;

use super::error::{NAME, system};

/// The oldest version that the guest's package supports.
const VERSION_MIN: (u32, u32) = (3, 9);
/// Timeout of the interpreter's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The script that an interpreter runs to report its paths. The paths that it was linked or
/// configured with cover the standard library, packages of a virtual environment, and shared
/// libraries next to them.
const QUESTION: &str = "\
import json, os, sys
executable = os.path.realpath(sys.executable)
print(json.dumps({
    'executable': sys.executable,
    'version': list(sys.version_info[:2]),
    'places': sorted({sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix,
                      os.path.dirname(os.path.dirname(executable))}),
}))";

/// An interpreter's report of its paths.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Interpreter {
    /// Its path: within the virtual environment if there is one.
    pub executable: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// The directories that it reads.
    pub places: Vec<PathBuf>,
}

impl Interpreter {
    /// Runs an interpreter to get its paths.
    ///
    /// # Errors
    /// It does not run, or is too old.
    pub async fn ask(python: &Path) -> Result<Interpreter, IsolationError> {
        let unusable = |why: String| IsolationError::Unusable { backend: NAME, why };
        let mut command = Command::new(python);
        command.args(["-I", "-S", "-c", QUESTION]).stdin(Stdio::null()).kill_on_drop(true);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, command.output()).await;
        let output = answer
            .map_err(|_| unusable(format!("{} does not answer", python.display())))?
            .map_err(|source| system(format!("running {}", python.display()), source))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim_end().lines().last().unwrap_or_default().to_owned();
            return Err(unusable(format!("{} is no Python: {last}", python.display())));
        }
        Interpreter::of_answer(&output.stdout)
            .map_err(|why| unusable(format!("{}: {why}", python.display())))
    }

    fn of_answer(text: &[u8]) -> Result<Interpreter, String> {
        let found: Interpreter =
            serde_json::from_slice(text).map_err(|error| format!("its answer: {error}"))?;
        if found.version < VERSION_MIN {
            let ((major, minor), (least, most)) = (found.version, VERSION_MIN);
            return Err(format!("Python {major}.{minor}; {least}.{most} is needed at least"));
        }
        let wrong = |place: &PathBuf| !place.is_absolute() || place == Path::new("/");
        match found.places.iter().find(|place| wrong(place)) {
            Some(place) => Err(format!("it reads from {:?}, which is no place of its own", place)),
            None => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged() {
        let of = |text: &str| Interpreter::of_answer(text.as_bytes());
        let answer = r#"{"executable": "/v/bin/python", "version": [3, 11], "places": ["/usr"]}"#;
        assert_eq!(of(answer).unwrap().version, (3, 11));
        let old = answer.replace("11", "8");
        assert!(of(&old).unwrap_err().contains("3.9 is needed"));
        assert!(of(&answer.replace("/usr", "/")).unwrap_err().contains("no place"));
        assert!(of("Python 2").unwrap_err().contains("answer"));
    }
}
