//! Network interfaces of the current network namespace: number, hardware address, state.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

/// An interface's hardware address.
pub type Mac = [u8; 6];

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its hardware address; zero on the loopback.
    pub mac: Mac,
}

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// The interface's name.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
}

impl Link {
    /// Finds an interface by name.
    ///
    /// # Errors
    /// `NotFound` with the name, or the kernel's.
    pub fn by_name(name: &str) -> io::Result<Link> {
        let socket = control_socket()?;
        let mut request = request(name)?;
        let index = ioctl(&socket, libc::SIOCGIFINDEX, &mut request)
            .map_err(|error| named(error, name))
            // SAFETY: SIOCGIFINDEX succeeded, so the kernel wrote `ifru_ifindex`.
            .map(|()| unsafe { request.ifr_ifru.ifru_ifindex })?;
        ioctl(&socket, libc::SIOCGIFHWADDR, &mut request).map_err(|error| named(error, name))?;
        // SAFETY: SIOCGIFHWADDR succeeded, so the kernel wrote `ifru_hwaddr`.
        let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        let mac = std::array::from_fn(|at| data[at] as u8);
        Ok(Link { name: name.to_owned(), index: index as u32, mac })
    }

    /// Returns true if the interface is up.
    ///
    /// # Errors
    /// The kernel's, for example if the interface no longer exists.
    pub fn is_up(&self) -> io::Result<bool> {
        let mut request = request(&self.name)?;
        ioctl(&control_socket()?, libc::SIOCGIFFLAGS, &mut request)
            .map_err(|error| named(error, &self.name))?;
        // SAFETY: SIOCGIFFLAGS succeeded, so the kernel wrote `ifru_flags`.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        Ok(i32::from(flags) & libc::IFF_UP != 0)
    }

    /// Finds the interface with an address; the loopback only if no other has it.
    ///
    /// # Errors
    /// `AddrNotAvailable` with the address, or the kernel's.
    pub fn by_address(ip: IpAddr) -> io::Result<Link> {
        let all = addresses()?;
        let carrying = || all.iter().filter(|address| address.ip == ip.to_canonical());
        let found = carrying().find(|address| address.name != "lo").or(carrying().next());
        match found {
            Some(address) => Link::by_name(&address.name),
            None => Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("no interface carries the address {ip}"),
            )),
        }
    }
}

fn named(error: io::Error, name: &str) -> io::Error {
    io::Error::new(error.kind(), format!("interface {name}: {error}"))
}

/// Every address of every interface.
///
/// # Errors
/// The kernel's.
pub fn addresses() -> io::Result<Vec<LinkAddress>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores a list that is freed below; `head` is writable.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which lives until freeifaddrs.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: `ifa_name` is a NUL-terminated string owned by the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        if let Some(ip) = ip_of(entry.ifa_addr) {
            found.push(LinkAddress { name, ip });
        }
    }
    // SAFETY: `head` came from getifaddrs, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: a non-null `ifa_addr` points to a sockaddr with at least its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: by its family, this is a sockaddr_in.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: by its family, this is a sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// Sets an interface's hardware address, transmit queue length (packets) and MTU (bytes), and
/// brings it up.
///
/// # Errors
/// The kernel's; CAP_NET_ADMIN is needed.
pub(crate) fn configure(name: &str, mac: Mac, queue_packets: i32, mtu: i32) -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = request(name)?;
    // SAFETY: an all-zero sockaddr is valid.
    let mut address: libc::sockaddr = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = address;
    ioctl(&socket, libc::SIOCSIFHWADDR, &mut request)?;
    request.ifr_ifru.ifru_mtu = mtu;
    ioctl(&socket, libc::SIOCSIFMTU, &mut request)?;
    // `ifru_metric` is the int that SIOCSIFTXQLEN reads (ifr_qlen).
    request.ifr_ifru.ifru_metric = queue_packets;
    ioctl(&socket, libc::SIOCSIFTXQLEN, &mut request)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel wrote `ifru_flags`.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request)
}

/// Brings an interface of the current network namespace up.
///
/// # Errors
/// The kernel's, with the name; CAP_NET_ADMIN is needed.
pub fn bring_up(name: &str) -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = request(name)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request).map_err(|error| named(error, name))?;
    // SAFETY: SIOCGIFFLAGS succeeded, so the kernel wrote `ifru_flags`.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request).map_err(|error| named(error, name))
}

fn control_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// An interface request for `name`, everything else zero.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        let why = format!("{name:?} is not an interface name (1 to 15 bytes)");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // SAFETY: an all-zero ifreq is valid: it is integers, arrays and null pointers.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

pub(crate) fn ioctl(
    fd: &impl AsRawFd,
    number: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: every request number used in this crate reads and writes one struct ifreq.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number, std::ptr::from_mut(request)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_carries_its_address() {
        let link = Link::by_address(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!((link.name.as_str(), link.index), ("lo", 1));
    }

    #[test]
    fn the_loopback_of_a_new_namespace_is_brought_up() {
        use crate::namespaces::{Namespace, unshare};
        let state = std::thread::spawn(|| {
            unshare(&[Namespace::Network]).ok()?;
            let link = Link::by_name("lo").unwrap();
            let before = link.is_up().unwrap();
            bring_up("lo").unwrap();
            Some((before, link.is_up().unwrap()))
        });
        match state.join().unwrap() {
            Some(state) => assert_eq!(state, (false, true)),
            None => println!("skipped: a new network namespace needs CAP_SYS_ADMIN"),
        }
        assert!(bring_up("nonesuch0").unwrap_err().to_string().contains("nonesuch0"));
    }

    #[test]
    fn a_missing_interface_is_named_in_the_error() {
        let error = Link::by_name("nonesuch0").unwrap_err();
        assert!(error.to_string().contains("nonesuch0"), "{error}");
    }
}
