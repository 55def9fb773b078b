//! Formats of the accelerator: descriptors of 64 bytes and completion records of 32 bytes.
//!
//! The layouts are those of the Intel Data Streaming Accelerator Architecture Specification and of
//! Linux' `<linux/idxd.h>`; all fields are little-endian. The code builds and parses them as
//! bytes, so they can be tested on any machine.

/// Size of a descriptor, and its alignment in a list.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Size of a completion record, and its alignment.
pub const RECORD_BYTES: usize = 32;

const OPCODE_BATCH: u32 = 1;
const OPCODE_MEMMOVE: u32 = 3;

/// The address of the completion record is valid.
const FLAG_RECORD_VALID: u32 = 0x04;
/// A completion record is requested.
const FLAG_RECORD_WANTED: u32 = 0x08;
/// The destination is written to the cache.
const FLAG_CACHE: u32 = 0x100;

/// Bits of the status byte without the write flag.
const STATUS_MASK: u8 = 0x7f;
/// The fault occurred on a write.
const STATUS_WRITE: u8 = 0x80;

const STATUS_SUCCESS: u8 = 0x01;
const STATUS_PAGE_FAULT: u8 = 0x03;
const STATUS_BATCH_FAIL: u8 = 0x05;
const STATUS_BATCH_PAGE_FAULT: u8 = 0x06;

/// A command to the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor(pub [u8; DESCRIPTOR_BYTES]);

impl Descriptor {
    /// An empty descriptor.
    pub const EMPTY: Descriptor = Descriptor([0; DESCRIPTOR_BYTES]);

    /// Copies `bytes`, into the cache if `cache`. The result is written to `record`.
    pub fn memmove(dst: u64, src: u64, bytes: u32, cache: bool, record: u64) -> Descriptor {
        let cache = if cache { FLAG_CACHE } else { 0 };
        Descriptor::build(OPCODE_MEMMOVE, cache, record, src, dst, bytes)
    }

    /// Executes the descriptors of a list, in any order. The list is aligned to 64 bytes.
    pub fn batch(list: u64, descriptors: u32, record: u64) -> Descriptor {
        Descriptor::build(OPCODE_BATCH, 0, record, list, 0, descriptors)
    }

    fn build(
        opcode: u32,
        flags: u32,
        record: u64,
        first: u64,
        second: u64,
        size: u32,
    ) -> Descriptor {
        let flags = flags | FLAG_RECORD_VALID | FLAG_RECORD_WANTED;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        // Bytes 0 to 3 are the address space and the privilege, which the processor and the driver
        // fill in; bytes 36 and 37 are the unused interrupt handle; all others are reserved.
        bytes[4..8].copy_from_slice(&(opcode << 24 | flags).to_le_bytes());
        bytes[8..16].copy_from_slice(&record.to_le_bytes());
        bytes[16..24].copy_from_slice(&first.to_le_bytes());
        bytes[24..32].copy_from_slice(&second.to_le_bytes());
        bytes[32..36].copy_from_slice(&size.to_le_bytes());
        Descriptor(bytes)
    }
}

/// Completion status of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Not reported yet.
    Pending,
    /// All bytes are copied.
    Success,
    /// A page was missing; the processor, which can fault, copies the rest.
    PageFault {
        /// Number of copied bytes from the beginning; 0 if the copy started at the end.
        done_bytes: u32,
        /// Address of the fault.
        address: u64,
        /// True if the fault occurred on a write.
        write: bool,
    },
    /// Some descriptors of a batch have not succeeded; see their records.
    BatchIncomplete,
    /// Any other reported status.
    Other(u8),
}

/// Parses a completion record.
pub fn outcome(record: &[u8; RECORD_BYTES]) -> CompletionStatus {
    // status, result, fault information, reserved, bytes completed, fault address
    let [status, result, _, _, b0, b1, b2, b3, a0, a1, a2, a3, a4, a5, a6, a7, ..] = *record;
    match status & STATUS_MASK {
        0 => CompletionStatus::Pending,
        STATUS_SUCCESS => CompletionStatus::Success,
        STATUS_PAGE_FAULT => CompletionStatus::PageFault {
            // Result 1: the ranges overlap, and the copy started at the end.
            done_bytes: if result == 0 { u32::from_le_bytes([b0, b1, b2, b3]) } else { 0 },
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            write: status & STATUS_WRITE != 0,
        },
        STATUS_BATCH_FAIL | STATUS_BATCH_PAGE_FAULT => CompletionStatus::BatchIncomplete,
        other => CompletionStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memmove_is_these_bytes() {
        let made = Descriptor::memmove(
            0x1112_1314_1516_1718,
            0x2122_2324_2526_2728,
            0x3132_3334,
            true,
            0x4142_4344_4546_4740,
        );
        let mut bytes = [0_u8; 64];
        bytes[4..8].copy_from_slice(&[0x0c, 0x01, 0x00, 0x03]);
        bytes[8..16].copy_from_slice(&[0x40, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41]);
        bytes[16..24].copy_from_slice(&[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]);
        bytes[24..32].copy_from_slice(&[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        bytes[32..36].copy_from_slice(&[0x34, 0x33, 0x32, 0x31]);
        assert_eq!(made.0, bytes);
        let around = Descriptor::memmove(1, 2, 3, false, 32);
        assert_eq!(around.0[4..8], [0x0c, 0x00, 0x00, 0x03]);
    }

    #[test]
    fn a_batch_is_these_bytes() {
        let mut bytes = [0_u8; 64];
        bytes[4..8].copy_from_slice(&[0x0c, 0x00, 0x00, 0x01]);
        bytes[8] = 0x20;
        bytes[16] = 0x40;
        bytes[32] = 7;
        assert_eq!(Descriptor::batch(0x40, 7, 0x20).0, bytes);
        assert_eq!((size_of::<Descriptor>(), align_of::<Descriptor>()), (64, 64));
    }

    #[test]
    fn records_mean_what_the_specification_says() {
        let record = |status, result| {
            let mut bytes = [0_u8; 32];
            (bytes[0], bytes[1]) = (status, result);
            bytes[4..8].copy_from_slice(&0x1234_u32.to_le_bytes());
            bytes[8..16].copy_from_slice(&0x7fff_0000_1000_u64.to_le_bytes());
            outcome(&bytes)
        };
        let fault = |done_bytes, write| CompletionStatus::PageFault {
            done_bytes,
            address: 0x7fff_0000_1000,
            write,
        };
        assert_eq!(record(0, 0), CompletionStatus::Pending);
        assert_eq!(record(1, 0), CompletionStatus::Success);
        assert_eq!(record(0x03, 0), fault(0x1234, false));
        assert_eq!(record(0x83, 0), fault(0x1234, true));
        assert_eq!(record(0x03, 1), fault(0, false));
        assert_eq!(record(0x05, 0), CompletionStatus::BatchIncomplete);
        assert_eq!(record(0x06, 0), CompletionStatus::BatchIncomplete);
        assert_eq!(record(0x10, 0), CompletionStatus::Other(0x10));
        assert_eq!(record(0x9a, 0), CompletionStatus::Other(0x1a));
    }
}
