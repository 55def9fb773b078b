//! The finding of a probe.

use serde::Serialize;

/// Purpose of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Handing connections over cannot do without it.
    ConnectionOffload,
    /// Makes it better.
    Better,
    /// Means of copying, and the party that copies.
    CopyOffload,
    /// Means of a device, and the source of its packets.
    ProtocolOffload,
    /// Sandboxes of function instances.
    Functions,
    /// Labs and experiments.
    Lab,
}

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Works,
    FallsBack,
    Missing,
}

/// One line of the diagnosis.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub part: Part,
    pub feature: &'static str,
    pub outcome: Outcome,
    pub detail: String,
}
