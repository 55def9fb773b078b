//! Seeded random numbers: the same seed gives the same run on every machine. Not for secrets. Also
//! a parser for tests.
//!
//! - [`Random`] is the generator;
//! - [`cases`] runs a random test: `UNLADE_CASES=1000` sets the number of cases, `UNLADE_SEED=…`
//!   repeats the one that failed; [`seed`] is for tests that are one long run;
//! - [`openmetrics`] parses the metrics that a program serves.
#![forbid(unsafe_code)]

mod cases;
mod generator;
pub mod openmetrics;

pub use cases::{cases, count, seed, seeds, setting};
pub use generator::Random;
