//! A software NIC: a device that works on the messages of TLS and NVMe/TCP on other cores while TCP
//! stays where it is, and the software above it.
#![forbid(unsafe_code)]
