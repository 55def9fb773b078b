//! Decisions, and what makes a policy invalid.

/// Most statements of a policy.
pub const STATEMENTS_MAX: usize = 64;
/// Most patterns of a statement.
pub const PATTERNS_MAX: usize = 64;
/// Most bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 2048;

/// The reason why a policy is invalid. The operator is at fault.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It is not of this form.
    #[error("the policy is not understood: {0}")]
    Form(#[from] serde_json::Error),
    /// It is a document that the host cannot evaluate.
    #[error("the policy document is not accepted: {0}")]
    Document(String),
    /// It exceeds a limit.
    #[error("the policy has more than {limit} {what}; split the role")]
    TooMuch {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// The decision about an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A statement allows it, and none denies it.
    Allowed,
    /// A statement denies it.
    Denied,
    /// No statement allows it.
    NotAllowed,
}
