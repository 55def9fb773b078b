//! The headers before a flow's TCP headers.

use std::net::IpAddr;

use unlade_net::FlowKey;
use unlade_net::packet::{
    ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_TCP,
};

/// Bytes before the TCP header: Ethernet and IPv6.
pub(crate) const TEMPLATE_BYTES_MAX: usize = 54;
/// Time to live, or hop limit.
const TTL: u8 = 64;

/// The headers before a flow's TCP headers: Ethernet and IP, without lengths.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    pub(crate) raw: [u8; TEMPLATE_BYTES_MAX],
    pub(crate) bytes: usize,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

impl Template {
    /// Creates the template of a flow, whose name is that in received frames: the peer is the
    /// client. Returns `None` if its addresses are of two families.
    pub fn new(own: [u8; 6], peer: [u8; 6], name: &FlowKey) -> Option<Template> {
        let (source, destination) = (name.service.ip(), name.client.ip());
        let ether_type = if name.is_ipv6() { ETHER_TYPE_IPV6 } else { ETHER_TYPE_IPV4 };
        let mut headers = Vec::with_capacity(TEMPLATE_BYTES_MAX);
        EthernetRepr { destination: peer, source: own, vlan: None, ether_type }.emit(&mut headers);
        let made = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                ttl: TTL,
                tos: 0,
                ident: 0,
                dont_fragment: true,
                payload_bytes: 0,
            }
            .emit(&mut headers),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                hop_limit: TTL,
                traffic_class: 0,
                flow_label: 0,
                payload_bytes: 0,
            }
            .emit(&mut headers),
            _ => return None,
        };
        made.ok()?;
        let mut raw = [0; TEMPLATE_BYTES_MAX];
        raw[..headers.len()].copy_from_slice(&headers);
        Some(Template { raw, bytes: headers.len(), source, destination })
    }

    /// Bytes before the TCP header.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
