//! Direct data placement: a map from the tags in PDUs (a command's identifier, or a transfer's
//! tag) to buffers that software has registered (§5.1 of the paper).
//!
//! The bytes also stay in the packet. The result reports each placed range with its *destination*,
//! and software skips a copy only if source and destination are the same. A wrong decision of the
//! device therefore cannot make software treat another buffer as filled.
//!
//! # Writes that never happen
//! - To a withdrawn buffer: a registration is a tag with a generation, and a PDU belongs to the
//!   registration that was valid when its header was processed.
//! - From bytes at or before other bytes of the stream that the device has seen: TCP may already
//!   have delivered those, software may have copied them, and the tag may have been reused.
//! - To bytes of a buffer at or before bytes that the device has written.
//! - Beyond the registered length, or after a header whose digest is wrong.
//!
//! Over TLS, a buffer is written before the tag of its record is verified. Software must not use
//! the buffer's content before it has received the record. An attacker on the path can make the
//! device write bytes that TCP rejects to any registered buffer, after the data that is already
//! placed in it. To exclude this, software sets data that was not placed aside, withdraws the
//! registration, waits for the acknowledgement, and then copies. Data that is reported as placed,
//! and that TCP has accepted, is not overwritten.

use thiserror::Error;

use crate::rule::{Rule, holds};

/// Maximum number of placed ranges per packet; further data stays in the packet only.
pub const RANGES_MAX: usize = 4;
/// Maximum number of tags of a flow.
pub const TAGS_MAX: usize = 1 << 16;

/// A buffer's registration: its tag and its generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registration {
    /// A command's identifier (in C2HData) or a transfer's tag (in H2CData).
    pub tag: u16,
    /// Distinguishes the registrations of one tag.
    pub generation: u32,
}

/// A range of a packet's payload that was written to a registered buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Offset of the first byte in the payload.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
    /// The registration of the buffer.
    pub registration: Registration,
    /// Offset of the first byte in the buffer.
    pub offset: u32,
}

/// The placed ranges of a packet, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedRanges {
    ranges: [Placed; RANGES_MAX],
    count: u8,
}

impl PlacedRanges {
    /// No range.
    pub const NONE: PlacedRanges = PlacedRanges {
        ranges: [Placed {
            start: 0,
            end: 0,
            registration: Registration { tag: 0, generation: 0 },
            offset: 0,
        }; RANGES_MAX],
        count: 0,
    };

    /// The ranges.
    pub fn as_slice(&self) -> &[Placed] {
        &self.ranges[..usize::from(self.count)]
    }

    /// Returns true if nothing was placed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a range; returns false if there is no room.
    pub fn push(&mut self, placed: Placed) -> bool {
        if let Some(last) = self.ranges[..usize::from(self.count)].last_mut() {
            let follows = last.end == placed.start
                && last.registration == placed.registration
                && last.offset.wrapping_add(last.end - last.start) == placed.offset;
            if follows {
                last.end = placed.end;
                return true;
            }
        }
        if !self.has_room() {
            return false;
        }
        self.ranges[usize::from(self.count)] = placed;
        self.count += 1;
        true
    }

    fn has_room(&self) -> bool {
        usize::from(self.count) < RANGES_MAX
    }

    /// The placed ranges within the payload's bytes from `start` to `end`, relative to `start`.
    pub fn of(&self, start: u32, end: u32) -> PlacedRanges {
        let mut part = PlacedRanges::NONE;
        for placed in self.as_slice() {
            let (first, last) = (placed.start.max(start), placed.end.min(end));
            if first < last {
                let offset = placed.offset.wrapping_add(first - placed.start);
                part.push(Placed { start: first - start, end: last - start, offset, ..*placed });
            }
        }
        part
    }
}

/// The registered buffers, implemented by the owner of the memory.
pub trait Buffers {
    /// Writes `bytes` to the buffer of `registration`, from `offset` on, within the registered
    /// length. Returns false, and writes nothing, if it cannot.
    fn place(&mut self, registration: Registration, offset: u32, bytes: &[u8]) -> bool;
}

/// An invalid request of software to register or withdraw a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// The tag is beyond the negotiated limit.
    #[error("tag {0} is beyond the flow's; use tags below its limit")]
    Tag(u16),
    /// The tag still has a buffer, which the device may be writing to.
    #[error(
        "tag {0} is registered; withdraw it, and have that acknowledged, before using it again"
    )]
    InUse(u16),
    /// The registration does not exist.
    #[error("tag {0} has no such registration")]
    Unknown(u16),
}

/// The device's state of a registered buffer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    buffer_bytes: u32,
    /// Bytes of the buffer before this offset are not written any more.
    from: u32,
}

/// The device's placement map of one flow. It is not part of the flow's dynamic state, because its
/// size depends on the queue depth.
#[derive(Debug)]
pub struct Placement {
    slots: Vec<Option<Slot>>,
}

impl Placement {
    /// An empty map for tags below `tags_max`; at most [`TAGS_MAX`] tags.
    pub fn new(tags_max: usize) -> Placement {
        Placement { slots: vec![None; tags_max.min(TAGS_MAX)] }
    }

    /// Registers a buffer of `buffer_bytes` for the tag (`l5o_add_rr_state`).
    ///
    /// # Errors
    /// [`PlacementError::Tag`]; [`PlacementError::InUse`].
    pub fn add(
        &mut self,
        registration: Registration,
        buffer_bytes: u32,
    ) -> Result<(), PlacementError> {
        let Registration { tag, generation } = registration;
        match self.slots.get_mut(usize::from(tag)) {
            None => Err(PlacementError::Tag(tag)),
            Some(Some(_)) => Err(PlacementError::InUse(tag)),
            Some(slot) => {
                *slot = Some(Slot { generation, buffer_bytes, from: 0 });
                Ok(())
            }
        }
    }

    /// Removes a registration (`l5o_del_rr_state`). After it returns, the buffer is not written.
    ///
    /// # Errors
    /// [`PlacementError::Unknown`].
    pub fn remove(&mut self, registration: Registration) -> Result<(), PlacementError> {
        let slot = self.slots.get_mut(usize::from(registration.tag));
        let slot = slot.ok_or(PlacementError::Tag(registration.tag))?;
        slot.take_if(|slot| slot.generation == registration.generation)
            .map(|_| ())
            .ok_or(PlacementError::Unknown(registration.tag))
    }

    fn slot(&mut self, registration: Registration) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(registration.tag))?.as_mut()?;
        (slot.generation == registration.generation || !holds(Rule::Registration)).then_some(slot)
    }
}

/// Places the data of successive packets, and records the placed ranges of the current packet.
pub struct Placer<'p> {
    target: Option<(&'p mut Placement, &'p mut dyn Buffers)>,
    /// The device has seen no byte of the stream at or after the packet's bytes.
    fresh: bool,
    /// Offset in the packet's payload of the part that is being processed.
    origin: u32,
    base: u32,
    placed_bytes: u64,
    placed: PlacedRanges,
}

impl<'p> Placer<'p> {
    /// A placer that places nothing.
    pub fn none() -> Placer<'p> {
        Placer {
            target: None,
            fresh: false,
            origin: 0,
            base: 0,
            placed_bytes: 0,
            placed: PlacedRanges::NONE,
        }
    }

    /// A placer that writes to the `buffers` that are registered in `placement`.
    pub fn new(placement: &'p mut Placement, buffers: &'p mut dyn Buffers) -> Placer<'p> {
        Placer { target: Some((placement, buffers)), ..Placer::none() }
    }

    /// Returns and clears the placed ranges of the packet.
    pub fn take(&mut self) -> PlacedRanges {
        std::mem::take(&mut self.placed)
    }

    /// Starts a packet.
    pub(crate) fn packet(&mut self, fresh: bool) {
        self.fresh = fresh || !holds(Rule::Fresh);
        self.origin = 0;
        self.placed = PlacedRanges::NONE;
    }

    /// Sets the offset of the current part in the packet's payload.
    pub(crate) fn part(&mut self, origin: usize) {
        self.origin = origin as u32;
    }

    /// Sets the offset of the next bytes in the current part.
    pub(crate) fn turn_to(&mut self, base: usize) {
        self.base = self.origin + base as u32;
    }

    /// Discards the placed ranges, because the written data is invalid.
    pub(crate) fn forget(&mut self) {
        self.placed = PlacedRanges::NONE;
    }

    /// Total number of bytes placed.
    pub fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    /// The generation of the registration of `tag`, for `data_bytes` of data at `offset` in its
    /// buffer, or `None` if there is none or the data exceeds its bounds.
    pub(crate) fn resolve(&self, tag: u16, offset: u32, data_bytes: u32) -> Option<u32> {
        let (placement, _) = self.target.as_ref()?;
        let slot = placement.slots.get(usize::from(tag))?.as_ref()?;
        let end = offset.checked_add(data_bytes)?;
        let inside = end <= slot.buffer_bytes || !holds(Rule::Bounds);
        inside.then_some(slot.generation)
    }

    /// Writes `content`, which starts `within` bytes after the current position, to `offset` of
    /// the buffer.
    pub(crate) fn place(
        &mut self,
        registration: Registration,
        offset: u32,
        within: usize,
        content: &[u8],
    ) {
        let Some((placement, buffers)) = &mut self.target else { return };
        if content.is_empty() || !self.fresh {
            return;
        }
        let Some(slot) = placement.slot(registration) else { return };
        let bytes = content.len() as u32;
        let Some(end) = offset.checked_add(bytes) else { return };
        let start = self.base + within as u32;
        let placed = Placed { start, end: start + bytes, registration, offset };
        let again = offset < slot.from && holds(Rule::Again);
        let mut ranges = self.placed;
        if again || !ranges.push(placed) || !buffers.place(registration, offset, content) {
            return;
        }
        slot.from = slot.from.max(end);
        self.placed_bytes += u64::from(bytes);
        self.placed = ranges;
    }
}

/// Software's table of the tags: registered ones, and those that the device may still write to.
#[derive(Debug, Default)]
pub struct Registrar {
    tags: Vec<Tag>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tag {
    generation: u32,
    use_: Use,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    #[default]
    Free,
    Registered,
    /// The device was asked to withdraw the registration and has not answered.
    Withdrawing,
}

impl Registrar {
    /// A table for tags below `tags_max`; at most [`TAGS_MAX`] tags.
    pub fn new(tags_max: usize) -> Registrar {
        Registrar { tags: vec![Tag::default(); tags_max.min(TAGS_MAX)] }
    }

    /// Creates a registration of `tag`, for the device to [`Placement::add`].
    ///
    /// # Errors
    /// [`PlacementError::Tag`]; [`PlacementError::InUse`] until the device has acknowledged that
    /// the previous registration is withdrawn.
    pub fn register(&mut self, tag: u16) -> Result<Registration, PlacementError> {
        let entry = self.tags.get_mut(usize::from(tag)).ok_or(PlacementError::Tag(tag))?;
        if entry.use_ != Use::Free {
            return Err(PlacementError::InUse(tag));
        }
        entry.generation = entry.generation.wrapping_add(1);
        entry.use_ = Use::Registered;
        Ok(Registration { tag, generation: entry.generation })
    }

    /// Marks a registration that the device was asked to [`Placement::remove`]. The device may
    /// write to its buffer until [`Registrar::acknowledged`].
    ///
    /// # Errors
    /// [`PlacementError::Unknown`].
    pub fn withdraw(&mut self, registration: Registration) -> Result<(), PlacementError> {
        self.change(registration, Use::Registered, Use::Withdrawing)
    }

    /// Frees tag and buffer after the device has removed the registration.
    ///
    /// # Errors
    /// [`PlacementError::Unknown`], also if no withdrawal was in progress.
    pub fn acknowledged(&mut self, registration: Registration) -> Result<(), PlacementError> {
        self.change(registration, Use::Withdrawing, Use::Free)
    }

    fn change(
        &mut self,
        registration: Registration,
        from: Use,
        to: Use,
    ) -> Result<(), PlacementError> {
        let Registration { tag, generation } = registration;
        let entry = self.tags.get_mut(usize::from(tag)).ok_or(PlacementError::Tag(tag))?;
        if entry.use_ != from || entry.generation != generation {
            return Err(PlacementError::Unknown(tag));
        }
        entry.use_ = to;
        Ok(())
    }
}
