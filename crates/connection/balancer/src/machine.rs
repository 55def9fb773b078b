//! Resources of the machine for moving connections: steering on the listeners' link, congestion
//! windows, the journal.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use unlade_metrics::{Event, Meter};
use unlade_steering::splice::Splicing;
use unlade_steering::{HoldLimits, Hook, SteerError, Steering, SteeringConfig, Windows};
use unlade_sys::link::Link;

use crate::config::{self, BalancerConfig, OffloadMode};
use crate::journal::{self, Journal};

/// Resources of the machine for moving connections.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub steering: Arc<Steering>,
    /// Restores congestion windows, if the machine supports it.
    pub windows: Option<Arc<Windows>>,
    pub journal: Option<Arc<Journal>>,
}

impl Machine {
    /// Opens the steering if a route hands connections over. A machine that cannot steer proxies;
    /// the reason is logged once.
    pub(crate) fn open(config: &BalancerConfig, meter: &Meter) -> Option<Machine> {
        if config.routes.iter().all(|route| route.offload == OffloadMode::Off) {
            return None;
        }
        let offload = &config.offload;
        let interface = match &offload.interface {
            Some(name) => Ok(name.clone()),
            None => find_interface(config),
        };
        let opened = interface.map_err(SteerError::Link).and_then(|interface| {
            Steering::open(&SteeringConfig {
                interface,
                flows_max: offload.flows_max,
                hold: Some(HoldLimits {
                    device: format!("unlade-h{}", std::process::id() % 1_000_000),
                    flow_bytes_max: offload.hold_bytes_max.as_usize(),
                    bytes_max: offload.hold_bytes_max.as_usize(),
                    ..HoldLimits::default()
                }),
                hook: match offload.steering {
                    config::SteeringConfig::Auto => Hook::Auto,
                    config::SteeringConfig::Tc => Hook::Tc,
                    config::SteeringConfig::Xdp => Hook::Xdp,
                },
            })
        });
        match opened {
            Ok(steering) => {
                let (link, xdp) = (&steering.link().name, steering.is_xdp());
                tracing::info!(interface = link, xdp, "connections can be handed over");
                let windows = Windows::open().inspect_err(|error| {
                    tracing::warn!(%error, "connections that come home start from the initial window");
                });
                let journal = open_journal(config, link, meter);
                let (steering, windows) = (Arc::new(steering), windows.ok().map(Arc::new));
                Some(Machine { steering, windows, journal })
            }
            Err(error) => {
                tracing::error!(%error, "no connection is handed over; everything is proxied");
                None
            }
        }
    }
}

/// Opens the programs of direct return if a pool has it. Without them, responses are relayed; the
/// reason is logged once.
pub(crate) fn open_splicing(config: &BalancerConfig) -> Option<Arc<Splicing>> {
    if config.pools.values().all(|pool| pool.direct_return.is_none()) {
        return None;
    }
    let interface = match &config.offload.interface {
        Some(name) => Ok(name.clone()),
        None => find_interface(config),
    };
    let connections_max = config.offload.flows_max;
    let opened = interface
        .map_err(SteerError::Link)
        .and_then(|interface| Splicing::open(&interface, connections_max, connections_max));
    match opened {
        Ok(splicing) => Some(Arc::new(splicing)),
        Err(error) => {
            tracing::error!(%error, "no response is returned directly; everything is relayed");
            None
        }
    }
}

/// Opens the journal of connections that are away, and resets those that a killed process left in
/// it.
fn open_journal(config: &BalancerConfig, interface: &str, meter: &Meter) -> Option<Arc<Journal>> {
    let path = config.offload.journal.clone().unwrap_or_else(|| {
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino());
        PathBuf::from(format!("/run/unlade/lb-{interface}-{namespace}.journal"))
    });
    match Journal::open(&path, config.offload.flows_max) {
        Ok((journal, left)) => {
            for flow in left {
                tracing::warn!(%flow, "was away when the previous balancer was killed");
                match journal::probe(flow) {
                    Ok(()) => meter.add(Event::StaleFlowReset),
                    Err(error) => {
                        tracing::warn!(%flow, %error, "cannot probe its client, which may wait for its own timeout")
                    }
                }
            }
            Some(journal)
        }
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "no journal: if this process is killed, clients may wait; set `journal` in [offload]");
            None
        }
    }
}

/// Returns the interface that carries the first listener's address.
fn find_interface(config: &BalancerConfig) -> std::io::Result<String> {
    let mut addresses = config.listeners.iter().map(|listener| listener.address.ip());
    let specific = addresses.find(|ip| !ip.is_unspecified());
    match specific {
        Some(ip) => Link::by_address(ip).map(|link| link.name),
        None => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "every listener has a wildcard address; name `interface` in [offload]",
        )),
    }
}
