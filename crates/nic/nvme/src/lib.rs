//! NVMe over TCP: a target that serves files and memory, and an initiator, both in user space.
//!
//! Use [`target`] to give files, block devices or memory to hosts as NVMe namespaces (`unlade nvme
//! target`; Linux's initiator works with it). Use [`initiator`] to read and write namespaces from a
//! program, without the kernel's driver and without root. [`secure`] is TLS with pre-shared keys,
//! for both.
//!
//! ```
//! use std::sync::Arc;
//!
//! use unlade_config::ByteSize;
//! use unlade_nvme::initiator::{Controller, Host, Options, TcpConnector};
//! use unlade_nvme::target::{NamespaceConfig, Source, Target, TargetConfig};
//! use unlade_nvme_wire::Nqn;
//!
//! let name = "nqn.2014-08.org.example:disk";
//! let memory = NamespaceConfig {
//!     source: Source::Ram(ByteSize(1 << 20)),
//!     block_bytes: 4096,
//!     read_only: false,
//!     uuid: None,
//! };
//! let target = Target::bind(
//!     TargetConfig {
//!         listen: ([127, 0, 0, 1], 0).into(),
//!         nqn: Some(name.to_owned()),
//!         namespaces: vec![memory],
//!         workers: 1,
//!         ..TargetConfig::default()
//!     },
//!     None,
//! )?;
//! let (port, control) = (target.address().port(), target.control());
//! let running = std::thread::spawn(move || target.run(false));
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! runtime.block_on(async {
//!     let connector = TcpConnector { host: "127.0.0.1".into(), port, psk: None };
//!     let options = Options::new(Host::random()?, Nqn::new(name)?);
//!     let controller = Controller::connect(Arc::new(connector), options).await?;
//!     let disk = controller.namespace(1).await?;
//!     disk.write_from(8192, &[7; 4096]).await?;
//!     let mut block = [0; 4096];
//!     disk.read(8192, &mut block).await?;
//!     assert_eq!(block, [7; 4096]);
//!     controller.close().await;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! control.drain();
//! running.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! The target has worker threads with their own connections, and threads that may block for files;
//! the initiator runs on the caller's tokio runtime. One path to a namespace: no multipath, no
//! reservations. At most [`target::TargetConfig::queues_max`](target::TargetConfig) queues of a
//! controller. No `unsafe`.
#![forbid(unsafe_code)]

pub mod initiator;
pub mod secure;
pub mod target;
