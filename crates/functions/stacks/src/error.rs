//! The refusal of a request, as tools of CloudFormation read it.

use serde::{Deserialize, Serialize};

/// The kind of a refusal: the code that SDKs make an exception of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The request or its template is invalid, or the state of the stack does not allow it.
    Validation,
    /// The request names no operation.
    MissingAction,
    /// The operation is unknown.
    InvalidAction,
    /// The name of the new stack or change set is taken.
    AlreadyExists,
    /// The request does not acknowledge what the template does.
    InsufficientCapabilities,
    /// A limit of stacks, change sets or templates is reached.
    LimitExceeded,
    /// The token was used for another operation.
    TokenAlreadyExists,
    /// There is no such change set.
    ChangeSetNotFound,
    /// The change set cannot be executed or deleted now.
    InvalidChangeSetStatus,
}

impl Kind {
    /// The code in the answer.
    pub fn code(self) -> &'static str {
        match self {
            Kind::Validation => "ValidationError",
            Kind::MissingAction => "MissingAction",
            Kind::InvalidAction => "InvalidAction",
            Kind::AlreadyExists => "AlreadyExistsException",
            Kind::InsufficientCapabilities => "InsufficientCapabilitiesException",
            Kind::LimitExceeded => "LimitExceededException",
            Kind::TokenAlreadyExists => "TokenAlreadyExistsException",
            Kind::ChangeSetNotFound => "ChangeSetNotFound",
            Kind::InvalidChangeSetStatus => "InvalidChangeSetStatus",
        }
    }

    /// The status of the answer in HTTP.
    pub fn status(self) -> u16 {
        if self == Kind::ChangeSetNotFound { 404 } else { 400 }
    }
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Its kind.
    pub kind: Kind,
    /// The cause, in the words of CloudFormation where tools show or parse them.
    pub message: String,
}

impl Failure {
    /// Makes a refusal of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// Makes the refusal of an invalid request.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Kind::Validation, message)
    }

    /// Makes the refusal of a template with a wrong form.
    pub fn format(message: impl std::fmt::Display) -> Failure {
        Failure::invalid(format!("Template format error: {message}"))
    }

    /// Makes the refusal of a template with a wrong use of a function.
    pub fn template(message: impl std::fmt::Display) -> Failure {
        Failure::invalid(format!("Template error: {message}"))
    }
}
