//! Start of a long-running command: its configuration is read, and either checked only, or served
//! with the log and the limits of a service.
//!
//! The rest is common, too, and in `crates/base/runtime`: an address that another process uses is
//! refused (`listen.rs`), the admin endpoint (`admin.rs`), and SIGTERM, SIGINT and SIGHUP
//! (`control.rs`, `workers.rs`). A command supplies its configuration and what it serves.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use unlade_command::output::line;
use unlade_runtime::logs::LogConfig;
use unlade_runtime::{limits, logs};

/// A command whose configuration has been read.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// `--check`: say that the configuration is valid, and end.
    pub check: bool,
    /// Settings of its log.
    pub log: &'a LogConfig,
}

impl Start<'_> {
    /// With `--check` runs `examine`, prints that `name` is valid, and ends; otherwise starts the
    /// log, raises the limit of descriptors, and runs `serve`.
    ///
    /// # Errors
    /// The log's, and those of `examine` and `serve`.
    pub fn run(
        self,
        name: impl Display,
        examine: impl FnOnce() -> Result<()>,
        serve: impl FnOnce() -> Result<()>,
    ) -> Result<ExitCode> {
        if self.check {
            examine()?;
            line(name)?;
        } else {
            logs::init(self.log)?;
            limits::raise_descriptor_limit();
            serve()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The line for a valid configuration: that of `file`, or `otherwise` without one.
pub fn valid(file: Option<&Path>, otherwise: &str) -> String {
    file.map_or_else(|| otherwise.to_owned(), |file| format!("{}: valid", file.display()))
}

/// For a command that has no more to examine than its configuration.
#[expect(clippy::unnecessary_wraps, reason = "the type of an examination")]
pub fn nothing_more() -> Result<()> {
    Ok(())
}
