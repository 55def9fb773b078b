//! Seeded random numbers, which give the same run on every machine (not for secrets), malformed
//! messages for tests of hostile peers, and a parser of metrics.
//!
//! - [`Random`] is the generator;
//! - [`cases`] runs a random test: `UNLADE_CASES=1000` sets the number of cases, `UNLADE_SEED=…`
//!   repeats the one that failed; [`seed`] is for tests that are one long run;
//! - [`malformed`] has HTTP messages that a decoder refuses, with the reason;
//! - [`openmetrics`] parses the metrics that a program serves.
#![forbid(unsafe_code)]

mod cases;
mod generator;
pub mod malformed;
pub mod openmetrics;

pub use cases::{cases, count, seed, seeds, setting};
pub use generator::Random;
