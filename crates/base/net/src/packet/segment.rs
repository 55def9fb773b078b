//! Frames of a flow, made from values.

use std::net::IpAddr;

use super::{
    Classified, ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_TCP,
    PacketError, TcpFlags, TcpOptions, TcpRepr,
};
use crate::{FlowKey, SeqNumber};

/// Time to live, or hop limit, of generated packets.
const TTL: u8 = 64;

/// The end of a flow that a segment is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the service.
    ToService,
    /// From the service to the client.
    ToClient,
}

/// A TCP segment of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'p> {
    /// The flow.
    pub flow: FlowKey,
    /// The end that the segment is sent to.
    pub direction: Direction,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number; valid if ACK is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
    /// The payload.
    pub payload: &'p [u8],
}

impl Segment<'static> {
    /// A reset of the flow, at this sequence number.
    pub fn reset(flow: FlowKey, direction: Direction, seq: SeqNumber) -> Segment<'static> {
        Segment {
            flow,
            direction,
            seq,
            ack: SeqNumber(0),
            flags: TcpFlags::RST,
            window: 0,
            options: TcpOptions::default(),
            payload: &[],
        }
    }

    /// The reset that answers a segment of a connection that does not exist (RFC 9293 §3.10.7.1);
    /// none answers a reset.
    pub fn reset_answering(stray: &Classified) -> Option<Segment<'static>> {
        if stray.flags.contains(TcpFlags::RST) {
            return None;
        }
        let mut reset = Segment::reset(stray.flow, Direction::ToClient, stray.ack);
        if !stray.flags.contains(TcpFlags::ACK) {
            reset.seq = SeqNumber(0);
            reset.ack = stray.seq + stray.sequence_bytes();
            reset.flags = TcpFlags::RST | TcpFlags::ACK;
        }
        Some(reset)
    }
}

impl Segment<'_> {
    /// Writes the segment in an IP packet.
    ///
    /// # Errors
    /// The payload does not fit, or the flow's addresses are of different families.
    pub fn ip_packet(&self) -> Result<Vec<u8>, PacketError> {
        let mut out = Vec::new();
        self.emit_ip(&mut out)?;
        Ok(out)
    }

    /// Writes the segment in an Ethernet frame, without padding or check sequence.
    ///
    /// # Errors
    /// The payload does not fit, or the flow's addresses are of different families.
    pub fn ethernet_frame(
        &self,
        source: [u8; 6],
        destination: [u8; 6],
    ) -> Result<Vec<u8>, PacketError> {
        let ether_type = if self.flow.is_ipv6() { ETHER_TYPE_IPV6 } else { ETHER_TYPE_IPV4 };
        let mut out = Vec::new();
        EthernetRepr { destination, source, vlan: None, ether_type }.emit(&mut out);
        self.emit_ip(&mut out)?;
        Ok(out)
    }

    fn emit_ip(&self, out: &mut Vec<u8>) -> Result<(), PacketError> {
        let (from, to) = match self.direction {
            Direction::ToService => (self.flow.client, self.flow.service),
            Direction::ToClient => (self.flow.service, self.flow.client),
        };
        let tcp = TcpRepr {
            source_port: from.port(),
            destination_port: to.port(),
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options,
        };
        let payload_bytes = tcp.header_bytes() + self.payload.len();
        match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                ttl: TTL,
                tos: 0,
                ident: 0,
                // An atomic packet needs no identification (RFC 6864 §4.1).
                dont_fragment: true,
                payload_bytes,
            }
            .emit(out)?,
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Repr {
                source,
                destination,
                protocol: PROTOCOL_TCP,
                hop_limit: TTL,
                traffic_class: 0,
                flow_label: 0,
                payload_bytes,
            }
            .emit(out)?,
            _ => return Err(PacketError::MixedFamilies),
        }
        tcp.emit(from.ip(), to.ip(), self.payload, out);
        Ok(())
    }
}
