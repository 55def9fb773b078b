//! Standard output. A reader that goes away (`unlade … | head`) is no failure of ours, and no
//! reason to panic.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes one line.
///
/// # Errors
/// Standard output cannot be written; see [`is_gone`].
pub fn line(text: impl Display) -> Result<()> {
    writeln!(io::stdout(), "{text}").context("writing to standard output")
}

/// Returns true if the only failure is that the reader of standard output has gone.
pub fn is_gone(error: &anyhow::Error) -> bool {
    let root = error.root_cause().downcast_ref::<io::Error>();
    root.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
