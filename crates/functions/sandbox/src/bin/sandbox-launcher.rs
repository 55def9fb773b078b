//! A launcher by itself: what `unlade fn sandbox` is, for tests of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use unlade_fn_sandbox::process::launch;

fn main() -> ExitCode {
    match launch::run(std::env::args().any(|argument| argument == launch::CONFINED)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unlade: sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}
