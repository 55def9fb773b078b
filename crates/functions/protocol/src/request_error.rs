//! The reason why the text of a REQUEST is refused.

/// The reason why the text of a REQUEST is refused. The guest is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is not JSON of this form.
    Form(String),
    /// A part is longer than its limit.
    TooLong {
        /// The part.
        what: &'static str,
        /// The limit, in bytes or entries.
        limit: usize,
    },
    /// A part has characters or a form that it must not have.
    Malformed(&'static str),
    /// A header field belongs to the host.
    Field(String),
    /// The bytes after the text are not as announced.
    Inline {
        /// The length found.
        found: usize,
        /// The length announced.
        due: u64,
    },
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestError::Form(why) => write!(f, "the request's text: {why}"),
            RequestError::TooLong { what, limit } => {
                write!(f, "the request's {what}: more than {limit}")
            }
            RequestError::Malformed(what) => write!(f, "the request's {what} is malformed"),
            RequestError::Field(name) => {
                write!(f, "the header field {name} is the host's: leave it out")
            }
            RequestError::Inline { found, due } => {
                write!(f, "{found} bytes after the request's text, {due} announced")
            }
        }
    }
}

impl std::error::Error for RequestError {}
