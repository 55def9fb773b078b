//! Discovery of subsystems: the discovery log page of a discovery controller (NVMe Base
//! §5.16.1.23).

use std::sync::Arc;

use thiserror::Error;
use unlade_nvme_wire::discovery::{
    DiscoveryEntry, DiscoveryError, DiscoveryHeader, LOG_DISCOVERY, RECORD_BYTES, parse_page,
};
use unlade_nvme_wire::fabrics::{DISCOVERY_NQN, NqnError};
use unlade_nvme_wire::{AdminOpcode, Command, Nqn};

use super::connect::ConnectError;
use super::controller::Controller;
use super::error::DeviceError;
use super::options::{Connector, Options};
use super::queue::Payload;

/// Largest number of reads of a page that changes while it is read.
const ATTEMPTS_MAX: u32 = 5;
/// Bytes of a log page per command.
const CHUNK_BYTES: usize = 64 * 1024;

/// An error of a discovery.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// The discovery controller cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The page could not be read.
    #[error("discovery log page: {0}")]
    Device(#[from] DeviceError),
    /// The page is invalid.
    #[error(transparent)]
    Page(#[from] DiscoveryError),
    /// The well-known name is invalid; this does not happen.
    #[error(transparent)]
    Name(#[from] NqnError),
    /// The page changed during every read.
    #[error("the discovery log page changed each time that it was read; try again")]
    Unsettled,
}

/// Reads the discovery log of the controller behind `connector`; of `options` only host, digests
/// and timeouts are used.
///
/// # Errors
/// [`DiscoverError`].
pub async fn discover(
    connector: Arc<dyn Connector>,
    options: Options,
) -> Result<Vec<DiscoveryEntry>, DiscoverError> {
    let options = options.for_discovery(Nqn::new(DISCOVERY_NQN)?);
    let controller = Controller::connect(connector, options).await?;
    let entries = read_page(&controller).await;
    controller.close().await;
    entries
}

async fn read_page(controller: &Controller) -> Result<Vec<DiscoveryEntry>, DiscoverError> {
    for _ in 0..ATTEMPTS_MAX {
        let header = log_page(controller, 0, RECORD_BYTES).await?;
        let header = DiscoveryHeader::parse(&header)?;
        // The limit of entries in the header's parser keeps this small.
        let bytes = RECORD_BYTES * (1 + header.entries as usize);
        let mut page = Vec::with_capacity(bytes);
        while page.len() < bytes {
            let count = CHUNK_BYTES.min(bytes - page.len());
            page.extend(log_page(controller, page.len() as u64, count).await?);
        }
        let after = log_page(controller, 0, RECORD_BYTES).await?;
        let after = DiscoveryHeader::parse(&after)?;
        let (read, entries) = parse_page(&page)?;
        if after.generation == header.generation && read.generation == header.generation {
            return Ok(entries);
        }
    }
    Err(DiscoverError::Unsettled)
}

/// A part of the page (NVMe Base §5.16): lengths in dwords, zero-based.
async fn log_page(
    controller: &Controller,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>, DeviceError> {
    let dwords = (bytes / 4 - 1) as u32;
    let command = Command::build(AdminOpcode::GetLogPage as u8, 0, 0)
        .with_dword(10, u32::from(LOG_DISCOVERY) | (dwords & 0xffff) << 16)
        .with_dword(11, dwords >> 16)
        .with_dword(12, offset as u32)
        .with_dword(13, (offset >> 32) as u32);
    controller.admin(command, Payload::In(vec![0; bytes])).await
}
