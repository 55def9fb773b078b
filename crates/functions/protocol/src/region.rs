//! The header of the memory that guest and host share, and its layout.

use super::{u32_at, u64_at};
use unlade_bytes::DecodeError;

/// First eight bytes of a region.
pub const MAGIC: [u8; 8] = *b"UNLADEFN";
/// Bytes of the header.
pub const HEADER_BYTES: u32 = 4096;
/// Bytes of a slot.
pub const SLOT_BYTES: u32 = 64 * 1024;
/// Bytes of a descriptor.
pub const ENTRY_BYTES: u32 = 64;
/// Most bytes of a region: the range of offsets of 32 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 31;

/// Offsets of the words that both sides access. Each is a `u32` on a cache line of its own.
pub mod word {
    /// Number of submissions, modulo 2^32; written by the guest.
    pub const SUBMISSION_TAIL: usize = 256;
    /// Number of consumed submissions; written by the host.
    pub const SUBMISSION_HEAD: usize = 320;
    /// Number of completions, modulo 2^32; written by the host.
    pub const COMPLETION_TAIL: usize = 384;
    /// Number of consumed completions; written by the guest.
    pub const COMPLETION_HEAD: usize = 448;
    /// 1 while the guest waits for a BELL; written by the guest.
    pub const GUEST_SLEEPS: usize = 512;
    /// 1 while the host waits for a BELL; written by the host.
    pub const HOST_SLEEPS: usize = 576;
}

/// Bytes in adjacent slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first slot.
    pub first_slot: u32,
    /// Number of bytes from the start of the first slot.
    pub bytes: u32,
}

impl Extent {
    /// Number of slots that it touches.
    pub fn slots(&self) -> u32 {
        self.bytes.div_ceil(SLOT_BYTES)
    }
}

/// The sizes of a region's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries of each ring, a power of two.
    pub ring_entries: u32,
    /// Bytes of each meta arena.
    pub meta_bytes: u32,
    /// Number of the guest's slots.
    pub guest_slots: u32,
    /// Number of the host's slots.
    pub host_slots: u32,
}

impl Layout {
    /// Computes the offsets after the header: rings, meta arenas, slots.
    ///
    /// # Errors
    /// The sizes are invalid: a ring's size is not a power of two, or a part is too large.
    pub fn header(&self, epoch: u64) -> Result<Header, DecodeError> {
        if !self.ring_entries.is_power_of_two() {
            let value = self.ring_entries.into();
            return Err(DecodeError::Undefined { what: "ring entries", value });
        }
        let mut at = u64::from(HEADER_BYTES);
        let mut take = |bytes: u64, align: u64| {
            let start = at.next_multiple_of(align);
            at = start + bytes;
            start as u32
        };
        let ring = u64::from(self.ring_entries) * u64::from(ENTRY_BYTES);
        let slots = |count: u32| u64::from(count) * u64::from(SLOT_BYTES);
        let page = u64::from(HEADER_BYTES);
        let header = Header {
            epoch,
            region_bytes: 0,
            submission_offset: take(ring, page),
            submission_entries: self.ring_entries,
            completion_offset: take(ring, page),
            completion_entries: self.ring_entries,
            guest_meta_offset: take(self.meta_bytes.into(), page),
            guest_meta_bytes: self.meta_bytes,
            host_meta_offset: take(self.meta_bytes.into(), page),
            host_meta_bytes: self.meta_bytes,
            guest_slots_offset: take(slots(self.guest_slots), page),
            guest_slots: self.guest_slots,
            host_slots_offset: take(slots(self.host_slots), page),
            host_slots: self.host_slots,
            slot_bytes: SLOT_BYTES,
        };
        let header = Header { region_bytes: at.next_multiple_of(page), ..header };
        header.check()?;
        Ok(header)
    }

    /// The largest layout, at most this one, that fits into memory of `region_bytes`; `None` if it
    /// would be too small to use. The numbers of slots are reduced in proportion, and the meta
    /// arenas to an eighth of the memory.
    pub fn within(&self, region_bytes: u64) -> Option<Layout> {
        if self.header(0).ok()?.region_bytes <= region_bytes {
            return Some(*self);
        }
        let page = u64::from(HEADER_BYTES);
        let meta_bytes = u64::from(self.meta_bytes).min(region_bytes / 8 / page * page);
        let rings = 2 * (u64::from(self.ring_entries) * u64::from(ENTRY_BYTES));
        let fixed = page + rings.next_multiple_of(2 * page) + 2 * meta_bytes;
        let slots = region_bytes.checked_sub(fixed)? / u64::from(SLOT_BYTES);
        let both = u64::from(self.guest_slots) + u64::from(self.host_slots);
        // Each side has at least one slot.
        let guest_slots = (slots * u64::from(self.guest_slots) / both.max(1)).max(1);
        let fits = Layout {
            meta_bytes: meta_bytes as u32,
            guest_slots: guest_slots as u32,
            host_slots: slots.checked_sub(guest_slots)? as u32,
            ..*self
        };
        let useful = meta_bytes > 0 && fits.host_slots > 0;
        (useful && fits.header(0).ok()?.region_bytes <= region_bytes).then_some(fits)
    }
}

/// The header: written by the host, read by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of docs/guest-protocol.md, by their names there")]
pub struct Header {
    pub epoch: u64,
    pub region_bytes: u64,
    pub submission_offset: u32,
    pub submission_entries: u32,
    pub completion_offset: u32,
    pub completion_entries: u32,
    pub guest_meta_offset: u32,
    pub guest_meta_bytes: u32,
    pub host_meta_offset: u32,
    pub host_meta_bytes: u32,
    pub guest_slots_offset: u32,
    pub guest_slots: u32,
    pub host_slots_offset: u32,
    pub host_slots: u32,
    pub slot_bytes: u32,
}

/// Bytes of the header that are in use, before the words.
pub const HEADER_USED_BYTES: usize = 84;

impl Header {
    /// Encodes the header up to its words.
    pub fn encode(&self) -> [u8; HEADER_USED_BYTES] {
        let mut out = [0; HEADER_USED_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        let mut put = |at: usize, value: &[u8]| out[at..at + value.len()].copy_from_slice(value);
        put(8, &u32::from(super::VERSION).to_le_bytes());
        put(12, &HEADER_BYTES.to_le_bytes());
        put(16, &self.epoch.to_le_bytes());
        put(24, &self.region_bytes.to_le_bytes());
        for (index, word) in self.words().into_iter().enumerate() {
            put(32 + 4 * index, &word.to_le_bytes());
        }
        out
    }

    fn words(&self) -> [u32; 13] {
        [
            self.submission_offset,
            self.submission_entries,
            self.completion_offset,
            self.completion_entries,
            self.guest_meta_offset,
            self.guest_meta_bytes,
            self.host_meta_offset,
            self.host_meta_bytes,
            self.guest_slots_offset,
            self.guest_slots,
            self.host_slots_offset,
            self.host_slots,
            self.slot_bytes,
        ]
    }

    /// Decodes a header, as a guest does.
    ///
    /// # Errors
    /// It is invalid, or its offsets exceed the region.
    pub fn decode(input: &[u8]) -> Result<Header, DecodeError> {
        if input.get(..8) != Some(&MAGIC[..]) {
            return Err(DecodeError::Undefined { what: "magic", value: 0 });
        }
        let version = u32_at(input, 8)?;
        if version != u32::from(super::VERSION) {
            return Err(DecodeError::Version(version.min(u16::MAX.into()) as u16));
        }
        let header_bytes = u32_at(input, 12)?;
        if header_bytes != HEADER_BYTES {
            let value = header_bytes.into();
            return Err(DecodeError::Undefined { what: "header bytes", value });
        }
        let word = |index: usize| u32_at(input, 32 + 4 * index);
        let header = Header {
            epoch: u64_at(input, 16)?,
            region_bytes: u64_at(input, 24)?,
            submission_offset: word(0)?,
            submission_entries: word(1)?,
            completion_offset: word(2)?,
            completion_entries: word(3)?,
            guest_meta_offset: word(4)?,
            guest_meta_bytes: word(5)?,
            host_meta_offset: word(6)?,
            host_meta_bytes: word(7)?,
            guest_slots_offset: word(8)?,
            guest_slots: word(9)?,
            host_slots_offset: word(10)?,
            host_slots: word(11)?,
            slot_bytes: word(12)?,
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), DecodeError> {
        let undefined = |what, value| Err(DecodeError::Undefined { what, value });
        if self.slot_bytes != SLOT_BYTES {
            return undefined("slot bytes", self.slot_bytes.into());
        }
        for entries in [self.submission_entries, self.completion_entries] {
            if !entries.is_power_of_two() {
                return undefined("ring entries", entries.into());
            }
        }
        if self.region_bytes > REGION_BYTES_MAX {
            return undefined("region bytes", self.region_bytes);
        }
        let entry = u64::from(ENTRY_BYTES);
        let slot = u64::from(SLOT_BYTES);
        for (what, offset, bytes) in [
            ("submissions", self.submission_offset, u64::from(self.submission_entries) * entry),
            ("completions", self.completion_offset, u64::from(self.completion_entries) * entry),
            ("guest meta", self.guest_meta_offset, self.guest_meta_bytes.into()),
            ("host meta", self.host_meta_offset, self.host_meta_bytes.into()),
            ("guest slots", self.guest_slots_offset, u64::from(self.guest_slots) * slot),
            ("host slots", self.host_slots_offset, u64::from(self.host_slots) * slot),
        ] {
            let end = u64::from(offset) + bytes;
            if offset < HEADER_BYTES || end > self.region_bytes || offset % ENTRY_BYTES != 0 {
                return undefined(what, offset.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout =
        Layout { ring_entries: 64, meta_bytes: 1 << 18, guest_slots: 8, host_slots: 16 };

    #[test]
    fn a_header_means_what_was_written() {
        let header = LAYOUT.header(77).unwrap();
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert!(header.submission_offset >= HEADER_BYTES);
        assert!(header.host_slots_offset >= header.guest_slots_offset + 8 * SLOT_BYTES);
    }

    #[test]
    fn layouts_that_are_none_are_refused() {
        assert!(Layout { ring_entries: 63, ..LAYOUT }.header(1).is_err());
        assert!(Layout { ring_entries: 0, ..LAYOUT }.header(1).is_err());
        assert!(Layout { host_slots: 1 << 15, ..LAYOUT }.header(1).is_err());
        assert!(Layout { host_slots: u32::MAX, ..LAYOUT }.header(1).is_err());
    }

    #[test]
    fn memory_that_is_there_is_used_as_far_as_it_goes() {
        let whole = LAYOUT.header(0).unwrap().region_bytes;
        assert_eq!(LAYOUT.within(whole), Some(LAYOUT));
        assert_eq!(LAYOUT.within(whole + 1), Some(LAYOUT));
        let less = LAYOUT.within(whole - 1).unwrap();
        assert!(less.guest_slots + less.host_slots >= 22, "{less:?}");
        for kib in (0..2048).step_by(4) {
            let Some(fits) = LAYOUT.within(kib * 1024) else { continue };
            assert!(fits.header(1).unwrap().region_bytes <= kib * 1024);
            assert!(fits.guest_slots > 0 && fits.host_slots >= fits.guest_slots);
        }
        assert_eq!(LAYOUT.within(128 * 1024), None);
        assert_eq!(LAYOUT.within(0), None);
        assert!(LAYOUT.within(512 * 1024).is_some());
    }

    proptest! {
        #[test]
        fn what_is_accepted_lies_within_the_region(
            at in 8usize..HEADER_USED_BYTES, byte in any::<u8>(), change in any::<[u8; 4]>(),
        ) {
            let mut bytes = LAYOUT.header(3).unwrap().encode();
            bytes[at] = byte;
            bytes[(at * 7) % 76 + 8..][..4.min(HEADER_USED_BYTES - (at * 7) % 76 - 8)]
                .copy_from_slice(&change[..4.min(HEADER_USED_BYTES - (at * 7) % 76 - 8)]);
            if let Ok(header) = Header::decode(&bytes) {
                let slots = u64::from(header.host_slots) * u64::from(SLOT_BYTES);
                prop_assert!(u64::from(header.host_slots_offset) + slots <= header.region_bytes);
                let ring = u64::from(header.submission_entries) * 64;
                prop_assert!(u64::from(header.submission_offset) + ring <= header.region_bytes);
            }
        }
    }
}
