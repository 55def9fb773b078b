//! A TAP device: Ethernet frames between the kernel and this process.
//!
//! The device announces no offloads to the kernel, so every frame from it is complete: segmented
//! to the MTU and with its checksums, whatever offloads the sending device has.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::link::{self, Link, Mac};

/// An open TAP device; dropping the value removes it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    link: Link,
}

impl Tap {
    /// Creates the device in the current network namespace and brings it up.
    ///
    /// `mac` is its hardware address, `queue_packets` the number of frames that the kernel queues
    /// for this process before it drops, `mtu_bytes` the largest frame without its header.
    ///
    /// # Errors
    /// The kernel's; `/dev/net/tun` and CAP_NET_ADMIN are needed.
    pub fn create(name: &str, mac: Mac, queue_packets: u32, mtu_bytes: u32) -> io::Result<Tap> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")?;
        let mut request = link::request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        link::ioctl(&file, libc::TUNSETIFF, &mut request)?;
        link::configure(name, mac, queue_packets as i32, mtu_bytes as i32)?;
        Ok(Tap { file, link: Link::by_name(name)? })
    }

    /// The device.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Receives one frame that the kernel sent to the device.
    ///
    /// # Errors
    /// `WouldBlock` if there is no frame.
    pub fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(frame)
    }

    /// Makes the kernel receive one frame from the device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        (&self.file).write(frame).map(drop)
    }

    /// Makes the kernel receive one frame, given in two parts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_parts(&self, headers: &[u8], payload: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(headers), IoSlice::new(payload)];
        (&self.file).write_vectored(&parts).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
