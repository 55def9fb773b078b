//! The inline NIC engine: TLS of the kernel's TCP connections, processed on another core while
//! the packets pass.
//!
//! - [`device`]: the device between the kernel's stack and the link, and the software side of a
//!   connection;
//! - [`tls_proxy`]: TLS in front of other programs (`unlade nic run`);
//! - [`classify`]: the kind of a frame, after its checksums are verified;
//! - [`impair`]: simulation of bad lines; [`capture`]: capture files of the frames.
#![forbid(unsafe_code)]

pub mod capture;
pub mod classify;
pub mod device;
pub mod impair;
pub mod tls_proxy;
