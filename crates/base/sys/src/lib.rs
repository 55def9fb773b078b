//! The machine: kernel interfaces without a wrapper in a library, behind safe functions.
//!
//! - [`repair`]: freeze, snapshot and restore one TCP connection (TCP_REPAIR);
//! - [`info`]: the kernel's information about a connection (TCP_INFO);
//! - [`sockopt`]: socket options that have no safe wrapper elsewhere;
//! - [`ktls`]: TLS in the kernel;
//! - [`cgroup`]: the cgroup to which programs that see this process's sockets are attached;
//! - [`tap`]: a TAP device, which queues held packets;
//! - [`vnet`]: a TAP device that leaves segmentation and checksums to this process;
//! - [`packet`]: the frames of an interface;
//! - [`usage`]: the resources used by a thread or the process;
//! - [`descriptors`]: descriptors over Unix sockets, and those that children must not inherit;
//! - [`child`]: processes that end with this one and inherit descriptors;
//! - [`fault`]: page faults handled in user space;
//! - [`raw`]: whole IP packets from user space;
//! - [`namespaces`]: new namespaces for a thread;
//! - [`shared`]: memory that outlives the process;
//! - [`signals`]: signals read from a descriptor;
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
