//! Whole IP packets sent from user space, header included.

use std::io;
use std::net::IpAddr;

use rustix::net::{
    AddressFamily, Protocol, RawProtocol, SendFlags, SocketAddrV4, SocketAddrV6, SocketFlags,
    SocketType, sendto, socket_with,
};

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
