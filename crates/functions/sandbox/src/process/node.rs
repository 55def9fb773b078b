//! Functions in Node.js: the interpreter, its arguments and its environment. Init starts it in the
//! place of a function's `bootstrap`.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use unlade_fn_model::isolation::{Image, IsolationError};

/// The directory of the package in [`Image::guest`], and in the sandbox below its directory.
pub const PACKAGE: &str = "unlade_node";
/// The interpreter in the sandbox.
pub const PROGRAM: &str = "/opt/unlade/node";
/// The parent directory of modules for functions that bring no SDK: Node.js searches it after
/// those of the function.
pub const MODULES: &str = "/node_modules";
/// The variable with the words of the command that init starts.
const COMMAND: &str = "UNLADE_BOOTSTRAP";
/// Longest header of a request or response, as with Lambda.
const HEADER_BYTES_MAX: u64 = 81_920;

/// The interpreter on this machine.
///
/// # Errors
/// There is none that every user may execute.
pub fn program(image: &Image) -> Result<PathBuf, IsolationError> {
    let found = std::fs::canonicalize(&image.node).and_then(|path| {
        let metadata = std::fs::metadata(&path)?;
        let is_program = metadata.is_file() && metadata.permissions().mode() & 0o5 == 0o5;
        Ok(is_program.then_some(path))
    });
    let why = match found {
        Ok(Some(path)) => return Ok(path),
        Ok(None) => "it is no program that all users may read and execute".to_owned(),
        Err(error) => error.to_string(),
    };
    let why = format!(
        "runtime = \"nodejs\" needs Node.js 20.15 or later, and {} cannot be used ({why}): install \
         it (apt-get install nodejs), or set node = \"/PATH/OF/node\" in fn.toml",
        image.node.display()
    );
    Err(IsolationError::Function { function: image.function.clone(), why })
}

/// The environment, for which `common` is that of any language. `guest` is the parent directory of
/// the package in the sandbox.
pub fn environment(
    image: &Image,
    guest: &str,
    common: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut out = common;
    out.insert("AWS_EXECUTION_ENV".to_owned(), "AWS_Lambda_nodejs".to_owned());
    let modules = "/opt/nodejs/node_modules:/var/runtime/node_modules";
    out.entry("NODE_PATH".to_owned()).or_insert(modules.to_owned());
    let words = words(image.memory_bytes, guest);
    out.insert(COMMAND.to_owned(), serde_json::Value::from(words).to_string());
    out
}

/// The command. The heap is a part of the instance's memory, as with Lambda.
fn words(memory_bytes: u64, guest: &str) -> Vec<String> {
    let memory_mib = memory_bytes >> 20;
    let young_mib = (memory_mib / 40).clamp(1, 16);
    let package = Path::new(guest).join(PACKAGE);
    vec![
        PROGRAM.to_owned(),
        format!("--max-http-header-size={HEADER_BYTES_MAX}"),
        format!("--max-old-space-size={}", memory_mib * 9 / 10),
        format!("--max-semi-space-size={young_mib}"),
        package.join("bootstrap.js").display().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_fits_into_the_memory_of_the_instance() {
        let words = words(128 << 20, "/opt/unlade");
        assert_eq!(words.first().map(String::as_str), Some(PROGRAM));
        assert!(words.contains(&"--max-old-space-size=115".to_owned()), "{words:?}");
        assert!(words.contains(&"--max-semi-space-size=3".to_owned()), "{words:?}");
        assert_eq!(words.last().unwrap(), "/opt/unlade/unlade_node/bootstrap.js");
    }
}
