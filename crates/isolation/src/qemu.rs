//! Virtual machines of QEMU.
