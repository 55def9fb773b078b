//! An alias: the name of a version, with a share of the invocations for a second version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Version;

/// An alias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alias {
    /// The version that gets the rest of the invocations.
    pub version: Version,
    /// The shares of other versions, from 0 to 1.
    #[serde(default)]
    pub weights: BTreeMap<u64, f64>,
    /// A text for humans.
    #[serde(default)]
    pub description: String,
    /// The identifier of this state.
    pub revision: String,
}

impl Alias {
    /// All versions that it refers to.
    pub fn versions(&self) -> impl Iterator<Item = Version> {
        let others = self.weights.keys().map(|number| Version::Number(*number));
        std::iter::once(self.version).chain(others)
    }
}

/// The parameters of a new or changed alias. Absent ones stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AliasChange {
    /// The version.
    pub version: Option<Version>,
    /// The shares of other versions.
    pub weights: Option<BTreeMap<u64, f64>>,
    /// The description.
    pub description: Option<String>,
}
