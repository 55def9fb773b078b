//! The TAP device for the host's TCP, its addresses and routes, and the wire.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thiserror::Error;
use unlade_sys::link::{Link, Mac};
use unlade_sys::packet::PacketPort;
use unlade_sys::vnet::VnetTap;

use super::config::{Config, ConfigError, WireName};
use crate::capture::{Capture, FILE_BYTES_MAX};
use crate::device::Device;
use crate::device::attached::Attached;
use crate::device::thread::{self, QUEUE_FRAMES, Running, SPIN, Setup, Wire};

/// An error while a device is set up.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel refuses the device.
    #[error("device {name}: {error}; /dev/net/tun and CAP_NET_ADMIN are needed, and a free name")]
    Tap {
        /// Name of the device.
        name: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The interface cannot be opened.
    #[error("interface {name}: {error}; CAP_NET_RAW is needed")]
    Packet {
        /// Name of the interface.
        name: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The interface would receive traffic for the TAP device.
    #[error(
        "interface {name} answers ARP for the addresses of {tap} (arp_ignore is 0), so peers would \
         send past the device; run `{}`",
        arp_command(name)
    )]
    Arp {
        /// Name of the interface.
        name: String,
        /// The TAP device.
        tap: String,
    },
    /// The namespace cannot be entered.
    #[error("network namespace {name}: {error}; `ip netns add {name}` makes it")]
    Namespace {
        /// Name of the namespace.
        name: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The capture file cannot be written.
    #[error("pcap {}: {error}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The engine's thread cannot be started.
    #[error("the engine cannot start: {0}; see the process and thread limits")]
    Engine(io::Error),
    /// No wire is configured.
    #[error("the device needs a wire: say where its frames go")]
    NoWire,
    /// The address or route is not accepted.
    #[error("`ip {arguments}`: {said}")]
    Ip {
        /// Arguments of the command.
        arguments: String,
        /// Output of the command.
        said: String,
    },
}

/// A locally administered hardware address that contains the id of this process.
fn mac(last: u8) -> Mac {
    let [.., high, middle, low] = std::process::id().to_be_bytes();
    [0x02, 0x75, high, middle, low, last]
}

/// Creates the devices, and starts the engine, if there is a wire.
///
/// # Errors
/// [`DeviceError`].
pub fn start(config: &Config, device: &Device) -> Result<Option<Running>, DeviceError> {
    let Some(wire) = config.wire()? else { return Ok(None) };
    let setup = make(config, &wire)?;
    address(config)?;
    tracing::info!(tap = config.tap, wire = config.wire, "device");
    thread::start(device.clone(), setup).map(Some).map_err(DeviceError::Engine)
}

/// As [`start`], for another runtime's connections: returns the device in that runtime's
/// interface, and the engine, which ends when dropped.
///
/// # Errors
/// [`DeviceError`]; without a wire there is no device.
pub fn attach(config: &Config) -> Result<(Attached, Running), DeviceError> {
    config.check_device()?;
    let device = Device::new().map_err(DeviceError::Engine)?;
    let running = start(config, &device)?.ok_or(DeviceError::NoWire)?;
    Ok((Attached::new(device, &config.tap), running))
}

/// Creates the devices of `wire` and `config`.
///
/// # Errors
/// [`DeviceError`].
pub fn make(config: &Config, wire: &WireName) -> Result<Setup, DeviceError> {
    let impairment = config.impairment()?;
    let tap = |name: &str, last| {
        VnetTap::create(name, mac(last), QUEUE_FRAMES, config.mtu_bytes)
            .map_err(|error| DeviceError::Tap { name: name.to_owned(), error })
    };
    let host = tap(&config.tap, 1)?;
    // Impaired or captured frames have the form of frames on a real wire.
    let plain = impairment.is_none() && config.pcap.is_none();
    let wire_is_large = matches!(wire, WireName::Tap { .. }) && plain;
    let wire = match wire {
        WireName::Packet(name) => {
            let failed = |error| DeviceError::Packet { name: name.clone(), error };
            let link = Link::by_name(name).map_err(failed)?;
            if !link.is_up().map_err(failed)? {
                tracing::warn!("interface {name} is down: run `ip link set {name} up`");
            }
            check_arp(name, config)?;
            Wire::Packet(PacketPort::open(link).map_err(failed)?)
        }
        WireName::Tap { name, namespace } => {
            let made = match namespace {
                None => tap(name, 2)?,
                Some(namespace) => inside(namespace, || tap(name, 2))??,
            };
            let failed = |error| DeviceError::Tap { name: name.clone(), error };
            made.set_offloads(wire_is_large).map_err(failed)?;
            Wire::Tap(made)
        }
    };
    let capture = config.pcap.as_ref().map(|path| {
        let failed = |error| DeviceError::Capture { path: path.clone(), error };
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        Capture::new(file, FILE_BYTES_MAX).map_err(failed)
    });
    let (capture, core) = (capture.transpose()?, config.engine_core);
    // On a processor of its own the thread may poll.
    let spin = if core.is_some() { SPIN } else { Duration::ZERO };
    Ok(Setup { host, wire, wire_is_large, impairment, capture, core, spin, is_timed: false })
}

/// The host may answer ARP for an address of the TAP device on that device only; with Linux's
/// defaults it answers on every interface.
fn check_arp(name: &str, config: &Config) -> Result<(), DeviceError> {
    // The larger of the two values counts (ip-sysctl: arp_ignore).
    let value = ["all", name].into_iter().filter_map(|scope| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{scope}/arp_ignore"));
        text.ok()?.trim().parse::<u32>().ok()
    });
    // Without the file there is no IPv4, and so no answers.
    if value.max().is_none_or(|value| value != 0) {
        return Ok(());
    }
    let tap = config.tap.clone();
    if config.addresses.iter().any(|address| !address.contains(':')) {
        return Err(DeviceError::Arp { name: name.to_owned(), tap });
    }
    if config.addresses.is_empty() {
        let command = arp_command(name);
        tracing::warn!("before {tap} gets an IPv4 address of its own, run `{command}`");
    }
    Ok(())
}

/// The command that makes an interface answer ARP for its own addresses only.
fn arp_command(name: &str) -> String {
    // A dot would separate parts of the setting's name.
    match name.contains('.') {
        false => format!("sysctl -w net.ipv4.conf.{name}.arp_ignore=1"),
        true => format!("sysctl -w net/ipv4/conf/{name}/arp_ignore=1"),
    }
}

/// Sets the addresses and routes of the TAP device.
///
/// # Errors
/// [`DeviceError::Ip`].
pub fn address(config: &Config) -> Result<(), DeviceError> {
    let tap = config.tap.as_str();
    for address in &config.addresses {
        let mut arguments = vec!["addr", "add", address, "dev", tap];
        if address.contains(':') {
            arguments.push("nodad");
        }
        ip(&arguments)?;
    }
    for route in &config.routes {
        match route.split_once('@') {
            None => ip(&["route", "add", route, "dev", tap])?,
            Some((network, gateway)) => {
                ip(&["route", "add", network, "via", gateway, "dev", tap])?;
            }
        }
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<(), DeviceError> {
    let failed = |said: String| DeviceError::Ip { arguments: arguments.join(" "), said };
    match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())),
        Err(error) => Err(failed(format!("{error}; install iproute2"))),
    }
}

/// Runs `make` in a named network namespace, on a separate thread.
fn inside<T: Send>(name: &str, make: impl FnOnce() -> T + Send) -> Result<T, DeviceError> {
    let failed = |error| DeviceError::Namespace { name: name.to_owned(), error };
    let file = File::open(format!("/run/netns/{name}")).map_err(failed)?;
    let made = std::thread::scope(|scope| {
        let enter = move || -> io::Result<T> {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(make())
        };
        scope.spawn(enter).join()
    });
    made.unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))).map_err(failed)
}
