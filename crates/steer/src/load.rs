//! Programs into the kernel and onto the link.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{HashMap, Map, MapData, MapError};
use aya::programs::{
    CgroupAttachMode, Program, ProgramError, SchedClassifier, SockOps, TcAttachType, Xdp, XdpMode, tc,
};
use aya::{Ebpf, EbpfError, EbpfLoader};
use linux::link::Link;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use thiserror::Error;
use wire::FlowKey;

use crate::hold::{Hold, HoldLimits};
use crate::slot::{Slot, SlotArray};
use crate::table::Table;

/// The object made by build.rs.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// The program that redirects before the kernel makes a packet of a frame.
const LINK_XDP: &str = "link_xdp";
/// The program that restores congestion windows.
const RESTORE_WINDOW: &str = "restore_window";
/// Entries of the `windows` array: one a client port.
const WINDOW_ENTRIES: usize = 65_536;

/// Why steering is not available, or a flow not steered.
#[derive(Debug, Error)]
pub enum SteerError {
    /// The interface is not there.
    #[error("steering needs a network interface: {0}")]
    Link(#[source] io::Error),
    /// The kernel does not take the programs.
    #[error("the kernel refuses the eBPF object: {0}; CAP_BPF and CAP_NET_ADMIN are needed")]
    Load(#[from] EbpfError),
    /// A program does not load or attach.
    #[error("eBPF program {name}: {source}")]
    Program {
        /// Its name in bpf/steer.bpf.c.
        name: &'static str,
        /// The kernel's answer.
        source: ProgramError,
    },
    /// The object lacks a map or program: it was not built from this source.
    #[error("the eBPF object has no {0}")]
    Missing(&'static str),
    /// A map operation failed.
    #[error("flow table: {0}")]
    Map(#[source] MapError),
    /// As many flows are steered as the table has slots (`flows_max`).
    #[error("the flow table is full; raise `flows_max` or give connections back earlier")]
    TableFull,
    /// The hold device could not be made.
    #[error("hold device: {0}; /dev/net/tun and CAP_NET_ADMIN are needed")]
    Hold(#[source] io::Error),
    /// Sharing memory with the programs failed.
    #[error("mapping the flow table: {0}")]
    Mmap(#[source] io::Error),
}

/// Where in the kernel packets are redirected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// At XDP where the driver runs it natively and the device is a real one; else at tc alone.
    #[default]
    Auto,
    /// At tc.
    Tc,
    /// At XDP, natively; an error where the driver cannot. tc takes what XDP leaves.
    Xdp,
}

/// What to steer, and how much of it.
#[derive(Clone, Debug)]
pub struct SteeringConfig {
    /// The interface that client packets come in on.
    pub interface: String,
    /// Most flows that have an entry at once.
    pub flows_max: u32,
    /// Holding of packets; without it, [`Slot::hold`] must not be used.
    pub hold: Option<HoldLimits>,
    /// Where in the kernel packets are redirected.
    pub hook: Hook,
    /// The cgroup v2 directory for the program that restores congestion windows.
    pub cgroup: Option<PathBuf>,
}

/// Steering of one link; everything is undone when the last owner drops it.
#[derive(Debug)]
pub struct Steering {
    table: Arc<Table>,
    hold: Option<Hold>,
    windows: Option<Windows>,
    link: Link,
    xdp: bool,
    /// Keeps programs and links alive.
    _ebpf: Ebpf,
}

impl Steering {
    /// Loads the programs and attaches them to the link.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(config: &SteeringConfig) -> Result<Steering, SteerError> {
        let link = Link::by_name(&config.interface).map_err(SteerError::Link)?;
        let hold = config.hold.as_ref().map(|limits| Hold::open(limits, &link)).transpose()?;
        let hold_index = hold.as_ref().map_or(0, Hold::device_index);
        let mut ebpf = EbpfLoader::new()
            .override_global("hold_ifindex", &hold_index, true)
            .map_max_entries("flows", config.flows_max)
            .map_max_entries("slots", config.flows_max)
            .load(OBJECT)?;
        // Before a map leaves `ebpf`: the programs refer to maps by descriptor until they load.
        load_programs(&mut ebpf)?;
        let slots = map_slots(&mut ebpf, config.flows_max)?;
        let flows = HashMap::try_from(take(&mut ebpf, "flows")?).map_err(SteerError::Map)?;
        let table = Table::new(flows, slots, config.flows_max, link.index, link.mac);
        attach_classifier(&mut ebpf, "link_ingress", &link.name)?;
        if let Some(hold) = &hold {
            attach_classifier(&mut ebpf, "hold_ingress", hold.device_name())?;
        }
        let xdp = attach_xdp(&mut ebpf, config.hook, &link.name)?;
        let windows = match &config.cgroup {
            Some(cgroup) => Some(attach_windows(&mut ebpf, cgroup)?),
            None => None,
        };
        let table = Arc::new(table);
        if let Some(hold) = &hold {
            hold.start(Arc::clone(&table)).map_err(SteerError::Hold)?;
        }
        Ok(Steering { table, hold, windows, link, xdp, _ebpf: ebpf })
    }

    /// The link that is steered.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// True where packets are redirected at XDP.
    pub fn is_xdp(&self) -> bool {
        self.xdp
    }

    /// Takes a slot for a flow; its packets go to the local stack until it says otherwise.
    ///
    /// # Errors
    /// [`SteerError::TableFull`], [`SteerError::Map`].
    pub fn acquire(&self, flow: &FlowKey) -> Result<Slot, SteerError> {
        let index = self.table.acquire(flow)?;
        Ok(Slot::new(Arc::clone(&self.table), index, *flow))
    }

    /// Flows that have a slot.
    pub fn flows_in_use(&self) -> usize {
        self.table.in_use()
    }

    /// Sends what waits for a flow that has an owner again (state `Local` or `Redirect`) on its
    /// way, in order. Returns how many frames went.
    pub fn replay(&self, slot: &Slot) -> u32 {
        match &self.hold {
            Some(hold) if slot.waiting() > 0 => hold.replay(slot, &self.table),
            _ => 0,
        }
    }

    /// The hold's counters.
    pub fn hold_counters(&self) -> crate::hold::HoldCounters {
        self.hold.as_ref().map(Hold::counters).unwrap_or_default()
    }

    /// Announces that the next connect(2) to the flow's client restores a congestion window of so
    /// many segments. Does nothing where no cgroup was given.
    pub fn expect_window(&self, flow: &FlowKey, segments: u32) {
        if let Some(windows) = &self.windows {
            windows.expect(flow, segments);
        }
    }
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, SteerError> {
    ebpf.take_map(name).ok_or(SteerError::Missing(name))
}

/// A program of the object, as the kind that it is.
fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, SteerError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(SteerError::Missing(name))?;
    program.try_into().map_err(|source| SteerError::Program { name, source })
}

fn load_programs(ebpf: &mut Ebpf) -> Result<(), SteerError> {
    for name in ["link_ingress", "hold_ingress"] {
        let classifier: &mut SchedClassifier = program(ebpf, name)?;
        classifier.load().map_err(|source| SteerError::Program { name, source })?;
    }
    let xdp: &mut Xdp = program(ebpf, LINK_XDP)?;
    xdp.load().map_err(|source| SteerError::Program { name: LINK_XDP, source })?;
    let sockops: &mut SockOps = program(ebpf, RESTORE_WINDOW)?;
    sockops.load().map_err(|source| SteerError::Program { name: RESTORE_WINDOW, source })
}

fn attach_classifier(
    ebpf: &mut Ebpf,
    name: &'static str,
    interface: &str,
) -> Result<(), SteerError> {
    let failed = |source| SteerError::Program { name, source };
    let program: &mut SchedClassifier = program(ebpf, name)?;
    // tcx links exist from Linux 6.6 on; before that a clsact qdisc carries the program.
    let _ = tc::qdisc_add_clsact(interface);
    program.attach(interface, TcAttachType::Ingress).map_err(failed)?;
    Ok(())
}

/// Attaches the XDP program where wanted and possible. True where it is attached.
fn attach_xdp(ebpf: &mut Ebpf, hook: Hook, interface: &str) -> Result<bool, SteerError> {
    // A virtual link's native XDP costs it its large segments: only a real device gains.
    let device = format!("/sys/class/net/{interface}/device");
    let wanted = match hook {
        Hook::Tc => false,
        Hook::Xdp => true,
        Hook::Auto => std::path::Path::new(&device).exists(),
    };
    if !wanted {
        return Ok(false);
    }
    let failed = |source| SteerError::Program { name: LINK_XDP, source };
    let program: &mut Xdp = program(ebpf, LINK_XDP)?;
    match program.attach(interface, XdpMode::Driver) {
        Ok(_) => Ok(true),
        Err(_) if hook == Hook::Auto => Ok(false),
        Err(source) => Err(failed(source)),
    }
}

/// Maps a map's memory into this process. Octets, and their number.
fn map_memory(data: &MapData, bytes: usize) -> Result<NonNull<u8>, SteerError> {
    let fd = data.fd().as_fd().as_raw_fd();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping at an address of the kernel's choice; `fd` is a map made
    // with BPF_F_MMAPABLE, and the kernel checks the length.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(SteerError::Mmap(io::Error::last_os_error()));
    }
    NonNull::new(base.cast()).ok_or_else(|| SteerError::Mmap(io::Error::other("mapped at zero")))
}

fn array_data(ebpf: &mut Ebpf, name: &'static str) -> Result<MapData, SteerError> {
    match take(ebpf, name)? {
        Map::Array(data) => Ok(data),
        _ => Err(SteerError::Missing(name)),
    }
}

fn map_slots(ebpf: &mut Ebpf, count: u32) -> Result<SlotArray, SteerError> {
    let data = array_data(ebpf, "slots")?;
    let bytes = count as usize * size_of::<crate::slot::RawSlot>();
    let base = map_memory(&data, bytes)?;
    // SAFETY: `map_memory` made a shared writable mapping of `bytes` octets that is handed over
    // here. The kernel keeps the map's memory as long as the mapping, so `data` may be dropped.
    Ok(unsafe { SlotArray::new(base, bytes, count) })
}

/// The shared array of congestion windows (`struct window` of bpf/maps.h).
#[derive(Debug)]
struct Windows {
    base: NonNull<AtomicU64>,
}

// SAFETY: the mapping is only reached through atomics, from any thread.
unsafe impl Send for Windows {}
// SAFETY: as above.
unsafe impl Sync for Windows {}

impl Windows {
    fn expect(&self, flow: &FlowKey, segments: u32) {
        let tail: [u8; 4] = match flow.client.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(ip) => {
                let o = ip.octets();
                [o[12], o[13], o[14], o[15]]
            }
        };
        // address in the first four octets, segments in the second, as the struct has them.
        let mut raw = [0; 8];
        raw[..4].copy_from_slice(&tail);
        raw[4..].copy_from_slice(&segments.to_ne_bytes());
        // SAFETY: the array has an entry for every port number, each 8 octets and aligned.
        let entry = unsafe { self.base.add(flow.client.port().into()).as_ref() };
        entry.store(u64::from_ne_bytes(raw), Ordering::Release);
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), WINDOW_ENTRIES * 8) };
    }
}

fn attach_windows(ebpf: &mut Ebpf, cgroup: &PathBuf) -> Result<Windows, SteerError> {
    let failed = |source| SteerError::Program { name: RESTORE_WINDOW, source };
    let directory = File::open(cgroup).map_err(|error| failed(ProgramError::IOError(error)))?;
    let program: &mut SockOps = program(ebpf, RESTORE_WINDOW)?;
    program.attach(directory, CgroupAttachMode::AllowMultiple).map_err(failed)?;
    let data = array_data(ebpf, "windows")?;
    let base = map_memory(&data, WINDOW_ENTRIES * 8)?;
    Ok(Windows { base: base.cast() })
}

/// The cgroup v2 directory of this process, where it can be found.
pub fn own_cgroup() -> Option<PathBuf> {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })?;
    Some(mount.join(own))
}
