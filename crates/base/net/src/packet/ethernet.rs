//! Ethernet II, with 802.1Q tags tolerated.

use super::{PacketError, array, be16};

/// EtherType of IPv4.
pub const ETHER_TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHER_TYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad.
const ETHER_TYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Most VLAN tags that are skipped.
pub const VLAN_TAGS_MAX: usize = 2;
/// Two addresses.
const ADDRESSES_BYTES: usize = 12;

/// A buffer that contains an Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<T: AsRef<[u8]>> {
    buffer: T,
    /// Offset of the payload's EtherType.
    type_at: usize,
}

impl<T: AsRef<[u8]>> EthernetView<T> {
    /// Checks that `buffer` contains a header.
    ///
    /// # Errors
    /// It ends inside the header, or has more tags than [`VLAN_TAGS_MAX`].
    pub fn new(buffer: T) -> Result<EthernetView<T>, PacketError> {
        let bytes = buffer.as_ref();
        let mut type_at = ADDRESSES_BYTES;
        while ETHER_TYPES_VLAN.contains(&be16(bytes, type_at)) {
            type_at += 4;
            if type_at > ADDRESSES_BYTES + 4 * VLAN_TAGS_MAX {
                return Err(PacketError::Unsupported("a frame with many VLAN tags"));
            }
        }
        match bytes.len() >= type_at + 2 {
            true => Ok(EthernetView { buffer, type_at }),
            false => Err(PacketError::Truncated("the Ethernet header")),
        }
    }

    /// Address of the receiver.
    pub fn destination(&self) -> [u8; 6] {
        array(self.buffer.as_ref(), 0)
    }

    /// Address of the sender.
    pub fn source(&self) -> [u8; 6] {
        array(self.buffer.as_ref(), 6)
    }

    /// Tag control information of the outermost VLAN tag, if any.
    pub fn vlan(&self) -> Option<u16> {
        (self.type_at > ADDRESSES_BYTES).then(|| be16(self.buffer.as_ref(), ADDRESSES_BYTES + 2))
    }

    /// EtherType of the payload.
    pub fn ether_type(&self) -> u16 {
        be16(self.buffer.as_ref(), self.type_at)
    }

    /// Bytes of the header, tags included.
    pub fn header_bytes(&self) -> usize {
        self.type_at + 2
    }

    /// The bytes after the header; padding included.
    pub fn payload(&self) -> &[u8] {
        self.buffer.as_ref().get(self.header_bytes()..).unwrap_or_default()
    }
}

/// The value of an Ethernet header with at most one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetRepr {
    /// Address of the receiver.
    pub destination: [u8; 6],
    /// Address of the sender.
    pub source: [u8; 6],
    /// Tag control information of an 802.1Q tag.
    pub vlan: Option<u16>,
    /// EtherType of the payload.
    pub ether_type: u16,
}

impl EthernetRepr {
    /// Reads the values from a view; of several tags, the outermost.
    pub fn parse<T: AsRef<[u8]>>(view: &EthernetView<T>) -> EthernetRepr {
        EthernetRepr {
            destination: view.destination(),
            source: view.source(),
            vlan: view.vlan(),
            ether_type: view.ether_type(),
        }
    }

    /// Appends the header to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination);
        out.extend_from_slice(&self.source);
        if let Some(tag) = self.vlan {
            out.extend_from_slice(&ETHER_TYPES_VLAN[0].to_be_bytes());
            out.extend_from_slice(&tag.to_be_bytes());
        }
        out.extend_from_slice(&self.ether_type.to_be_bytes());
    }
}
