//! The error of steering.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use thiserror::Error;

/// Error of steering.
#[derive(Debug, Error)]
pub enum SteerError {
    /// The interface does not exist.
    #[error("steering needs a network interface: {0}")]
    Link(#[source] io::Error),
    /// The kernel refuses the programs.
    #[error("the kernel refuses the eBPF object: {0}; CAP_BPF and CAP_NET_ADMIN are needed")]
    Load(#[from] EbpfError),
    /// A program does not load or attach.
    #[error("eBPF program {name}: {source}")]
    Program {
        /// Its name in bpf/steer.bpf.c.
        name: &'static str,
        /// The kernel's error.
        source: ProgramError,
    },
    /// The object lacks a map or program because it was not built from this source.
    #[error("the eBPF object has no {0}")]
    Missing(&'static str),
    /// A map operation failed.
    #[error("flow table: {0}")]
    Map(#[source] MapError),
    /// All entries of the flow table are in use (`flows_max`).
    #[error("the flow table is full; raise `offload.flows_max` or give connections back earlier")]
    TableFull,
    /// The hold device cannot be created.
    #[error("hold device: {0}; /dev/net/tun and CAP_NET_ADMIN are needed")]
    Hold(#[source] io::Error),
    /// The cgroup for the congestion window program is not available.
    #[error("cgroup: {0}")]
    Cgroup(#[source] io::Error),
    /// Sharing memory with the programs failed.
    #[error("mapping the flow table: {0}")]
    Mmap(#[source] io::Error),
}
