//! A packet socket on an interface: receives every incoming frame, and sends frames out of it.
//!
//! While the socket exists, the interface receives frames for other hardware addresses too. Each
//! frame has a header with the remaining work ([`VnetHeader`], PACKET_VNET_HDR): the kernel may
//! have merged frames on receive (GRO), and a frame of this machine, over a veth pair, may be
//! large and without its checksum.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::link::Link;
use crate::vnet::{HEADER_BYTES, VnetHeader};

/// Bytes of the receive queue, if this process may have that much (CAP_NET_ADMIN; otherwise the
/// limit `net.core.rmem_max` applies). A frame of 1500 bytes counts for more than 2000.
const QUEUE_BYTES: usize = 16 << 20;
/// ETH_P_ALL, in network order.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Frames of one interface, in and out.
#[derive(Debug)]
pub struct PacketPort {
    socket: OwnedFd,
    link: Link,
}

impl PacketPort {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel's; CAP_NET_RAW is needed.
    pub fn open(link: Link) -> io::Result<PacketPort> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0: the socket receives nothing before it is bound to the interface.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let port = PacketPort { socket, link };
        // Frames continue to arrive meanwhile: they are queued here, or lost.
        if set_socket_recv_buffer_size_force(&port.socket, QUEUE_BYTES).is_err() {
            set_socket_recv_buffer_size(&port.socket, QUEUE_BYTES)?;
        }
        port.option(libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        port.option(libc::PACKET_VNET_HDR, &1i32)?;
        let everything = libc::packet_mreq {
            mr_ifindex: port.link.index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        port.option(libc::PACKET_ADD_MEMBERSHIP, &everything)?;
        port.bind()?;
        Ok(port)
    }

    fn bind(&self) -> io::Result<()> {
        // SAFETY: an all-zero sockaddr_ll is valid: it consists of integers and an array of bytes.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = ALL_PROTOCOLS;
        at.sll_ifindex = self.link.index as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel reads `at`, which is borrowed for the call with its size.
        let bound =
            unsafe { libc::bind(self.socket.as_raw_fd(), std::ptr::from_ref(&at).cast(), length) };
        if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets an option of packet sockets to a value with the kernel's layout.
    fn option<T: Copy>(&self, name: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads `value`, which is borrowed for the call with its size; it is
        // one of the two plain structures without padding that this file passes.
        let set = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The interface.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Receives one frame. Bytes that do not fit are lost.
    ///
    /// # Errors
    /// `WouldBlock` if there is no frame; `InvalidData` for a frame with an unknown request.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<(VnetHeader, usize)> {
        let mut bytes = [0; HEADER_BYTES];
        let mut pieces = [IoSliceMut::new(&mut bytes), IoSliceMut::new(frame)];
        let read = rustix::io::readv(&self.socket, &mut pieces)?;
        let header = VnetHeader::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok((header, read.saturating_sub(HEADER_BYTES)))
    }

    /// Sends one frame, Ethernet header included.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, header: &VnetHeader, frame: &[u8]) -> io::Result<()> {
        let bytes = header.encode();
        rustix::io::writev(&self.socket, &[IoSlice::new(&bytes), IoSlice::new(frame)])?;
        Ok(())
    }
}

impl AsFd for PacketPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
