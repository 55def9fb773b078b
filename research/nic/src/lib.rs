//! A software NIC in user space: a device that processes the messages of TLS and NVMe/TCP on other
//! cores, and a host with its own TCP above it.
//!
//! Use it to study such a device and its driver with every part in view; no product uses it, and
//! `unlade-lab bench nic` measures it. The product for the kernel's TCP is the crate
//! `unlade-nic-inline`.
//!
//! The device, in the order in which a frame meets it:
//! - [`port`]: sources and destinations of frames;
//! - [`buffers`]: destinations of received data;
//! - [`flow`]: flows and their machines;
//! - [`segment`]: segmentation of large segments into frames, with sealing;
//! - [`engine`]: a shard of the device, and [`threads`], which run shards.
//!
//! Between device and host: [`queue`], [`span`], the units of sent data, and [`command`], requests
//! beside packets.
//!
//! The host: [`driver`], the interface for protocols above TCP; [`rx_bytes`], received bytes at the
//! place where the device has put them; [`tls`], records above TCP; [`stack`], the host's own TCP
//! over the device; [`storage`], reads and writes over NVMe/TCP with data placement by the device.
//!
//! A record, by software and with the device:
//!
//! ```
//! use bytes::Bytes;
//! use unlade_net::SeqNumber;
//! use unlade_nic_engine::tls::Version;
//! use unlade_research_nic::tls::Mode;
//! use unlade_research_nic::tls::keys::Secrets;
//! use unlade_research_nic::tls::send::Sender;
//! use unlade_tls::Cipher;
//!
//! let secrets = Secrets {
//!     version: Version::Tls13,
//!     cipher: Cipher::Aes128Gcm,
//!     key: vec![7; 16].into(),
//!     iv: [1; 12],
//!     traffic_secret: None,
//! };
//! let content = Bytes::from_static(b"an object's bytes");
//!
//! // Software: the content becomes a sealed record.
//! let mut sender = Sender::new(Mode::Software, secrets.clone(), SeqNumber(0), 0)?;
//! let mut record = content.clone();
//! sender.write(&mut record)?;
//! assert_eq!(record.len(), 5 + content.len() + 1 + 16);
//!
//! // Offload: the caller's bytes go to TCP as they are, in an envelope; the device seals later.
//! let mut sender = Sender::new(Mode::Offload, secrets, SeqNumber(0), 0)?;
//! let mut clear = content.clone();
//! let _envelope = sender.write(&mut clear)?;
//! assert_eq!(clear, content);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! Research: no handshake, no product's promises. Host and device are one thread each, or take
//! turns on one. Frames have at most [`port::FRAME_BYTES_MAX`]. No `unsafe`.
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
