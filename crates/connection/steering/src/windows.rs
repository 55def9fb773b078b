//! Congestion windows of restored sockets: a sockops program sets them when connect(2) in repair
//! mode establishes the connection.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::programs::{CgroupAttachMode, SockOps};
use aya::{Ebpf, EbpfLoader};
use unlade_net::FlowKey;

use crate::error::SteerError;
use crate::load::{OBJECT, array_data, map_memory, program};
use crate::table::FlowMaps;

/// The program in bpf/steer.bpf.c.
const PROGRAM: &str = "restore_window";
/// Number of entries of the `windows` array, one for each client port.
const ENTRIES: usize = 65_536;

/// Restores congestion windows of this process's sockets until dropped.
#[derive(Debug)]
pub struct Windows {
    base: NonNull<AtomicU64>,
    /// Keeps program and link alive.
    _ebpf: Ebpf,
}

// SAFETY: all access to the mapping is through atomics, which any thread may use.
unsafe impl Send for Windows {}
// SAFETY: as above.
unsafe impl Sync for Windows {}

impl Windows {
    /// Loads the program and attaches it to this process's cgroup.
    ///
    /// # Errors
    /// [`SteerError`]; sockets then start from the kernel's initial window.
    pub fn open() -> Result<Windows, SteerError> {
        let cgroup: OwnedFd = unlade_sys::cgroup::open_own().map_err(SteerError::Cgroup)?;
        let mut ebpf = EbpfLoader::new()
            .map_max_entries(FlowMaps::IPV4, 1)
            .map_max_entries(FlowMaps::IPV6, 1)
            .map_max_entries("slots", 1)
            .load(OBJECT)?;
        let failed = |source| SteerError::Program { name: PROGRAM, source };
        let sockops: &mut SockOps = program(&mut ebpf, PROGRAM)?;
        sockops.load().map_err(failed)?;
        // A BPF link keeps other programs of the cgroup in every mode; the kernel accepts no flags.
        sockops.attach(cgroup, CgroupAttachMode::Single).map_err(failed)?;
        let data = array_data(&mut ebpf, "windows")?;
        let base = map_memory(&data, ENTRIES * size_of::<AtomicU64>())?;
        Ok(Windows { base: base.cast(), _ebpf: ebpf })
    }

    /// Registers the congestion window, in segments, for the next connect(2) to the flow's client.
    pub fn expect(&self, flow: &FlowKey, segments: u32) {
        let tail: [u8; 4] = match flow.client.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => {
                let o = ip.octets();
                [o[12], o[13], o[14], o[15]]
            }
        };
        // `struct window`: the address in the first four bytes, segments in the second.
        let mut raw = [0; 8];
        raw[..4].copy_from_slice(&tail);
        raw[4..].copy_from_slice(&segments.to_ne_bytes());
        // SAFETY: the array has an entry for every port number, each 8 bytes and aligned.
        let entry = unsafe { self.base.add(flow.client.port().into()).as_ref() };
        entry.store(u64::from_ne_bytes(raw), Ordering::Release);
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), ENTRIES * size_of::<AtomicU64>()) };
    }
}
