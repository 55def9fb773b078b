//! `cargo run -p xtask -- layers | tidy | all`: exits with 0 if there is no problem, with 1 if a
//! check found one, with 2 if a check could not run. `changed [REVISION]` prints the packages with
//! changes since the revision, by default `HEAD`. `driven FILE` compares the samples in the file,
//! which tests drove above zero, with the metrics that exist.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use xtask::{changed, driven, layers, root, tidy};

const USAGE: &str =
    "usage: cargo run -p xtask -- layers | tidy | all | changed [REVISION] | driven FILE";

fn main() -> ExitCode {
    let found = match std::env::args().nth(1).as_deref() {
        Some("layers") => layers::check(&root()),
        Some("tidy") => tidy::check(&root()),
        Some("all") => layers::check(&root()).and_then(|mut found| {
            found.extend(tidy::check(&root())?);
            Ok(found)
        }),
        Some("driven") => match std::env::args_os().nth(2) {
            Some(seen) => driven::check(&root(), seen.as_ref()),
            None => Err(anyhow::anyhow!("{USAGE}")),
        },
        Some("changed") => {
            let base = std::env::args().nth(2).unwrap_or_else(|| "HEAD".to_owned());
            return print(changed::packages(&root(), &base), ExitCode::SUCCESS);
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match &found {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    };
    print(found, outcome)
}

/// Prints the lines that a command found, and exits with `outcome`, or with 2 if it found an error.
fn print(found: anyhow::Result<Vec<String>>, outcome: ExitCode) -> ExitCode {
    match found {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            outcome
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}
