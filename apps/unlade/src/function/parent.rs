//! The end of a process with the one that started it.

use anyhow::{Context, Result};

/// Ends this process when its parent ends, if `asked`.
pub fn mind_parent(asked: bool) -> Result<()> {
    match asked {
        true => {
            unlade_fn_gateway::child::die_with_parent().context("the process that started this one")
        }
        false => Ok(()),
    }
}
