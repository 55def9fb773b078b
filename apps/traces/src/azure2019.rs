//! The Azure Functions trace of 2019, as described with its data set: three kinds of files per
//! day, whose rows are linked by the identifiers of owner, application and function.
//!
//! - [`invocations`]: number of invocations of a function in each minute;
//! - [`durations`]: durations of a function;
//! - [`memory`]: memory use of an application.

pub mod durations;
pub mod invocations;
pub mod memory;

pub use durations::Durations;
pub use invocations::{Invocations, MINUTES_MAX, Trigger};
pub use memory::Memory;
