//! In work.
use anyhow::Result;
use std::process::ExitCode;
/// Arguments.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {}
pub fn run(_: &DoctorArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
