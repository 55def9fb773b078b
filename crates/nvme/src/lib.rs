//! NVMe over TCP: a target that serves files and memory, and an initiator.
#![forbid(unsafe_code)]

pub mod initiator;
#[cfg(test)]
mod random;
pub mod secure;
