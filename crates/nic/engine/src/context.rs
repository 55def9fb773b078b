//! The state that a device keeps of a flow in each direction, and its size limit.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use unlade_net::FlowKey;

use crate::rx::Rx;
use crate::tx::Tx;
use crate::{composed, nvme, tls};

/// Maximum size of the dynamic state of a flow, its tuple included (§6.5 of the paper).
pub const CONTEXT_BYTES_MAX: usize = 208;

/// A TCP connection's addresses and ports in 36 bytes; IPv4 addresses are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    addresses: [[u8; 16]; 2],
    ports: [u16; 2],
}

impl From<&FlowKey> for Tuple {
    fn from(flow: &FlowKey) -> Tuple {
        let bytes = |address: SocketAddr| match address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => Ipv6Addr::octets(&address),
        };
        let ends = [flow.client, flow.service];
        Tuple { addresses: ends.map(bytes), ports: ends.map(|end| end.port()) }
    }
}

/// The dynamic state `S` of a flow, [`Rx`] or [`Tx`], with the flow's tuple.
#[derive(Clone, Copy, Debug)]
pub struct Context<S> {
    /// The connection.
    pub flow: Tuple,
    /// The state of the machine.
    pub state: S,
}

const _: () = assert!(size_of::<Context<Rx<tls::Progress>>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<Tx<tls::Progress>>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<Rx<nvme::Progress>>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<Tx<nvme::Progress>>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<composed::rx::Inner>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<composed::tx::Inner>>() <= CONTEXT_BYTES_MAX);
const _: () = assert!(size_of::<Context<composed::tx::Outer>>() <= CONTEXT_BYTES_MAX);
