//! Traces of function invocations: reading Azure's, and making synthetic ones in the same formats.
//!
//! Use it to load a node with functions as a cloud sees them: a few functions with most
//! invocations, bursts, timers, heavy-tailed durations. The caller provides the bytes of a file.
//!
//! 1. [`lines`]: [`Rows`] of a file, with limits, and errors with line numbers;
//! 2. [`azure2019`]: invocations per minute, durations and memory of Azure Functions in 2019;
//! 3. [`azure2021`]: single invocations of 2021;
//! 4. [`distribution`]: Zipf, log-normal, Poisson, from a seed;
//! 5. [`synthetic`]: synthetic traces, in the same formats;
//! 6. [`arrivals`]: start times of a trace's invocations.
//!
//! ```
//! use unlade_traces::Rows;
//! use unlade_traces::arrivals::arrivals;
//! use unlade_traces::azure2019::Invocations;
//! use unlade_traces::lines::write;
//! use unlade_traces::synthetic::Plan;
//!
//! let trace = Plan { seed: 7, functions: 20, minutes: 10, ..Plan::default() }.make()?;
//! let text = write(&trace.invocations()); // a file of 2019's format
//!
//! let rows = Rows::of(text.as_bytes())?.collect::<Result<Vec<Invocations>, _>>()?;
//! let arrivals = arrivals(&rows, 0..10, 7)?;
//! assert!(arrivals.is_sorted() && !arrivals.is_empty());
//!
//! let error = Plan { functions: 0, ..Plan::default() }.make().unwrap_err();
//! assert_eq!(error.to_string(), "functions must be 1 to 100000");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! A file has at most [`lines::ROWS_MAX`] rows, a trace at most [`arrivals::ARRIVALS_MAX`]
//! arrivals. The data sets are published by Microsoft (github.com/Azure/AzurePublicDataset, CC-BY);
//! this repository does not contain them. No I/O, no thread, no `unsafe`.
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod azure2019;
pub mod azure2021;
pub mod distribution;
pub mod lines;
pub mod synthetic;

pub use lines::{Row, RowError, Rows, TraceError};
