//! The inline NIC engine: TLS of the kernel's TCP connections, processed on another core while the
//! packets pass.
//!
//! Use [`tls_proxy`] (`unlade nic run`) for TLS in front of other programs, and [`device`] for a
//! server of your own whose TCP stays in the kernel: software writes records in the clear, and the
//! engine behind a TAP device seals and opens them (`examples/serve_files.rs`). The parts for
//! frames are of use alone.
//!
//! 1. [`device`]: the device between the kernel's stack and the link, and the software side of a
//!    connection;
//! 2. [`tls_proxy`]: TLS in front of other programs (`unlade nic run`);
//! 3. [`classify`]: the kind of a frame, after its checksums are verified;
//! 4. [`impair`]: simulation of bad lines; [`capture`]: capture files of the frames.
//!
//! ```
//! use std::time::Duration;
//!
//! use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions};
//! use unlade_net::{FlowKey, SeqNumber};
//! use unlade_nic_inline::capture::Capture;
//! use unlade_nic_inline::classify::{Checksums, Kind, classify};
//!
//! let segment = Segment {
//!     flow: FlowKey::new("10.0.0.9:40000".parse()?, "10.0.0.1:443".parse()?),
//!     direction: Direction::ToService,
//!     seq: SeqNumber(1),
//!     ack: SeqNumber(1),
//!     flags: TcpFlags::ACK,
//!     window: 512,
//!     options: TcpOptions::default(),
//!     payload: b"a record, or a part of one",
//! };
//! let mut frame = segment.ethernet_frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])?;
//! let Kind::Segment(found) = classify(&frame, Checksums::Verify) else { panic!("it is good") };
//! assert_eq!(&frame[found.payload], segment.payload);
//!
//! let mut capture = Capture::new(Vec::new(), 1 << 20)?; // a file that Wireshark reads
//! capture.frame(Duration::from_millis(1), &frame);
//! assert_eq!(capture.not_written(), 0);
//!
//! *frame.last_mut().unwrap() ^= 1;
//! assert_eq!(classify(&frame, Checksums::Verify), Kind::Damaged);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! The device needs root and a TAP device or a packet socket; it is one thread on a core of its
//! own. It moves work between cores and does not remove it: `docs/benchmarks.md` has the cases in
//! which it loses. AES-GCM only; other suites stay in software. No `unsafe`.
#![forbid(unsafe_code)]

pub mod capture;
pub mod classify;
pub mod device;
pub mod impair;
pub mod tls_proxy;
