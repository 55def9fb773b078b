//! A TAP device that leaves segmentation and checksums to this process (IFF_VNET_HDR): each frame
//! has a `struct virtio_net_hdr` in front (virtio 1.2 §5.1.6) with the remaining work.
//!
//! In the other direction, [`VnetHeader::checksum_at`] makes the kernel accept a frame's checksum
//! without checking it. `VIRTIO_NET_HDR_F_DATA_VALID` would be the right flag, but a TAP device
//! ignores it.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::link::{self, Link, Mac};

/// Bytes of the header in front of each frame.
pub const HEADER_BYTES: usize = 10;
/// Most bytes of a frame: an IP packet of 64 KiB and its Ethernet header, with a VLAN tag.
pub const FRAME_BYTES_MAX: usize = 65_535 + 18;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The remaining work for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// Where summing starts, and the offset of the sum behind it, bytes: the field contains the
    /// sum of the pseudo-header. In frames to the kernel: the sum is correct.
    pub checksum_at: Option<(u16, u16)>,
    /// The frame is a TCP segment that must be segmented into payloads of this many bytes.
    pub segment_bytes: Option<u16>,
    /// Bytes of all headers of such a frame; a hint.
    pub header_bytes: u16,
    /// True if such a frame is IPv6.
    pub is_ipv6: bool,
}

impl VnetHeader {
    /// Decodes the kernel's header; `None` if it requests an offload that was not announced.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<VnetHeader> {
        let field = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let checksum_at = (bytes[0] & NEEDS_CSUM != 0).then(|| (field(6), field(8)));
        let (segment_bytes, is_ipv6) = match bytes[1] & !GSO_ECN {
            0 => (None, false),
            GSO_TCPV4 => (Some(field(4)), false),
            GSO_TCPV6 => (Some(field(4)), true),
            _ => return None,
        };
        Some(VnetHeader { checksum_at, segment_bytes, header_bytes: field(2), is_ipv6 })
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut field = |at: usize, value: u16| {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        };
        if let Some((start, offset)) = self.checksum_at {
            field(6, start);
            field(8, offset);
        }
        if let Some(bytes) = self.segment_bytes {
            field(2, self.header_bytes);
            field(4, bytes);
        }
        bytes[0] = if self.checksum_at.is_some() { NEEDS_CSUM } else { 0 };
        bytes[1] = match (self.segment_bytes, self.is_ipv6) {
            (None, _) => 0,
            (Some(_), false) => GSO_TCPV4,
            (Some(_), true) => GSO_TCPV6,
        };
        bytes
    }
}

/// An open TAP device; dropping the value removes it.
#[derive(Debug)]
pub struct VnetTap {
    file: File,
    link: Link,
}

impl VnetTap {
    /// Creates the device in the current network namespace and brings it up, as
    /// [`Tap::create`](crate::tap::Tap::create) does.
    ///
    /// # Errors
    /// The kernel's; `/dev/net/tun` and CAP_NET_ADMIN are needed.
    pub fn create(name: &str, mac: Mac, queue_packets: u32, mtu_bytes: u32) -> io::Result<VnetTap> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut request = link::request(name)?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        link::ioctl(&file, libc::TUNSETIFF, &mut request)?;
        link::configure(name, mac, queue_packets as i32, mtu_bytes as i32)?;
        let tap = VnetTap { file, link: Link::by_name(name)? };
        tap.set_offloads(true)?;
        Ok(tap)
    }

    /// Sets whether the kernel leaves segmentation and checksums to this process.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_offloads(&self, on: bool) -> io::Result<()> {
        let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let offloads = libc::c_ulong::from(if on { all } else { 0 });
        // SAFETY: TUNSETOFFLOAD takes its argument by value and accesses no memory of this
        // process.
        let set = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The device.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Receives one frame that the kernel sent to the device. `frame` should be at least
    /// [`FRAME_BYTES_MAX`] bytes long: bytes that do not fit are lost.
    ///
    /// # Errors
    /// `WouldBlock` if there is no frame; `InvalidData` for a frame that requests an offload that
    /// was not announced.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<(VnetHeader, usize)> {
        let mut bytes = [0; HEADER_BYTES];
        let mut pieces = [IoSliceMut::new(&mut bytes), IoSliceMut::new(frame)];
        let read = rustix::io::readv(&self.file, &mut pieces)?;
        let header = VnetHeader::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok((header, read.saturating_sub(HEADER_BYTES)))
    }

    /// Makes the kernel receive one frame from the device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, header: &VnetHeader, frame: &[u8]) -> io::Result<()> {
        let bytes = header.encode();
        rustix::io::writev(&self.file, &[IoSlice::new(&bytes), IoSlice::new(frame)])?;
        Ok(())
    }
}

impl AsFd for VnetTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADER_BYTES, VnetHeader};

    #[test]
    fn headers_are_read_back() {
        let whole = VnetHeader {
            checksum_at: Some((34, 16)),
            segment_bytes: Some(1448),
            header_bytes: 66,
            is_ipv6: true,
        };
        let none = VnetHeader::default();
        let checked = VnetHeader { checksum_at: Some((54, 16)), ..none };
        for header in [whole, none, checked] {
            assert_eq!(VnetHeader::decode(&header.encode()), Some(header));
        }
        assert_eq!(none.encode(), [0; HEADER_BYTES]);
    }

    #[test]
    fn unannounced_offloads_are_refused() {
        for kind in [2, 3, 5, 0x7f] {
            assert_eq!(VnetHeader::decode(&[0, kind, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        }
    }
}
