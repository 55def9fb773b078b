//! Probes of protocol offload. What is missing keeps a device from being used, never a protocol: its
//! messages are worked on in the host then.

use super::finding::{Finding, Outcome, Part};
use anyhow::{Context, Result, bail};
use unlade_aead::{Backend, Key};
use unlade_sys::packet::PacketPort;
use unlade_sys::vnet::VnetTap;

/// An unused hardware address: locally administered.
const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const MTU_BYTES: u32 = 1500;
/// Frames that the kernel keeps for the probe.
const QUEUE_FRAMES: u32 = 16;

/// Those that need no namespace.
pub fn all() -> Vec<Finding> {
    vec![
        finding("AES-GCM in pieces", pieces()),
        finding(
            "a core for the engine",
            core(std::thread::available_parallelism().map_or(1, usize::from)),
        ),
    ]
}

/// Finding of a probe.
pub fn finding(feature: &'static str, result: Result<String>) -> Finding {
    let (outcome, detail) = match result {
        Ok(detail) => (Outcome::Works, detail),
        Err(error) => (Outcome::FallsBack, format!("{error:#}")),
    };
    Finding { part: Part::ProtocolOffload, feature, outcome, detail }
}

/// Seals a record in two pieces, and looks whether that is what it is at once.
fn pieces() -> Result<String> {
    let backend = Backend::best();
    let key = Key::new(&[7; 16])?;
    let seal = |cuts: &[usize]| {
        let mut record = vec![1_u8; 4096];
        let mut at = key.begin(&[9; 12], b"header");
        let mut rest = record.as_mut_slice();
        for &bytes in cuts {
            let (piece, behind) = rest.split_at_mut(bytes);
            key.encrypt(&mut at, piece);
            rest = behind;
        }
        (key.tag(&at).0, record)
    };
    if seal(&[1448, 2648]) != seal(&[4096]) {
        bail!("pieces have another tag than the whole; do not use this machine for TLS");
    }
    match backend {
        Backend::Portable => bail!("no instructions for it here: slow, by portable code"),
        backend => Ok(format!("by {backend:?}")),
    }
}

fn core(count: usize) -> Result<String> {
    match count {
        0 | 1 => bail!("one core only: the engine takes its time from the host"),
        count => Ok(format!("{count}: the engine can have one while the host has another")),
    }
}

/// Makes the device of `unlade nic run`; within a namespace.
pub fn tap() -> Result<String> {
    let tap = VnetTap::create("unl-doctor", MAC, QUEUE_FRAMES, MTU_BYTES)
        .context("`unlade nic run` cannot be used")?;
    drop(tap);
    Ok("the kernel's TCP can leave segmentation and checksums to a device".to_owned())
}

/// Opens an interface as a wire; within a namespace.
pub fn packets() -> Result<String> {
    let tap = VnetTap::create("unl-doctor", MAC, QUEUE_FRAMES, MTU_BYTES)?;
    let link = tap.link().clone();
    PacketPort::open(link).context("`--wire packet:INTERFACE` cannot be used, `tap:` can")?;
    Ok("an interface can be the device's wire; for an IPv4 address of the device it needs \
        `sysctl -w net.ipv4.conf.INTERFACE.arp_ignore=1`"
        .to_owned())
}
