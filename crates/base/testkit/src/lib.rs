//! Seeded random numbers: the same seed gives the same run on every machine. Not for secrets.
//!
//! - [`Random`] is the generator;
//! - [`line`] is the model of a line that loses, duplicates and delays packets;
//! - [`cases`] runs a random test: `UNLADE_CASES=1000` sets the number of cases, `UNLADE_SEED=…`
//!   repeats the one that failed; [`seed`] is for tests that are one long run.
#![forbid(unsafe_code)]

mod cases;
mod generator;
pub mod line;

pub use cases::{cases, count, seed, seeds, setting};
pub use generator::Random;
