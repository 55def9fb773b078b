//! The backend's name and its errors.

use std::io;

use unlade_fn_model::isolation::IsolationError;

/// The backend's name.
pub const NAME: &str = "qemu";

/// Creates the error of a machine that cannot be used.
pub fn unusable(why: impl Into<String>) -> IsolationError {
    IsolationError::Unusable { backend: NAME, why: why.into() }
}

/// Creates an error of the machine.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> IsolationError {
    let what = what.into();
    move |source| IsolationError::System { what, source }
}
