//! The backend's name and its errors.

use unlade_fn_model::isolation::IsolationError;

/// The backend's name.
pub const NAME: &str = "process";

/// Creates an error of the machine.
pub fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> IsolationError {
    IsolationError::System { what: what.into(), source: source.into() }
}
