//! Where the two programs are: each calls the other.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::tools::find_program;

/// The product.
pub const UNLADE: &str = "unlade";
/// Labs and benchmarks.
pub const LAB: &str = "unlade-lab";

/// Where `program` is: beside this one, else in PATH.
///
/// # Errors
/// It is in neither place.
pub fn find(program: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program's own path")?;
    // Cargo keeps a test one folder below the programs.
    let folders = own.ancestors().skip(1).take(2);
    let beside = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    beside.or_else(|| find_program(program)).with_context(|| {
        format!(
            "there is no `{program}` beside {} or in PATH; `cargo build --release` builds both programs",
            own.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_nowhere_is_named() {
        let error = find("unlade-of-nobody").unwrap_err().to_string();
        assert!(error.contains("`unlade-of-nobody`") && error.contains("PATH"), "{error}");
        assert!(find("sh").is_ok());
    }
}
