//! A software NIC in user space: a device that processes the messages of TLS and NVMe/TCP on
//! other cores, and a host with its own TCP above it. No product uses it; `unlade-lab bench nic`
//! measures it.
//!
//! The device, in the order in which a frame meets it:
//! - [`port`]: sources and destinations of frames;
//! - [`buffers`]: destinations of received data;
//! - [`flow`]: flows and their machines;
//! - [`segment`]: segmentation of large segments into frames, with sealing;
//! - [`engine`]: a shard of the device, and [`threads`], which run shards.
//!
//! Between device and host: [`queue`], [`span`], the units of sent data, and [`command`],
//! requests beside packets.
//!
//! The host: [`driver`], the interface for protocols above TCP; [`rx_bytes`], received bytes at the
//! place where the device has put them; [`tls`], records above TCP; [`stack`], the host's own TCP
//! over the device; [`storage`], reads and writes over NVMe/TCP with data placement by the
//! device.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod command;
pub mod driver;
pub mod engine;
pub mod flow;
mod flow_id;
pub mod port;
pub mod queue;
pub mod rx_bytes;
pub mod segment;
pub mod span;
pub mod stack;
pub mod storage;
pub mod template;
pub mod threads;
pub mod tls;
