//! The refusal of a request, before a policy is asked.

use unlade_metrics::CutRefusal;

/// The reason why a request is refused before a policy is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, for the metrics.
    pub kind: CutRefusal,
    /// The reason, and what to do.
    pub why: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(kind: CutRefusal, why: impl Into<String>) -> Refusal {
        Refusal { kind, why: why.into() }
    }
}
