//! The end of an action: a resource that is there, or the cause of its failure.

use serde_json::{Map, Value};
use unlade_fn_model::lambda::Refusal;

use crate::behalf::CallError;

/// A resource that is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// The value of `Ref`.
    pub physical_id: String,
    /// The values of `Fn::GetAtt`.
    pub attributes: Map<String, Value>,
}

impl Done {
    /// A resource with this identifier.
    pub fn new(physical_id: impl Into<String>) -> Done {
        Done { physical_id: physical_id.into(), attributes: Map::new() }
    }

    /// The same resource with an attribute more.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Done {
        self.attributes.insert(name.to_owned(), value.into());
        self
    }
}

/// An action that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The cause, and what to do.
    pub reason: String,
    /// The identifier of what a failed creation left.
    pub physical_id: Option<String>,
    /// The gateway's own state could not be read or written.
    pub is_of_state: bool,
}

impl Failed {
    /// A failure that leaves nothing.
    pub fn new(reason: impl Into<String>) -> Failed {
        Failed { reason: reason.into(), physical_id: None, is_of_state: false }
    }

    /// A failure of the gateway's own state.
    pub fn of_state(error: &std::io::Error) -> Failed {
        let failed = Failed::new(format!("the state of the stack: {error}"));
        Failed { is_of_state: true, ..failed }
    }

    /// The failure of a call that makes a resource of a name. Where the answer does not tell, the resource
    /// may be there: the name is then what is left.
    pub fn creation(operation: &str, name: &str, error: &CallError) -> Failed {
        let failed = Failed::new(format!("{operation} of {name}: {error}"));
        match error {
            CallError::Failed(_) | CallError::Service { status: 500.., .. } => failed.left(name),
            _ => failed,
        }
    }

    /// The same failure, which leaves a resource.
    pub fn left(self, physical_id: &str) -> Failed {
        Failed { physical_id: Some(physical_id.to_owned()), ..self }
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Failed {
        Failed::new(refusal.message())
    }
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Failed {
        Failed::new(error.to_string())
    }
}

/// A deletion: what is not there is deleted.
///
/// # Errors
/// It failed for another reason.
pub fn deleted(result: Result<Value, Refusal>) -> Result<(), Failed> {
    match result {
        Ok(_) => Ok(()),
        Err(
            Refusal::NotFound(_)
            | Refusal::Foreign(_)
            | Refusal::Absent(_)
            | Refusal::NotProvisioned(_),
        ) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_without_an_answer_may_have_made_its_resource() {
        let left = |error: CallError| Failed::creation("CreateQueue", "q", &error).physical_id;
        let service = |status| CallError::Service { status, text: String::new() };
        assert_eq!(left(CallError::Failed("broken".to_owned())).as_deref(), Some("q"));
        assert_eq!(left(service(503)).as_deref(), Some("q"));
        assert_eq!(left(service(409)), None);
        assert_eq!(left(CallError::Denied("no".to_owned())), None);
    }
}
