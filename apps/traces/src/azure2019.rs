//! The Azure Functions trace of 2019, described with its data set: three kinds of files a day, whose
//! rows belong together by the identifiers of owner, application and function.
//!
//! - [`invocations`]: how often a function ran in each minute;
//! - [`durations`]: how long it took;
//! - [`memory`]: what its application used.

pub mod durations;
pub mod invocations;
pub mod memory;

pub use durations::Durations;
pub use invocations::{Invocations, MINUTES_MAX, Trigger};
pub use memory::Memory;
