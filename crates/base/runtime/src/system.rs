//! Errors of the system that stop a command.

use std::io;

/// An operation that the system refused.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct SystemError {
    what: String,
    #[source]
    source: io::Error,
}

/// Makes the error of the operation `what`, for `map_err`.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> SystemError {
    let what = what.into();
    move |source| SystemError { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_operation_and_the_error() {
        let error = system("the runtime")(io::Error::from_raw_os_error(11));
        let text = error.to_string();
        assert!(text.starts_with("the runtime: ") && text.contains("os error 11"), "{text}");
        assert!(std::error::Error::source(&error).is_some());
    }
}
