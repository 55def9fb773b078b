//! The function's `bootstrap`: its environment, its process, and the end of it.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use crate::output::Output;

/// Where `bootstrap` may lie, in Lambda's order.
const PLACES: [&str; 2] = ["/var/task/bootstrap", "/opt/bootstrap"];

/// The variable with the command in the place of the function's `bootstrap`: a list of words in
/// JSON. A function cannot set variables of this form.
const COMMAND: &str = "UNLADE_BOOTSTRAP";

/// A running `bootstrap`.
pub struct Bootstrap {
    pid: Pid,
    /// Its output.
    pub output: Output,
}

/// The surroundings with which it is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The function's environment, which this process does not have.
    pub environment: BTreeMap<String, String>,
    /// The address of the Runtime API.
    pub runtime_api: String,
    /// The address of the endpoint for SDKs.
    pub endpoint: String,
}

impl Bootstrap {
    /// Starts it in a process group of its own.
    ///
    /// # Errors
    /// There is none, or it cannot be executed.
    pub fn start(launch: &Launch) -> Result<Bootstrap> {
        let mut environment = launch.environment.clone();
        let words = words(environment.remove(COMMAND).as_deref())?;
        let Some((program, arguments)) = words.split_first() else {
            let why = "there is no bootstrap: the archive needs an executable of this name";
            return Err(Error::new(std::io::ErrorKind::NotFound, why));
        };
        let (reader, writer) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        command.env_clear().envs(environment);
        command.env("AWS_LAMBDA_RUNTIME_API", &launch.runtime_api);
        command.envs(endpoint_variables(&launch.endpoint));
        let child = command
            .spawn()
            .map_err(|error| Error::new(error.kind(), format!("{program}: {error}")))?;
        Ok(Bootstrap { pid: Pid::from_child(&child), output: Output::new(reader.into())? })
    }

    /// Kills it and the processes of its group.
    pub fn kill(&self) {
        // It may have ended.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// Takes all children that have ended, its own orphans included; its status if it is among
    /// them.
    pub fn reap(&self) -> Option<ExitStatus> {
        let mut ended = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                ended = Some(exit_status(status));
            }
        }
        ended
    }
}

/// The command: the sandbox's, or the function's `bootstrap`; empty if there is none.
fn words(of_sandbox: Option<&str>) -> Result<Vec<String>> {
    if let Some(words) = of_sandbox {
        return Ok(serde_json::from_str(words)?);
    }
    let found = PLACES.iter().find(|place| Path::new(place).exists());
    Ok(found.map(|place| (*place).to_owned()).into_iter().collect())
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    ExitStatus::from_raw(status.as_raw())
}

/// Variables that lead an SDK to the endpoint. The keys are no secret: every SDK demands some, and
/// the endpoint drops the signature.
fn endpoint_variables(endpoint: &str) -> Vec<(&'static str, String)> {
    let url = format!("http://{endpoint}");
    vec![
        ("AWS_ENDPOINT_URL", url.clone()),
        ("AWS_ENDPOINT_URL_S3", url),
        ("AWS_ACCESS_KEY_ID", "UNLADE".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "the-host-signs".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        // The host reads the action and the resource from the body.
        ("AWS_DISABLE_REQUEST_COMPRESSION", "true".to_owned()),
    ]
}
