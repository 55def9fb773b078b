//! The machine: kernel interfaces that no library wraps, behind safe functions.
//!
//! Use it to move a TCP connection between hosts (TCP_REPAIR), to read its state (TCP_INFO), to
//! give TLS to the kernel, to work on frames of an interface or a TAP device, and to run children
//! that end with their parent. Use `rustix` or `socket2` for everything that they have.
//!
//! Connections:
//! - [`repair`]: freeze, snapshot and restore one TCP connection (TCP_REPAIR);
//! - [`info`]: the kernel's information about a connection (TCP_INFO);
//! - [`sockopt`]: socket options that have no safe wrapper elsewhere;
//! - [`stream`]: position of a program in a TCP stream;
//! - [`ktls`]: TLS in the kernel.
//!
//! Packets:
//! - [`tap`]: a TAP device, which queues held packets; [`vnet`]: one that leaves segmentation and
//!   checksums to this process;
//! - [`packet`]: the frames of an interface; [`raw`]: whole IP packets from user space;
//! - [`link`]: interfaces, their numbers and hardware addresses;
//! - [`namespaces`]: new namespaces for a thread; [`cgroup`]: the cgroup to which programs that see
//!   this process's sockets are attached.
//!
//! Processes:
//! - [`child`]: processes that end with this one and inherit descriptors; [`descriptors`]:
//!   descriptors over Unix sockets, and those that children must not inherit;
//! - [`signals`]: signals read from a descriptor; [`fault`]: page faults handled in user space;
//! - [`shared`]: memory that outlives the process; [`usage`]: the resources used by a thread or the
//!   process.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//!
//! use unlade_sys::info::{STATE_ESTABLISHED, TcpInfo};
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let client = TcpStream::connect(listener.local_addr()?)?;
//! let info = TcpInfo::of(&client)?;
//! assert_eq!(info.state, STATE_ESTABLISHED);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A connection moves; the peer notices nothing (this needs CAP_NET_ADMIN):
//!
//! ```no_run
//! use unlade_net::FlowKey;
//! use unlade_net::state::SocketOptions;
//! use unlade_sys::repair::{self, Accept, Known};
//!
//! # use std::{error::Error, net::TcpStream, os::fd::OwnedFd};
//! # fn moved(socket: TcpStream) -> Result<OwnedFd, Box<dyn Error>> {
//! let known = Known {
//!     flow: FlowKey::new(socket.peer_addr()?, socket.local_addr()?),
//!     socket: SocketOptions::default(),
//!     mss_bytes: None,
//!     algorithm: "cubic".to_owned(),
//! };
//! repair::freeze(&socket)?;
//! let snapshot = repair::snapshot(&socket, &known, Accept::Established)?;
//! // ... hold the flow's packets, send the snapshot to another host; there:
//! let restored = repair::restore(&snapshot, || {})?;
//! // Here, as soon as the other host has it. In repair mode a close is silent.
//! drop(socket);
//! Ok(restored.activate()?)
//! # }
//! ```
//!
//! # Limits
//! Linux only. Many functions need capabilities; their `# Errors` sections say so. `unsafe` is
//! confined to system calls whose arguments are built in the same function. No threads of its own.

pub mod cgroup;
pub mod child;
pub mod descriptors;
pub mod fault;
pub mod info;
pub mod ktls;
pub mod link;
pub mod namespaces;
pub mod packet;
pub mod raw;
pub mod repair;
pub mod shared;
pub mod signals;
pub mod sockopt;
pub mod stream;
pub mod tap;
pub mod usage;
pub mod vnet;
