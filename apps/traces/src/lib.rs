//! Traces of function invocations. No I/O: the caller brings the bytes of a file.
//!
//! - [`lines`]: rows of a file, with limits, and errors that say which line;
//! - [`azure2019`]: invocations by the minute, durations and memory of Azure Functions in 2019;
//! - [`azure2021`]: single invocations of 2021;
//! - [`distribution`]: Zipf, log-normal, Poisson, from a seed;
//! - [`synthetic`]: a trace that was never recorded, in the same forms;
//! - [`arrivals`]: when each invocation of a trace begins.
//!
//! The data sets are Microsoft's (github.com/Azure/AzurePublicDataset, CC-BY); none of them is part
//! of this repository.
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod azure2019;
pub mod azure2021;
pub mod distribution;
pub mod lines;
pub mod synthetic;

pub use lines::{Row, Rows, TraceError, Why};
