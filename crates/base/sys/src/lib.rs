//! The machine: the kernel interfaces that no library wraps, behind safe functions.
//!
//! - [`repair`]: freeze, snapshot and restore one TCP connection (TCP_REPAIR);
//! - [`info`]: what the kernel tells about a connection (TCP_INFO);
//! - [`sockopt`]: socket options that have no safe wrapper elsewhere;
//! - [`ktls`]: TLS in the kernel;
//! - [`cgroup`]: where programs that see this process's sockets are attached;
//! - [`tap`]: a TAP device, where held packets wait;
//! - [`vnet`]: a TAP device that leaves segmentation and checksums to this process;
//! - [`packet`]: the frames of an interface;
//! - [`usage`]: what a thread, or the process, has used;
//! - [`descriptors`]: what children are not to have;
//! - [`child`]: processes that end with this one, and keep descriptors of it;
//! - [`fault`]: page faults that a program handles itself;
//! - [`raw`]: whole IP packets from user space;
//! - [`namespaces`]: namespaces that a thread leaves for new ones;
//! - [`shared`]: memory that outlives the process;
//! - [`signals`]: signals that are read like a file;
//! - [`link`]: interfaces, their numbers and hardware addresses.
//!
//! `unsafe` is confined to system calls whose arguments are built in the same function.

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
pub mod tap;
pub mod usage;
pub mod vnet;
