//! Runs the system's own tools (`ip`, `tc`, `ethtool`) and checks how they end.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `program` with `args`; standard input is `input`.
///
/// # Errors
/// The program is absent or ends with a failure; the message holds its standard error.
pub fn run_with_input(program: &str, args: &[&str], input: &str) -> Result<String> {
    let what = || format!("{program} {}", args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{}`; `scripts/setup` installs it", what()))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that ends before it has read everything says why by its status.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(what)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", what(), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `program` with `args`, nothing on its standard input.
///
/// # Errors
/// See [`run_with_input`].
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    run_with_input(program, args, "")
}

/// Runs `ip -batch` inside a namespace, one command a line.
///
/// # Errors
/// See [`run_with_input`]; `ip` names the line that failed, and the message quotes it.
pub fn ip_batch(namespace: &str, lines: &[String]) -> Result<()> {
    run_with_input("ip", &["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n"))
        .map(drop)
        .with_context(|| format!("in {namespace}, commands:\n{}", lines.join("\n")))
}

/// Where `program` is, if it is installed.
pub fn find_program(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(sbin).map(|dir| dir.join(program)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_says_what_was_run() {
        let error = run("sh", &["-c", "echo broken >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("sh -c"), "{error}");
        assert!(run("/nonexistent/program", &[]).is_err());
        assert_eq!(run_with_input("cat", &[], "x").unwrap(), "x");
    }

    #[test]
    fn programs_are_found() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
    }
}
