//! NVMe over TCP: a target that serves files and memory, and an initiator.
//!
//! - [`target`]: the side that provides the namespaces;
//! - [`initiator`]: the side that reads and writes them;
//! - [`secure`]: TLS with pre-shared keys, for both.
#![forbid(unsafe_code)]

pub mod initiator;
pub mod secure;
pub mod target;
