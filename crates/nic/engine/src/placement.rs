//! Where the device puts data by itself: a map from the tags in PDUs (a command's identifier, or a
//! transfer's tag) to buffers that software has registered (§5.1 of the paper).
//!
//! The bytes stay in the packet as well. What was put is reported with its *destination*, so that
//! software skips the copy exactly where source and destination would be the same: whatever the
//! device believes, a buffer that software did not mean is not taken for filled.
//!
//! # What is never written
//! - A buffer that was withdrawn: a registration is a tag with a generation, and a PDU belongs to
//!   the registration that its header met.
//! - Anything by bytes at or before which the device has seen others of the stream: TCP may have
//!   those, software may have copied them, and their tag may be another command's by now.
//! - Bytes of a buffer at or before which the device has put others.
//! - Bytes beyond the registered length, or any where a header's digest is wrong.
//!
//! With TLS below, a buffer is written before the tag of its record is seen. What is in it is not
//! to be used before software has been given the record. Somebody on the path can then have the
//! device put bytes that TCP refuses into any registered buffer, behind what is placed there. Who
//! minds keeps what was not placed aside, withdraws the registration, has that acknowledged, and
//! copies then: what is reported as placed and was taken by TCP is not written again.

use thiserror::Error;

use crate::rule::{Rule, holds};

/// Most places in one packet whose data is put elsewhere; what is beyond stays in the packet only.
pub const RANGES_MAX: usize = 4;
/// Most tags of a flow: there are no more.
pub const TAGS_MAX: usize = 1 << 16;

/// A buffer's registration: its tag, and which one of that tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registration {
    /// A command's identifier (in C2HData) or a transfer's tag (in H2CData).
    pub tag: u16,
    /// Tells it from every other registration of the tag.
    pub generation: u32,
}

/// Bytes of a packet's payload that were put into a registered buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The first one, from the start of the payload.
    pub start: u32,
    /// Behind the last one.
    pub end: u32,
    /// Whose buffer.
    pub registration: Registration,
    /// Where in the buffer the first one is.
    pub offset: u32,
}

/// What of a packet was placed, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedRanges {
    ranges: [Placed; RANGES_MAX],
    count: u8,
}

impl PlacedRanges {
    /// Nothing.
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

    /// True where nothing was placed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a range behind the others; false where there is no room.
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

    /// What was placed of the payload's bytes from `start` to `end`, counted from `start`.
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

/// The registered buffers, which who owns the memory keeps.
pub trait Buffers {
    /// Writes `bytes` into the buffer of `registration`, from `offset` on, which is within the
    /// length that was registered. False where it cannot: nothing is written then.
    fn place(&mut self, registration: Registration, offset: u32, bytes: &[u8]) -> bool;
}

/// Software's request to register or withdraw a buffer is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// The tag is beyond those that were agreed on.
    #[error("tag {0} is beyond the flow's; use tags below its limit")]
    Tag(u16),
    /// The tag has a buffer: the device may be writing to it.
    #[error(
        "tag {0} is registered; withdraw it, and have that acknowledged, before using it again"
    )]
    InUse(u16),
    /// There is no such registration.
    #[error("tag {0} has no such registration")]
    Unknown(u16),
}

/// What the device knows of a registered buffer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    buffer_bytes: u32,
    /// The buffer's bytes before it are not written any more.
    from: u32,
}

/// The device's map of one flow. It is not part of the flow's dynamic state: its size goes with
/// the depth of the queue.
#[derive(Debug)]
pub struct Placement {
    slots: Vec<Option<Slot>>,
}

impl Placement {
    /// No buffer; tags are below `tags_max`, of which at most [`TAGS_MAX`] count.
    pub fn new(tags_max: usize) -> Placement {
        Placement { slots: vec![None; tags_max.min(TAGS_MAX)] }
    }

    /// Data for the tag goes to a buffer of `buffer_bytes` from now on (`l5o_add_rr_state`).
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

    /// Nothing is written to the buffer any more once this returns (`l5o_del_rr_state`).
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

/// Places data of one packet after the other, and keeps what it has placed of the current one.
pub struct Placer<'p> {
    target: Option<(&'p mut Placement, &'p mut dyn Buffers)>,
    /// Nothing of the stream at or behind the packet's bytes was seen before.
    fresh: bool,
    /// Where in the payload what is worked on begins: a part of the stream, and bytes in it.
    origin: u32,
    base: u32,
    placed_bytes: u64,
    placed: PlacedRanges,
}

impl<'p> Placer<'p> {
    /// Places nothing.
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

    /// Places into `buffers` what `placement` knows.
    pub fn new(placement: &'p mut Placement, buffers: &'p mut dyn Buffers) -> Placer<'p> {
        Placer { target: Some((placement, buffers)), ..Placer::none() }
    }

    /// What was placed of the packet before this call.
    pub fn take(&mut self) -> PlacedRanges {
        std::mem::take(&mut self.placed)
    }

    /// A packet begins.
    pub(crate) fn packet(&mut self, fresh: bool) {
        self.fresh = fresh || !holds(Rule::Fresh);
        self.origin = 0;
        self.placed = PlacedRanges::NONE;
    }

    /// What is called payload next is `origin` bytes behind the start of the packet's.
    pub(crate) fn part(&mut self, origin: usize) {
        self.origin = origin as u32;
    }

    /// The bytes that come next are `base` bytes behind the start of the payload.
    pub(crate) fn turn_to(&mut self, base: usize) {
        self.base = self.origin + base as u32;
    }

    /// What was put into buffers is worthless, and software is told nothing of it.
    pub(crate) fn forget(&mut self) {
        self.placed = PlacedRanges::NONE;
    }

    /// Bytes that were placed, ever.
    pub fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    /// The generation of the registration of `tag`, for `data_bytes` of data that belong `offset` bytes behind the
    /// start of its buffer. Nothing where there is none, or the data is out of its bounds.
    pub(crate) fn resolve(&self, tag: u16, offset: u32, data_bytes: u32) -> Option<u32> {
        let (placement, _) = self.target.as_ref()?;
        let slot = placement.slots.get(usize::from(tag))?.as_ref()?;
        let end = offset.checked_add(data_bytes)?;
        let inside = end <= slot.buffer_bytes || !holds(Rule::Bounds);
        inside.then_some(slot.generation)
    }

    /// Puts `bytes`, which are `within` bytes behind the start of those at hand, to `offset` of
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

/// Software's side of the tags: which are registered, and which may still be written to.
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
    /// The device has been told, and has not answered yet.
    Withdrawing,
}

impl Registrar {
    /// Tags are below `tags_max`, of which at most [`TAGS_MAX`] count.
    pub fn new(tags_max: usize) -> Registrar {
        Registrar { tags: vec![Tag::default(); tags_max.min(TAGS_MAX)] }
    }

    /// A new registration of `tag`, for the device to [`Placement::add`].
    ///
    /// # Errors
    /// [`PlacementError::Tag`]; [`PlacementError::InUse`] until the device has acknowledged that
    /// the one before is withdrawn.
    pub fn register(&mut self, tag: u16) -> Result<Registration, PlacementError> {
        let entry = self.tags.get_mut(usize::from(tag)).ok_or(PlacementError::Tag(tag))?;
        if entry.use_ != Use::Free {
            return Err(PlacementError::InUse(tag));
        }
        entry.generation = entry.generation.wrapping_add(1);
        entry.use_ = Use::Registered;
        Ok(Registration { tag, generation: entry.generation })
    }

    /// The device is being told to [`Placement::remove`] the registration. Its buffer is the
    /// device's until [`Registrar::acknowledged`].
    ///
    /// # Errors
    /// [`PlacementError::Unknown`].
    pub fn withdraw(&mut self, registration: Registration) -> Result<(), PlacementError> {
        self.change(registration, Use::Registered, Use::Withdrawing)
    }

    /// The device has removed the registration: tag and buffer are free.
    ///
    /// # Errors
    /// [`PlacementError::Unknown`], also where it was not being withdrawn.
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
