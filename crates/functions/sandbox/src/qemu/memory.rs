//! The memory layout of a machine: RAM in two ranges, and between them the region shared with the
//! worker.
//!
//! The firmware puts tables at the end of RAM. The region is a different file in each instance, so
//! it must not be there.

/// The address of the region.
const REGION_ADDRESS: u64 = 128 << 20;
/// Minimum size of RAM after the region: for tables of the firmware, and the initial root.
const HIGH_BYTES_MIN: u64 = 48 << 20;
/// Memory of the kernel and the interpreter, in addition to the function's.
const SYSTEM_BYTES: u64 = 64 << 20;
/// Alignment of everything, and the size of a region that was not requested.
const ALIGN_BYTES: u64 = 2 << 20;
const REGION_BYTES: u64 = 16 << 20;
/// The largest region, equal to the guest's `REGION_BYTES_MAX`.
const REGION_BYTES_MAX: u64 = 1 << 31;

/// The sizes of the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub low_bytes: u64,
    pub region_bytes: u64,
    pub high_bytes: u64,
}

impl Memory {
    /// Computes the layout for a function's memory limit and the size of a region (0: the
    /// minimum).
    ///
    /// # Errors
    /// The region is too large.
    pub fn new(function_bytes: u64, region_bytes: u64) -> Result<Memory, String> {
        if region_bytes > REGION_BYTES_MAX {
            return Err(format!("a region of {region_bytes} bytes: {REGION_BYTES_MAX} at most"));
        }
        let region_bytes = if region_bytes == 0 { REGION_BYTES } else { region_bytes };
        let behind = (function_bytes + SYSTEM_BYTES).saturating_sub(REGION_ADDRESS);
        Ok(Memory {
            low_bytes: REGION_ADDRESS,
            region_bytes: region_bytes.next_multiple_of(ALIGN_BYTES),
            high_bytes: behind.max(HIGH_BYTES_MIN).next_multiple_of(ALIGN_BYTES),
        })
    }

    /// Bytes of the machine's own memory.
    pub fn ram_bytes(self) -> u64 {
        self.low_bytes + self.high_bytes
    }

    /// Sum of all ranges, in MiB.
    pub fn all_mib(self) -> u64 {
        (self.ram_bytes() + self.region_bytes) >> 20
    }

    /// Address and size of the region, in the guest's format.
    pub fn place(self) -> String {
        format!("phys:{:#x}:{}", self.low_bytes, self.region_bytes)
    }

    /// The kernel parameters that exclude the region from RAM and allow its mapping.
    pub fn kernel_words(self) -> String {
        format!("memmap={}${:#x} iomem=relaxed", self.region_bytes, self.low_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up() {
        let small = Memory::new(16 << 20, 0).unwrap();
        assert_eq!(small.ram_bytes(), 176 << 20);
        assert_eq!(small.all_mib(), 192);
        assert_eq!(small.place(), "phys:0x8000000:16777216");
        let large = Memory::new(1 << 30, (14 << 20) + 4096).unwrap();
        assert_eq!(large.ram_bytes(), (1 << 30) + (64 << 20));
        assert_eq!(large.region_bytes, 16 << 20);
        assert_eq!(large.kernel_words(), "memmap=16777216$0x8000000 iomem=relaxed");
        assert!(Memory::new(1 << 30, 1 << 40).is_err());
    }
}
