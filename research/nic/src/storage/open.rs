//! Set-up of a connection as a queue: ICReq and ICResp, then Connect (NVMe/TCP Transport
//! Specification 1.0 §3.4; NVM Express Base Specification 2.0 §6.3).

use unlade_nvme_wire::fabrics::{Connect, ConnectData};
use unlade_nvme_wire::pdu::InitRequest;
use unlade_nvme_wire::{Command, Digests, Nqn, Pdu};

use super::writer::TRANSFERS_MAX;

/// Requested alignment of received data, bytes.
const ALIGNMENT_BYTES: usize = 4;

/// Parameters of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Number of the queue; 0 is the admin queue.
    pub queue: u16,
    /// CNTLID of the controller that has the queue; for an admin queue usually
    /// [`CONTROLLER_DYNAMIC`](unlade_nvme_wire::fabrics::CONTROLLER_DYNAMIC).
    pub controller: u16,
    /// HOSTID.
    pub host_id: [u8; 16],
    /// HOSTNQN.
    pub host: Nqn,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// KATO of an admin queue; 0 disables it.
    pub keep_alive_ms: u32,
    /// Largest data in a capsule: the controller's value (IOCCSZ), or 8192 in an admin queue.
    /// Connect's data always is.
    pub in_capsule_bytes: u32,
}

/// The state of the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for ICResp.
    Initialising,
    /// Waiting for the answer to Connect.
    Connecting,
    /// Ready for commands; CNTLID.
    Ready(u16),
}

/// Builds ICReq.
pub fn request(digests: Digests) -> Pdu {
    Pdu::InitRequest(InitRequest {
        version: 0,
        alignment_bytes: ALIGNMENT_BYTES,
        digests,
        transfers_max: TRANSFERS_MAX,
    })
}

impl Opening {
    /// Builds Connect, for a queue with room for `depth` commands, and its data.
    pub fn connect(&self, depth: u16) -> (Command, Vec<u8>) {
        let connect = Connect {
            format: 0,
            queue: self.queue,
            // A ring of `n` entries holds `n - 1` commands.
            queue_size_zero_based: depth,
            attributes: 0,
            keep_alive_ms: self.keep_alive_ms,
        };
        let data = ConnectData {
            host_id: self.host_id,
            controller: self.controller,
            subsystem: self.subsystem.clone(),
            host: self.host.clone(),
        };
        (connect.command(0), data.encode())
    }
}
