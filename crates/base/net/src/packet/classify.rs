//! Classification of a frame: its flow, and its content.

use std::net::{IpAddr, SocketAddr};

use super::{
    ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetView, Ipv4View, Ipv6View, PROTOCOL_TCP, TcpFlags,
    TcpView,
};
use crate::{FlowKey, SeqNumber};

/// A TCP segment from its receiver's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The flow; the sender of this segment is the client.
    pub flow: FlowKey,
    /// Control bits.
    pub flags: TcpFlags,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number; valid if ACK is set.
    pub ack: SeqNumber,
    /// Window, unscaled.
    pub window: u16,
    /// Offset of the payload from the start of the classified bytes.
    pub payload_at: usize,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl Classified {
    /// Bytes of sequence space that the segment occupies: its payload, SYN and FIN.
    pub fn sequence_bytes(&self) -> u32 {
        let counts = |flag| u32::from(self.flags.contains(flag));
        self.payload_bytes as u32 + counts(TcpFlags::SYN) + counts(TcpFlags::FIN)
    }
}

/// Parses an Ethernet frame that contains a TCP segment; returns `None` for any other frame,
/// fragments included.
pub fn classify(frame: &[u8]) -> Option<Classified> {
    let ethernet = EthernetView::new(frame).ok()?;
    match (ethernet.ether_type(), ethernet.payload().first()? >> 4) {
        (ETHER_TYPE_IPV4, 4) | (ETHER_TYPE_IPV6, 6) => {}
        _ => return None,
    }
    let mut found = classify_ip(ethernet.payload())?;
    found.payload_at += ethernet.header_bytes();
    Some(found)
}

/// Parses an IP packet that contains a TCP segment; `None` for any other, fragments included.
pub fn classify_ip(packet: &[u8]) -> Option<Classified> {
    match packet.first()? >> 4 {
        4 => {
            let ip = Ipv4View::new(packet).ok()?;
            let whole = ip.protocol() == PROTOCOL_TCP && !ip.is_fragment();
            let addresses = (ip.source().into(), ip.destination().into());
            whole.then(|| segment(addresses, ip.header_bytes(), ip.payload()))?
        }
        6 => {
            let ip = Ipv6View::new(packet).ok()?;
            let addresses = (ip.source().into(), ip.destination().into());
            (ip.protocol() == PROTOCOL_TCP)
                .then(|| segment(addresses, ip.header_bytes(), ip.payload()))?
        }
        _ => None,
    }
}

fn segment(addresses: (IpAddr, IpAddr), at: usize, bytes: &[u8]) -> Option<Classified> {
    let tcp = TcpView::new(bytes).ok()?;
    let client = SocketAddr::new(addresses.0, tcp.source_port());
    let service = SocketAddr::new(addresses.1, tcp.destination_port());
    Some(Classified {
        flow: FlowKey::new(client, service),
        flags: tcp.flags(),
        seq: tcp.seq(),
        ack: tcp.ack(),
        window: tcp.window(),
        payload_at: at + tcp.header_bytes(),
        payload_bytes: tcp.payload().len(),
    })
}
