//! Safe access to a device: chunks are places of a client, whose memory stays valid for as long as
//! the device may access it.
//!
//! A submitted batch cannot be taken back. So a detached client keeps its memory until its last
//! batch is reported, and a device that does not end keeps it forever.

use std::sync::Arc;

use crate::device::{Batch, Characteristics, Chunk, Device, Progress, Refused};
use crate::space::Reach;

/// A contiguous copy between places of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceCopy {
    /// Destination.
    pub dst: u64,
    /// Source.
    pub src: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A device, and the memory of its batches.
pub struct Unit {
    device: Box<dyn Device + Send>,
    /// Batches that are not reported yet.
    flying: Vec<(Batch, Arc<dyn Reach>)>,
    chunks: Vec<Chunk>,
}

impl Unit {
    /// Wraps an idle device.
    pub fn new(device: Box<dyn Device + Send>) -> Unit {
        Unit { device, flying: Vec::new(), chunks: Vec::new() }
    }

    /// Returns the device's expected performance.
    pub fn characteristics(&self) -> Characteristics {
        self.device.characteristics()
    }

    /// Returns true if no batch is in progress.
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty()
    }

    /// Starts a batch of copies that do not touch each other's destinations. If another party
    /// writes the bytes meanwhile, the result is undefined bytes.
    ///
    /// # Errors
    /// [`Refused`]; nothing is copied then.
    pub fn submit(
        &mut self,
        reach: &Arc<dyn Reach>,
        places: &[PlaceCopy],
    ) -> Result<Batch, Refused> {
        self.chunks.clear();
        for (chunk, place) in places.iter().enumerate() {
            let found = reach.chunk(place.dst, place.src, place.len);
            self.chunks.push(found.ok_or(Refused::Place { chunk })?);
        }
        // SAFETY: the implementer of `Reach` guarantees that the destinations may be overwritten
        // and have no other user while its value lives, and the value is kept until the batch is
        // reported. Only the client, to whom the bytes belong, may write the same bytes meanwhile.
        // That invalidates no reference, and the contents of bytes that change during a copy are
        // undefined.
        let batch = unsafe { self.device.submit(&self.chunks) }?;
        self.flying.push((batch, Arc::clone(reach)));
        Ok(batch)
    }

    /// Returns the state of a batch; a state other than pending is returned once.
    pub fn poll(&mut self, batch: &Batch) -> Progress {
        let progress = self.device.poll(batch);
        if progress != Progress::Pending {
            self.flying.retain(|(known, _)| known != batch);
        }
        progress
    }

    /// See [`Device::stop`].
    pub fn stop(&mut self) -> bool {
        self.device.stop()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if !self.flying.is_empty() && !self.device.stop() {
            // The device may still write there, so the memory is leaked instead of freed.
            self.flying.drain(..).for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Clock, Failing, Model};
    use crate::space::{OwnMemory, Space};

    const UNIT: Characteristics = Characteristics {
        name: "model",
        start_ns: 100,
        bytes_per_us: 1000,
        bytes_min: 1,
        bytes_max: 1 << 20,
        chunks_max: 2,
        depth: 2,
    };

    fn memory() -> Option<(crate::Guard, Arc<OwnMemory>)> {
        match crate::guard::install() {
            // SAFETY: the only copies are those of the tests below, between arrays of their own.
            Ok(guard) => Some((guard, Arc::new(unsafe { OwnMemory::new(guard) }))),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn a_clients_memory_stays_until_its_batch_is_reported() {
        let Some((guard, memory)) = memory() else { return };
        let clock = Clock::default();
        let mut unit = Unit::new(Box::new(Model::new(UNIT, 1, &clock, guard)));
        let (source, mut destination) = ([5u8; 64], [0u8; 64]);
        let (src, dst) = (source.as_ptr().expose_provenance(), destination.as_mut_ptr());
        let dst = dst.expose_provenance();
        let reach = Arc::clone(&memory).reach().unwrap();
        let place = PlaceCopy { dst: dst as u64, src: src as u64, len: 64 };
        let batch = unit.submit(&reach, &[place]).unwrap();
        drop(reach);
        assert_eq!((Arc::strong_count(&memory), unit.is_idle()), (2, false));
        assert_eq!(unit.poll(&batch), Progress::Pending);
        clock.advance_ns(1000);
        assert_eq!(unit.poll(&batch), Progress::Done);
        assert_eq!((Arc::strong_count(&memory), destination), (1, source));
    }

    #[test]
    fn a_device_that_does_not_end_keeps_the_memory() {
        let Some((guard, memory)) = memory() else { return };
        let source = [5u8; 64];
        let src = source.as_ptr().expose_provenance() as u64;
        for (failing, kept) in [(Failing::Stall, 1), (Failing::Late(1 << 40), 2)] {
            let destination = Box::leak(Box::new([0u8; 64]));
            let dst = destination.as_mut_ptr().expose_provenance() as u64;
            let mut model = Model::new(UNIT, 1, &Clock::default(), guard);
            assert!(model.fail(0, failing));
            let mut unit = Unit::new(Box::new(model));
            let reach = Arc::clone(&memory).reach().unwrap();
            unit.submit(&reach, &[PlaceCopy { dst, src, len: 64 }]).unwrap();
            drop((reach, unit));
            assert_eq!(Arc::strong_count(&memory), kept, "{failing:?}");
        }
    }

    #[test]
    fn places_that_are_none_are_refused() {
        let Some((guard, memory)) = memory() else { return };
        let mut unit = Unit::new(Box::new(Model::new(UNIT, 1, &Clock::default(), guard)));
        let reach = memory.reach().unwrap();
        let wraps = PlaceCopy { dst: u64::MAX, src: 0, len: 2 };
        let refused = unit.submit(&reach, &[wraps]);
        assert!(matches!(refused, Err(Refused::Place { chunk: 0 })), "{refused:?}");
        assert!(unit.is_idle());
    }
}
