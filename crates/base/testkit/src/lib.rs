//! Seeded random numbers for tests, benchmarks and simulated lines: the same seed gives the same
//! run on every machine.
//!
//! Use it for a random test that must be repeatable from the one line that a failure prints, and
//! for traces and impairments with a `--seed`. Not for secrets. Use `proptest` where a failing
//! input must be reduced.
//!
//! 1. [`Random`] is the generator;
//! 2. [`cases`] runs a random test: `UNLADE_CASES=1000` sets the number of cases, `UNLADE_SEED=…`
//!    repeats the one that failed; [`seed`] is for tests that are one long run;
//! 3. [`mod@line`] is the model of a line that loses, duplicates and delays packets;
//! 4. [`malformed`] has HTTP messages that a decoder refuses, with the reason;
//! 5. [`openmetrics`] parses the metrics that a program serves.
//!
//! ```
//! use unlade_testkit::{Random, cases};
//!
//! cases(100, |random| {
//!     let count = random.below(20u64) as usize;
//!     let mut bytes = random.bytes(count);
//!     bytes.sort_unstable();
//!     assert!(bytes.is_sorted(), "a failure prints the seed that repeats this case");
//! });
//!
//! let (mut a, mut b) = (Random::new(7), Random::new(7));
//! assert_eq!(a.bytes(8), b.bytes(8));
//! ```
//!
//! # Limits
//! The generator is no cryptographic one. [`cases`] and [`seed`] read the environment; no other
//! I/O, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod cases;
mod generator;
pub mod line;
pub mod malformed;
pub mod openmetrics;

pub use cases::{cases, count, seed, seeds, setting};
pub use generator::Random;
