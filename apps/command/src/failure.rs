//! How a command ends: its exit status, and the cause of a failure on one line.

use std::process::ExitCode;

use crate::output;

/// The exit status of a command of `program`; a failure is reported on standard error.
pub fn status(program: &str, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(error) if output::is_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes on one line; a cause whose text its parent already ends with is
/// not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_not_repeated() {
        let error = anyhow::anyhow!("no such file").context("reading lb.toml");
        assert_eq!(chain(&error), "reading lb.toml: no such file");
        let error = anyhow::anyhow!("no such file").context("lb.toml: no such file");
        assert_eq!(chain(&error), "lb.toml: no such file");
    }
}
