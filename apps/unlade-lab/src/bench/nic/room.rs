//! Two network namespaces with an engine between them.

use anyhow::{Context, Result};
use std::net::IpAddr;
use unlade_command::namespace::inside;
use unlade_command::tools::run;
use unlade_nic_inline::device::Device;
use unlade_nic_inline::device::thread::{Running, SPIN, Setup, Wire, start};
use unlade_sys::link::Mac;
use unlade_sys::vnet::VnetTap;

/// Names of the two TAP devices.
const HOST_TAP: &str = "unlh";
const PEER_TAP: &str = "unlp";
/// The peer's address; the host's is the one before.
pub const PEER_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));
/// Frames that the kernel keeps for a TAP device before it drops.
const QUEUE_PACKETS: u32 = 10_000;
const MTU_BYTES: u32 = 1500;

/// The namespaces: the host's and the peer's; removed when dropped.
pub struct Room {
    names: Vec<String>,
}

impl Room {
    /// Makes them.
    ///
    /// # Errors
    /// They cannot be made: this needs root, and iproute2.
    pub fn new() -> Result<Room> {
        let mut room = Room { names: Vec::new() };
        for end in ["h", "p"] {
            let name = format!("unlade-nic-{}-{end}", std::process::id());
            run("ip", &["netns", "add", &name]).context("a network namespace")?;
            room.names.push(name);
        }
        // Whether there are TAP devices here.
        inside(room.host(), || tap(HOST_TAP, 1))?;
        Ok(room)
    }

    /// The host's namespace.
    pub fn host(&self) -> &str {
        &self.names[0]
    }

    /// The peer's.
    pub fn peer(&self) -> &str {
        &self.names[1]
    }

    /// Starts an engine between the two, on `core`. Its wire takes large segments, or frames.
    ///
    /// # Errors
    /// The TAP devices cannot be made, or there is no thread.
    pub fn start(&self, device: &Device, large: bool, core: Option<usize>) -> Result<Running> {
        let host = inside(self.host(), || tap(HOST_TAP, 1))?;
        let peer = inside(self.peer(), || tap(PEER_TAP, 2))?;
        peer.set_offloads(large).context("offloads of a TAP device")?;
        for (name, address, tap) in
            [(self.host(), "10.9.0.1/24", HOST_TAP), (self.peer(), "10.9.0.2/24", PEER_TAP)]
        {
            run("ip", &["-n", name, "addr", "add", address, "dev", tap])?;
        }
        let setup = Setup {
            host,
            wire: Wire::Tap(peer),
            wire_is_large: large,
            impairment: None,
            capture: None,
            core,
            spin: SPIN,
            is_timed: true,
        };
        start(device.clone(), setup).context("the engine's thread")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for name in &self.names {
            // What is left says so in `ip netns`.
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

fn tap(name: &str, last: u8) -> Result<VnetTap> {
    let mac: Mac = [0x02, 0x75, 0, 0, 0, last];
    VnetTap::create(name, mac, QUEUE_PACKETS, MTU_BYTES).context("a TAP device")
}
