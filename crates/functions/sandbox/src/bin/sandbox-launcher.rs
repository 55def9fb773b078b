//! The launcher as a program of its own: equal to `unlade fn sandbox`, for this crate's tests.
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
