//! Buffers of the host that the device writes into: registered under a command's identifier, and given
//! back when they are withdrawn.
//!
//! A buffer is owned by who may write to it. To register it moves it to the device, through the send
//! ring; to withdraw it moves it back, through a ring of its own. So nobody reads what the device still
//! writes, and an identifier is not used again before the device has let go.

use unlade_nic_engine::placement::{Buffers, Placement, Placer, Registration};

use crate::flow::FlowId;

/// Most buffers that the device has of one host's queue.
pub const BUFFERS_MAX: usize = 1024;
/// Identifiers of a flow are below it.
pub const TAGS_MAX: usize = 1024;

/// A buffer that the device has given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// Whose it was.
    pub flow: FlowId,
    /// Its registration, which is void.
    pub registration: Registration,
    /// The buffer.
    pub buffer: Box<[u8]>,
}

/// The buffers of one flow that the device has.
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
    /// Data for the registration's tag goes to `buffer` from now on.
    ///
    /// # Errors
    /// The buffer, where the tag has one already, or is out of bounds.
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

    /// Nothing is written to it any more; nothing where there is no such registration.
    pub fn remove(&mut self, registration: Registration) -> Option<Box<[u8]>> {
        self.placement.remove(registration).ok()?;
        let slot = self.memory.slots.get_mut(usize::from(registration.tag))?;
        slot.take().map(|(_, buffer)| buffer)
    }

    /// All of them.
    pub fn drain(&mut self) -> impl Iterator<Item = (Registration, Box<[u8]>)> {
        self.placement = Placement::new(TAGS_MAX);
        self.memory.slots.drain(..).flatten()
    }

    /// Places into them.
    pub fn placer(&mut self) -> Placer<'_> {
        Placer::new(&mut self.placement, &mut self.memory)
    }
}

#[derive(Default)]
struct Memory {
    /// By tag.
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
