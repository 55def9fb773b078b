//! NVMe over TCP: a target that serves files and memory, and an initiator.
//!
//! - [`target`]: the side that has the namespaces.
#![forbid(unsafe_code)]

pub mod target;
