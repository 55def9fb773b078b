//! An initiator (host) in user space: NVMe over TCP, with TLS if a key is configured.
//!
//! The modules, in the order in which a command meets them:
//! - [`address`], such as `nvme+tcp://host:port/1`;
//! - [`options`]: host, subsystem, limits; how connections are made;
//! - `connect`: from an address to a controller that is ready;
//! - [`controller`]: its queues, keep alive, events, reconnection;
//! - [`device`]: namespaces: read, write, flush;
//! - [`driver`]: the task of one queue;
//! - [`queue`]: the protocol of one queue, sans-IO; `ranges`: the received parts of data;
//! - [`discover`](mod@discover): discovery of subsystems.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use unlade_nvme::initiator::{Controller, Host, Options, TcpConnector};
//! use std::sync::Arc;
//!
//! let connector = TcpConnector { host: "127.0.0.1".into(), port: 4420, psk: None };
//! let subsystem = unlade_nvme_wire::Nqn::new("nqn.2014-08.org.example:disk")?;
//! let options = Options::new(Host::random()?, subsystem);
//! let controller = Controller::connect(Arc::new(connector), options).await?;
//! let disk = controller.namespace(1).await?;
//! let mut block = vec![0; disk.block_bytes() as usize];
//! disk.read(0, &mut block).await?;
//! disk.write(0, block.into()).await?;
//! disk.flush().await?;
//! controller.close().await;
//! # Ok(())
//! # }
//! ```

pub mod address;
mod connect;
pub mod controller;
pub mod device;
pub mod discover;
pub mod driver;
mod error;
pub mod options;
pub mod queue;
mod ranges;
#[cfg(test)]
mod tests;

pub use address::{Address, AddressError};
pub use connect::{ConnectError, declined};
pub use controller::{Controller, ControllerStats, Link, LinkWatch, Loss};
pub use device::Namespace;
pub use discover::{DiscoverError, discover};
pub use driver::{BoxStream, ByteStream, CommandError};
pub use error::{DeviceError, Gone};
pub use options::{
    Connecting, Connector, Host, Options, Reconnect, StreamError, TcpConnector, uuid,
};
