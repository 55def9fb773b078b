//! Submission of descriptors to the accelerator: by a 64-byte store to a mapped page of it, or by
//! `write` on its device file.
//!
//! Since 2024 most processors require a privilege for direct stores (CAP_SYS_RAWIO), because a
//! process can confuse the device with them. With `write` the driver checks the descriptors, and
//! accepts no batches. So mapping is tried first, and `write` is the fallback.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ptr::NonNull;

use super::descriptor::{DESCRIPTOR_BYTES, Descriptor};
use super::probe::{Mode, Queue};

/// Size of the mapped page.
const PORTAL_BYTES: usize = 4096;
/// Number of attempts to submit a descriptor to a full shared queue.
const OFFERS_MAX: usize = 16;

/// Access to the accelerator.
#[derive(Debug)]
pub(super) enum Portal {
    /// A mapped page.
    Mapped(Mapped),
    /// The device file.
    Written(File),
}

/// The mapped page.
#[derive(Debug)]
pub(super) struct Mapped {
    base: NonNull<u8>,
    mode: Mode,
    /// Closing the file ends batches in progress, so it stays open with the mapping.
    _file: File,
}

// SAFETY: the page belongs to the process; any thread may store to it.
unsafe impl Send for Mapped {}

impl Portal {
    pub(super) fn open(queue: &Queue) -> io::Result<Portal> {
        let file = OpenOptions::new().read(true).write(true).open(&queue.path)?;
        match map(&file) {
            Ok(base) if can_store(queue.mode) => {
                Ok(Portal::Mapped(Mapped { base, mode: queue.mode, _file: file }))
            }
            Ok(base) => {
                unmap(base);
                Ok(Portal::Written(file))
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Portal::Written(file)),
            Err(error) => Err(error),
        }
    }

    /// Returns true if batches can be submitted.
    pub(super) fn takes_batches(&self) -> bool {
        matches!(self, Portal::Mapped(_))
    }

    /// Submits descriptors, and returns the number of accepted ones, from the first.
    ///
    /// # Errors
    /// No descriptor was accepted, for another reason than a full queue.
    ///
    /// # Safety
    /// The addresses in the descriptors and the memory behind them stay valid until they are
    /// reported.
    pub(super) unsafe fn submit(&mut self, descriptors: &[Descriptor]) -> io::Result<usize> {
        match self {
            Portal::Mapped(portal) => {
                // SAFETY: the caller guarantees valid addresses.
                let taken = |one: &&Descriptor| unsafe { portal.store(one) };
                Ok(descriptors.iter().take_while(taken).count())
            }
            Portal::Written(file) => write(file, descriptors),
        }
    }
}

fn write(file: &mut File, descriptors: &[Descriptor]) -> io::Result<usize> {
    // SAFETY: descriptors are arrays of bytes without padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(descriptors.as_ptr().cast(), size_of_val(descriptors))
    };
    match file.write(bytes) {
        Ok(written) => Ok(written / DESCRIPTOR_BYTES),
        Err(full) if matches!(full.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(error) => Err(error),
    }
}

impl Mapped {
    /// Stores a descriptor to the portal; returns true if it was accepted.
    ///
    /// # Safety
    /// As for [`Portal::submit`].
    unsafe fn store(&self, descriptor: &Descriptor) -> bool {
        match self.mode {
            Mode::Dedicated => {
                // SAFETY: the base is a portal of a dedicated queue, aligned to 64, and the
                // processor has the instruction (`can_store`). The instruction does not report a
                // full queue, so the caller counts the entries.
                unsafe { instruction::movdir64b(self.base.as_ptr(), descriptor) };
                true
            }
            Mode::Shared => (0..OFFERS_MAX).any(|_| {
                // SAFETY: as above, of a shared queue.
                unsafe { instruction::enqcmd(self.base.as_ptr(), descriptor) }
            }),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unmap(self.base);
    }
}

fn map(file: &File) -> io::Result<NonNull<u8>> {
    use std::os::fd::AsRawFd;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe {
        let nowhere = std::ptr::null_mut();
        libc::mmap(nowhere, PORTAL_BYTES, libc::PROT_WRITE, flags, file.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))
}

fn unmap(base: NonNull<u8>) {
    // SAFETY: `base` came from `map`, and its owner does not use it any more.
    unsafe { libc::munmap(base.as_ptr().cast(), PORTAL_BYTES) };
}

fn can_store(mode: Mode) -> bool {
    match mode {
        Mode::Dedicated => instruction::has_movdir64b(),
        Mode::Shared => instruction::has_enqcmd(),
    }
}

/// The two instructions, as bytes, because some assemblers do not support them.
#[cfg(target_arch = "x86_64")]
mod instruction {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    use super::Descriptor;

    /// Bits of CPUID leaf 7, register ECX.
    const MOVDIR64B: u32 = 1 << 28;
    const ENQCMD: u32 = 1 << 29;

    pub(super) fn has_movdir64b() -> bool {
        features() & MOVDIR64B != 0
    }

    pub(super) fn has_enqcmd() -> bool {
        features() & ENQCMD != 0
    }

    fn features() -> u32 {
        // SAFETY: every x86-64 processor has the CPUID instruction.
        #[allow(unused_unsafe, reason = "safe functions from Rust 1.94 on")]
        unsafe {
            if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx }
        }
    }

    /// Stores 64 bytes at once.
    ///
    /// # Safety
    /// `portal` is a mapped portal of a dedicated queue with room, and [`has_movdir64b`].
    pub(super) unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
        // SAFETY: reads 64 bytes at rdx, which is a descriptor, and writes 64 aligned bytes at
        // rax. The fence orders earlier writes to the referenced memory before the store, which is
        // weakly ordered.
        unsafe {
            asm!(
                "sfence",
                // movdir64b rax, [rdx]
                ".byte 0x66, 0x0f, 0x38, 0xf8, 0x02",
                in("rax") portal,
                in("rdx") descriptor,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Submits 64 bytes; returns true if they were accepted.
    ///
    /// # Safety
    /// `portal` is a mapped portal of a shared queue, and [`has_enqcmd`].
    pub(super) unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
        let full: u8;
        // SAFETY: as for `movdir64b`; the zero flag indicates a full queue.
        unsafe {
            asm!(
                "sfence",
                // enqcmd rax, [rdx]
                ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02",
                "setz {full}",
                full = out(reg_byte) full,
                in("rax") portal,
                in("rdx") descriptor,
                options(nostack),
            );
        }
        full == 0
    }

    #[cfg(test)]
    mod tests {
        std::arch::global_asm!(
            ".globl unlade_copyunit_test_encodings",
            "unlade_copyunit_test_encodings:",
            ".byte 0x66, 0x0f, 0x38, 0xf8, 0x02",
            ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02",
            "movdir64b rax, [rdx]",
            "enqcmd rax, [rdx]",
        );

        unsafe extern "C" {
            static unlade_copyunit_test_encodings: [u8; 20];
        }

        #[test]
        fn the_bytes_are_what_this_assembler_makes() {
            // SAFETY: the assembly above is 20 bytes long, and code is readable.
            let bytes = unsafe { unlade_copyunit_test_encodings };
            assert_eq!(bytes[..10], bytes[10..]);
        }
    }
}

/// A stub; other architectures do not have the accelerator.
#[cfg(not(target_arch = "x86_64"))]
mod instruction {
    use super::Descriptor;

    pub(super) fn has_movdir64b() -> bool {
        false
    }

    pub(super) fn has_enqcmd() -> bool {
        false
    }

    /// # Safety
    /// No requirements: the function does nothing, and is not called.
    pub(super) unsafe fn movdir64b(_: *mut u8, _: &Descriptor) {}

    /// # Safety
    /// As above.
    pub(super) unsafe fn enqcmd(_: *mut u8, _: &Descriptor) -> bool {
        false
    }
}
