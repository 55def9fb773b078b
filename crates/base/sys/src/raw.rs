//! Whole packets and frames sent from user space, headers included.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RawProtocol, SendFlags, SocketAddrV4, SocketAddrV6, SocketFlags,
    SocketType, sendto, socket_with,
};

use crate::link::Link;

/// IPPROTO_RAW: the caller supplies the IP header.
const IPPROTO_RAW: u32 = 255;

/// Sends one IP packet, header included, to `destination`.
///
/// # Errors
/// The kernel's; CAP_NET_RAW is needed.
pub fn send_packet(packet: &[u8], destination: IpAddr) -> io::Result<()> {
    let family = match destination {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let protocol = RawProtocol::new(IPPROTO_RAW).map(Protocol::from_raw);
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let sent = match destination {
        IpAddr::V4(ip) => sendto(&socket, packet, SendFlags::empty(), &SocketAddrV4::new(ip, 0))?,
        IpAddr::V6(ip) => {
            sendto(&socket, packet, SendFlags::empty(), &SocketAddrV6::new(ip, 0, 0, 0))?
        }
    };
    match sent == packet.len() {
        true => Ok(()),
        false => Err(io::Error::other("the kernel took only a part of the packet")),
    }
}

/// Sends Ethernet frames out of one interface; receives none.
#[derive(Debug)]
pub struct FrameSocket {
    socket: OwnedFd,
    index: u32,
}

impl FrameSocket {
    /// Opens a packet socket.
    ///
    /// # Errors
    /// The kernel's; CAP_NET_RAW is needed.
    pub fn open(link: &Link) -> io::Result<FrameSocket> {
        // Protocol 0: the socket receives nothing.
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(FrameSocket { socket, index: link.index })
    }

    /// Sends a frame, Ethernet header included.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: an all-zero sockaddr_ll is valid: it consists of integers and an array of bytes.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.index as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel reads `frame` and `to`, both borrowed for the call with their sizes.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                std::ptr::from_ref(&to).cast(),
                length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
