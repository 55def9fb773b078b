//! Loads the programs into the kernel and attaches them to the link.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Array, Map, MapData};
use aya::programs::{Program, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode, tc};
use aya::{Ebpf, EbpfLoader};
use std::os::fd::{AsFd, AsRawFd};
use unlade_metrics::Meter;
use unlade_net::FlowKey;
use unlade_sys::link::Link;

use crate::counts::{Counters, ReportedPackets};
use crate::error::SteerError;
use crate::flow_entry::FlowEntry;
use crate::hold::{Hold, HoldLimits};
use crate::raw_entry::{Mac, RawFlowEntry, SharedArray};
use crate::table::{FlowMaps, Table};

/// The object that build.rs creates.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// The program that redirects frames before the kernel allocates an skb.
const LINK_XDP: &str = "link_xdp";

/// Kernel hook at which packets are redirected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// XDP if the driver supports it natively and the device is a physical one; otherwise only tc.
    #[default]
    Auto,
    /// Only tc.
    Tc,
    /// Native XDP, an error if the driver lacks it. tc handles the packets that XDP passes.
    Xdp,
}

/// Configuration of steering.
#[derive(Clone, Debug)]
pub struct SteeringConfig {
    /// Interface of client packets.
    pub interface: String,
    /// Maximum number of flows with an entry.
    pub flows_max: u32,
    /// Limits of held packets; without them, [`FlowEntry::hold`] must not be used.
    pub hold: Option<HoldLimits>,
    /// Kernel hook at which packets are redirected.
    pub hook: Hook,
}

/// Steering of one link; dropping the last reference detaches the programs.
#[derive(Debug)]
pub struct Steering {
    table: Arc<Table>,
    hold: Option<Hold>,
    link: Link,
    xdp: bool,
    counters: Counters,
    reported: ReportedPackets,
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
            .map_max_entries(FlowMaps::IPV4, config.flows_max)
            .map_max_entries(FlowMaps::IPV6, config.flows_max)
            .map_max_entries("slots", config.flows_max)
            .load(OBJECT)?;
        // Load before a map is taken from `ebpf`: until then the programs refer to maps by
        // descriptor.
        load_programs(&mut ebpf)?;
        let slots = map_slots(&mut ebpf, config.flows_max)?;
        let flows = flow_maps(&mut ebpf)?;
        let counts = Array::try_from(take(&mut ebpf, "counts")?).map_err(SteerError::Map)?;
        let table = Table::new(flows, slots, config.flows_max, link.index, link.mac);
        attach_classifier(&mut ebpf, "link_ingress", &link.name, TcAttachType::Ingress)?;
        if let Some(hold) = &hold {
            let device = hold.device_name();
            attach_classifier(&mut ebpf, "hold_ingress", device, TcAttachType::Ingress)?;
        }
        let xdp = attach_xdp(&mut ebpf, config.hook, &link.name)?;
        let table = Arc::new(table);
        if let Some(hold) = &hold {
            hold.start(Arc::clone(&table)).map_err(SteerError::Hold)?;
        }
        let (counters, reported) = (Counters::new(counts), ReportedPackets::default());
        Ok(Steering { table, hold, link, xdp, counters, reported, _ebpf: ebpf })
    }

    /// Returns the steered link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns true if packets are redirected at XDP.
    pub fn is_xdp(&self) -> bool {
        self.xdp
    }

    /// Allocates an entry for a flow. Its packets go to the local stack until the state changes.
    ///
    /// # Errors
    /// [`SteerError::TableFull`], [`SteerError::Map`].
    pub fn acquire(&self, flow: &FlowKey) -> Result<FlowEntry, SteerError> {
        let index = self.table.acquire(flow)?;
        Ok(FlowEntry::new(Arc::clone(&self.table), index, *flow))
    }

    /// Returns the number of flows with an entry.
    pub fn flows_in_use(&self) -> usize {
        self.table.in_use()
    }

    /// Forwards the waiting frames of a flow that has an owner again (state `Local` or `Redirect`),
    /// in order. Returns the number of forwarded frames.
    pub fn replay(&self, entry: &FlowEntry) -> u32 {
        match &self.hold {
            Some(hold) if entry.waiting() > 0 => hold.replay(entry, &self.table),
            _ => 0,
        }
    }

    /// Redirects a held flow to another host: first the frames with data that the old owner
    /// received late, then the waiting ones, then new packets.
    pub fn redirect(&self, entry: &FlowEntry, owner: Mac, late: &[Vec<u8>]) {
        match &self.hold {
            Some(hold) if !late.is_empty() || entry.waiting() > 0 => {
                hold.redirect(entry, owner, late, &self.table);
            }
            _ => {
                entry.redirect(owner);
                // A packet may have arrived just before.
                self.replay(entry);
            }
        }
    }

    /// Returns the packets and bytes redirected for flows whose entries were released.
    fn redirected(&self) -> (u64, u64) {
        let redirected = self.table.redirected();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&redirected.packets), load(&redirected.bytes))
    }

    /// Adds the events that the programs counted since the last call to a meter.
    pub fn report_counts(&self, meter: &Meter) {
        // If the kernel refuses access, the next call reports them.
        if let Ok(counts) = self.counters.take() {
            counts.add_to(meter);
        }
    }

    /// Adds the packets that were held or redirected since the last call to a meter.
    pub fn report_packets(&self, meter: &Meter) {
        self.reported.add_to(meter, &self.hold_counters(), self.redirected());
    }

    /// Returns the counters of the hold.
    pub fn hold_counters(&self) -> crate::hold::HoldCounters {
        self.hold.as_ref().map(Hold::counters).unwrap_or_default()
    }
}

pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, SteerError> {
    ebpf.take_map(name).ok_or(SteerError::Missing(name))
}

/// Takes the maps of flows out of a loaded object.
pub(crate) fn flow_maps(ebpf: &mut Ebpf) -> Result<FlowMaps, SteerError> {
    let (ipv4, ipv6) = (take(ebpf, FlowMaps::IPV4)?, take(ebpf, FlowMaps::IPV6)?);
    FlowMaps::new(ipv4, ipv6).map_err(SteerError::Map)
}

/// Returns a program of the object as its type.
pub(crate) fn program<'a, P>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut P, SteerError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(SteerError::Missing(name))?;
    program.try_into().map_err(|source| SteerError::Program { name, source })
}

pub(crate) fn load_programs(ebpf: &mut Ebpf) -> Result<(), SteerError> {
    for name in ["link_ingress", "hold_ingress"] {
        let classifier: &mut SchedClassifier = program(ebpf, name)?;
        classifier.load().map_err(|source| SteerError::Program { name, source })?;
    }
    let xdp: &mut Xdp = program(ebpf, LINK_XDP)?;
    xdp.load().map_err(|source| SteerError::Program { name: LINK_XDP, source })?;
    Ok(())
}

pub(crate) fn attach_classifier(
    ebpf: &mut Ebpf,
    name: &'static str,
    interface: &str,
    place: TcAttachType,
) -> Result<(), SteerError> {
    let failed = |source| SteerError::Program { name, source };
    let program: &mut SchedClassifier = program(ebpf, name)?;
    // Kernels before Linux 6.6 have no tcx links and need a clsact qdisc.
    let _ = tc::qdisc_add_clsact(interface);
    program.attach(interface, place).map_err(failed)?;
    Ok(())
}

/// Attaches the XDP program if configured and possible. Returns true if it is attached.
fn attach_xdp(ebpf: &mut Ebpf, hook: Hook, interface: &str) -> Result<bool, SteerError> {
    // Native XDP disables large segments on a virtual link, so only a physical device benefits.
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

/// Maps `bytes` bytes of a map's memory into this process.
pub(crate) fn map_memory(data: &MapData, bytes: usize) -> Result<NonNull<u8>, SteerError> {
    let fd = data.fd().as_fd().as_raw_fd();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: this creates a new shared mapping at an address that the kernel chooses; `fd` is a
    // map created with BPF_F_MMAPABLE, and the kernel checks the length.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(SteerError::Mmap(io::Error::last_os_error()));
    }
    NonNull::new(base.cast()).ok_or_else(|| SteerError::Mmap(io::Error::other("mapped at zero")))
}

pub(crate) fn array_data(ebpf: &mut Ebpf, name: &'static str) -> Result<MapData, SteerError> {
    match take(ebpf, name)? {
        Map::Array(data) => Ok(data),
        _ => Err(SteerError::Missing(name)),
    }
}

pub(crate) fn map_slots(
    ebpf: &mut Ebpf,
    count: u32,
) -> Result<SharedArray<RawFlowEntry>, SteerError> {
    // SAFETY: `RawFlowEntry` is `struct flow_entry` of the array, all of atomic integers.
    unsafe { map_array(ebpf, "slots", count) }
}

/// Maps an array of the object.
///
/// # Safety
/// `T` has the layout of the array's values, and consists of atomics of which every value is valid.
pub(crate) unsafe fn map_array<T>(
    ebpf: &mut Ebpf,
    name: &'static str,
    count: u32,
) -> Result<SharedArray<T>, SteerError> {
    let data = array_data(ebpf, name)?;
    let bytes = count as usize * size_of::<T>();
    let base = map_memory(&data, bytes)?;
    // SAFETY: `map_memory` created a shared writable mapping of `bytes` bytes, whose ownership
    // moves here. The kernel keeps the map's memory as long as the mapping, so `data` may be
    // dropped. The caller promises the rest.
    Ok(unsafe { SharedArray::new(base, bytes, count) })
}
