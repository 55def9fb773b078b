//! Event source mappings: queues of Amazon SQS that feed functions (AWS Lambda developer guide, *Using
//! Lambda with Amazon SQS*). Sans-IO.
//!
//! - [`mapping`]: a mapping, as its API has it;
//! - [`message`]: messages of a queue as events of a function, and what a function reports about them;
//! - [`poller`]: the decisions of one mapping: when to receive, invoke, delete and release.

pub mod mapping;
pub mod message;
pub mod poller;

#[cfg(test)]
mod tests;

pub use mapping::{Mapping, MappingChange};
pub use message::{Message, Outcome};
pub use poller::{Action, Poller, Settings};
