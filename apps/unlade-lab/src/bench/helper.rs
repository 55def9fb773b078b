//! A program that helps an experiment from inside a lab. It ends when its standard input does,
//! so it never outlives the process that started it.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running helper; dropping it kills it.
#[derive(Debug)]
pub struct Helper {
    child: Option<Child>,
    output: BufReader<ChildStdout>,
    what: &'static str,
}

impl Helper {
    /// Starts `command`; `what` names it in errors.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command, what: &'static str) -> Result<Helper> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().with_context(|| format!("starting {what}"))?;
        let output = child.stdout.take().map(BufReader::new);
        let Some(output) = output else {
            bail!("{what} has no output");
        };
        Ok(Helper { child: Some(child), output, what })
    }

    /// Waits for the first line, by which the program says that it is ready.
    ///
    /// # Errors
    /// It ends instead; the message says why.
    pub fn wait_ready(mut self) -> Result<Helper> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => match self.finish() {
                Ok(_) => bail!("a helper ended before it was ready"),
                Err(error) => Err(error),
            },
            Ok(_) => Ok(self),
        }
    }

    /// Its process number, while it is there.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns true if it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Ends its input, waits for its end and returns what it printed (after its first line, if
    /// that was waited for).
    ///
    /// # Errors
    /// It failed and printed nothing.
    pub fn finish(mut self) -> Result<String> {
        let Some(child) = self.child.as_mut() else { bail!("{} has ended", self.what) };
        drop(child.stdin.take());
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).with_context(|| self.what)?;
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut said).with_context(|| self.what)?;
        }
        let status = child.wait().with_context(|| self.what)?;
        self.child = None;
        if !status.success() && printed.trim().is_empty() {
            bail!("{} failed ({status}): {}", self.what, said.trim());
        }
        Ok(printed)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn it_ends_with_its_input() {
        let mut command = shell("echo ready; cat >/dev/null; echo '{\"n\":1}'");
        let mut helper = Helper::start(&mut command, "a test").unwrap().wait_ready().unwrap();
        assert!(!helper.has_ended());
        assert_eq!(helper.finish().unwrap(), "{\"n\":1}\n");
    }

    #[test]
    fn a_failure_says_why() {
        let helper = Helper::start(&mut shell("echo no >&2; exit 3"), "a test").unwrap();
        let error = helper.wait_ready().unwrap_err().to_string();
        assert!(error.contains("a test") && error.ends_with("no"), "{error}");
        // What was printed counts, whatever the status.
        let helper = Helper::start(&mut shell("echo x; exit 1"), "a test").unwrap();
        assert_eq!(helper.finish().unwrap(), "x\n");
    }

    #[test]
    fn a_dropped_one_is_killed() {
        let helper = Helper::start(&mut shell("echo; exec sleep 600"), "a test").unwrap();
        let helper = helper.wait_ready().unwrap();
        let pid = helper.child.as_ref().unwrap().id();
        drop(helper);
        assert!(crate::lab::process::identify(pid).is_none());
    }
}
