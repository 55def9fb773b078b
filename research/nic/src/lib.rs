//! A software NIC in user space: a device that works on the messages of TLS and NVMe/TCP on other
//! cores, and a host with a TCP of its own above it. No product uses it; `unlade-lab bench nic`
//! measures it.
//!
//! In the device, in the order that a frame meets it:
//! - [`port`]: where frames come from and go;
//! - [`buffers`]: where data goes that comes for a command;
//! - [`flow`]: flows and what their machines do;
//! - [`segment`]: large segments become frames, sealed;
//! - [`engine`]: a shard of the device, and [`threads`], where shards run.
//!
//! Between device and host: [`queue`], [`span`], of which what is sent consists, and [`command`],
//! what goes through beside packets.
//!
//! In the host: [`driver`], the interface that protocols above TCP use; [`piece`], bytes that came,
//! where the device has put them; [`tls`], records above TCP; [`stack`], the host's own TCP over the
//! device; [`storage`], reads over NVMe/TCP whose data the device has placed.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod command;
pub mod driver;
pub mod engine;
pub mod flow;
pub mod piece;
pub mod port;
pub mod queue;
pub mod segment;
pub mod span;
pub mod stack;
pub mod storage;
pub mod threads;
pub mod tls;
