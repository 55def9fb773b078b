//! Traces of function invocations. No I/O: the caller provides the bytes of a file.
//!
//! - [`lines`]: rows of a file, with limits, and errors with line numbers;
//! - [`azure2019`]: invocations per minute, durations and memory of Azure Functions in 2019;
//! - [`azure2021`]: single invocations of 2021;
//! - [`distribution`]: Zipf, log-normal, Poisson, from a seed;
//! - [`synthetic`]: synthetic traces, in the same formats;
//! - [`arrivals`]: start times of a trace's invocations.
//!
//! The data sets are published by Microsoft (github.com/Azure/AzurePublicDataset, CC-BY); this
//! repository does not contain them.
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod azure2019;
pub mod azure2021;
pub mod distribution;
pub mod lines;
pub mod synthetic;

pub use lines::{Row, RowError, Rows, TraceError};
