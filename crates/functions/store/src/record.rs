//! The event of a change as its file has it, and the trace of the change.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most events that are kept.
pub const EVENTS_MAX: usize = 100_000;

/// The trace of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Witness {
    /// The key has an object without a version, of this time in nanoseconds or later. The store gives no
    /// time to two objects of a key.
    Object(i64),
    /// The key has a version or delete marker of this order.
    Version(u64),
    /// The key has no object without a version.
    NoObject,
    /// The key has no version of this id.
    NoVersion(String),
}

/// The event of a change, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// The ARN of the function.
    pub function: String,
    /// The trace of the change.
    pub witness: Witness,
    /// The event.
    pub event: Value,
}

/// The event of a change that is being made.
pub struct Intent {
    /// Its number.
    pub number: u64,
    /// The event and its change.
    pub record: Record,
    /// Its file.
    pub path: PathBuf,
    /// The content of its file.
    pub text: Vec<u8>,
}

impl Intent {
    /// The file and its content, to be written with other ones.
    pub fn file(&self) -> (&Path, &[u8]) {
        (&self.path, &self.text)
    }
}
