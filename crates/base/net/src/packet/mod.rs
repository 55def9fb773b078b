//! Ethernet, IPv4, IPv6 and TCP, in two levels: a *view* checks the lengths of a buffer once and
//! then reads fields from it ([`EthernetView`], [`Ipv4View`], [`Ipv6View`], [`TcpView`]); a *repr*
//! is the value of the fields, and can be written ([`EthernetRepr`], [`Ipv4Repr`], [`Ipv6Repr`],
//! [`TcpRepr`]).
//!
//! Steering uses two functions above both: [`classify`] returns the flow and the content of a
//! frame; [`Segment`] makes a frame of a flow.

mod checksum;
mod classify;
mod ethernet;
mod ipv4;
mod ipv6;
mod segment;
mod tcp;
#[cfg(test)]
mod tests;

pub use checksum::{
    checksum, checksum_of, pseudo_header_words, transport_checksum, transport_checksum_parts, words,
};
pub use classify::{Classified, classify, classify_ip};
pub use ethernet::{ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, EthernetRepr, EthernetView, VLAN_TAGS_MAX};
pub use ipv4::{Ipv4Repr, Ipv4View};
pub use ipv6::{EXTENSIONS_MAX, Ipv6Repr, Ipv6View};
pub use segment::{Direction, Segment};
pub use tcp::{TcpFlags, TcpOption, TcpOptions, TcpRepr, TcpView};

use thiserror::Error;

/// The protocol number of TCP in IP headers.
pub const PROTOCOL_TCP: u8 = 6;

/// The reason why bytes are not a valid packet, or why a packet cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The bytes end inside a header, or before the length that a header states.
    #[error("the packet ends inside {0}")]
    Truncated(&'static str),
    /// A header states a length that contradicts itself.
    #[error("{0} states a length that contradicts itself")]
    BadLength(&'static str),
    /// A header has a different version than the expected one.
    #[error("{0} has another version")]
    BadVersion(&'static str),
    /// A fragment, or an extension header that cannot be skipped.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// The payload does not fit into an IP packet.
    #[error("{bytes} bytes of payload do not fit into an IP packet")]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
    },
    /// The two addresses of a flow are of different families.
    #[error("the two addresses of a flow are of different families")]
    MixedFamilies,
}

/// Reads a big-endian field of a header whose length was checked; zero beyond its end.
fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}
