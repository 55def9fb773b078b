//! Host buffers that the device writes into: registered under a command's identifier, and
//! returned when they are withdrawn.
//!
//! The owner of a buffer is the side that may write to it. Registration moves it to the device,
//! through the send ring; withdrawal moves it back, through a separate ring. Therefore no host
//! code reads a buffer that the device still writes, and an identifier is not reused before the
//! device has released it.

use unlade_nic_engine::placement::{Buffers, Placement, Placer, Registration};

use crate::flow_id::FlowId;

/// Largest number of buffers that the device has of one host queue.
pub const BUFFERS_MAX: usize = 1024;
/// Identifiers of a flow are below this number.
pub const TAGS_MAX: usize = 1024;

/// A buffer that the device has returned.
#[derive(Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// Its flow.
    pub flow: FlowId,
    /// Its registration, which is no longer valid.
    pub registration: Registration,
    /// The buffer.
    pub buffer: Box<[u8]>,
}

/// The registered buffers of one flow.
pub struct Registered {
    placement: Placement,
    memory: Memory,
}

impl Default for Registered {
    fn default() -> Registered {
        Registered { placement: Placement::new(TAGS_MAX), memory: Memory::default() }
    }
}

impl Registered {
    /// Registers `buffer` for data of the registration's tag.
    ///
    /// # Errors
    /// The buffer, if the tag has one already, or is out of bounds.
    pub fn add(&mut self, registration: Registration, buffer: Box<[u8]>) -> Result<(), Box<[u8]>> {
        let Ok(buffer_bytes) = u32::try_from(buffer.len()) else { return Err(buffer) };
        if self.placement.add(registration, buffer_bytes).is_err() {
            return Err(buffer);
        }
        let index = usize::from(registration.tag);
        if self.memory.slots.len() <= index {
            self.memory.slots.resize_with(index + 1, || None);
        }
        self.memory.slots[index] = Some((registration, buffer));
        Ok(())
    }

    /// Removes a registration and returns its buffer; `None` if there is no such registration.
    pub fn remove(&mut self, registration: Registration) -> Option<Box<[u8]>> {
        self.placement.remove(registration).ok()?;
        let slot = self.memory.slots.get_mut(usize::from(registration.tag))?;
        slot.take().map(|(_, buffer)| buffer)
    }

    /// Removes all of them.
    pub fn drain(&mut self) -> impl Iterator<Item = (Registration, Box<[u8]>)> {
        self.placement = Placement::new(TAGS_MAX);
        self.memory.slots.drain(..).flatten()
    }

    /// The placer that writes into them.
    pub fn placer(&mut self) -> Placer<'_> {
        Placer::new(&mut self.placement, &mut self.memory)
    }
}

#[derive(Default)]
struct Memory {
    /// Indexed by tag.
    slots: Vec<Option<(Registration, Box<[u8]>)>>,
}

impl Buffers for Memory {
    fn place(&mut self, registration: Registration, offset: u32, raw: &[u8]) -> bool {
        let slot = self.slots.get_mut(usize::from(registration.tag)).and_then(Option::as_mut);
        let Some((_, buffer)) = slot.filter(|(found, _)| *found == registration) else {
            return false;
        };
        let place = buffer.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..raw.len()));
        let Some(place) = place else { return false };
        place.copy_from_slice(raw);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_belongs_to_its_registration_only_and_comes_back_once() {
        let mut registered = Registered::default();
        let first = Registration { tag: 3, generation: 1 };
        let second = Registration { tag: 3, generation: 2 };
        registered.add(first, vec![0; 4].into()).unwrap();
        assert_eq!(registered.add(second, vec![9; 2].into()), Err(vec![9; 2].into()));
        let beyond = Registration { tag: TAGS_MAX as u16, generation: 1 };
        assert!(registered.add(beyond, vec![1].into()).is_err());
        assert!(!registered.memory.place(second, 0, b"x"));
        assert!(!registered.memory.place(first, 3, b"xy"));
        assert!(!registered.memory.place(first, u32::MAX, b"x"));
        assert!(registered.memory.place(first, 2, b"xy"));
        assert_eq!(registered.remove(second), None);
        assert_eq!(registered.remove(first), Some(b"\0\0xy".to_vec().into()));
        assert_eq!(registered.remove(first), None);
        registered.add(second, vec![7; 1].into()).unwrap();
        let left: Vec<_> = registered.drain().collect();
        assert_eq!(left, [(second, vec![7; 1].into())]);
        registered.add(first, vec![0; 1].into()).unwrap();
    }
}
