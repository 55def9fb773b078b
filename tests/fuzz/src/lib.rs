//! The fuzz targets, and the seeds they start from.
//!
//! The modules are compiled into the test `xtask/tests/fuzz_seeds.rs` as well, which runs every
//! target over the committed seeds: a crash that was found and added there stays fixed.
#![forbid(unsafe_code)]

mod archive;
mod chunks;
mod endpoint;
mod guest;
mod http_event;
mod initiator;
mod inline_device;
mod lines;
mod notifications;
mod nvme;
mod pdus;
mod policy;
mod presume;
pub mod sealing;
pub mod seeds;
pub mod splice;
mod stacks;
mod storage;
pub mod targets;
mod tcp;
mod tls;
mod traces;
