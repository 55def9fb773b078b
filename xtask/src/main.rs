//! `cargo run -p xtask -- layers | tidy | all`: exits with 0 if there is no problem, with 1 if a
//! check found one, with 2 if a check could not run.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use xtask::{layers, root, tidy};

const USAGE: &str = "usage: cargo run -p xtask -- layers | tidy | all";

fn main() -> ExitCode {
    let found = match std::env::args().nth(1).as_deref() {
        Some("layers") => layers::check(&root()),
        Some("tidy") => tidy::check(&root()),
        Some("all") => layers::check(&root()).and_then(|mut found| {
            found.extend(tidy::check(&root())?);
            Ok(found)
        }),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match found {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            problems.iter().for_each(|problem| println!("{problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}
