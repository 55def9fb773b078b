//! Copies in preemptible steps: a client with new work waits for one step at most, independent of
//! the segment size of other clients' tasks.

use unlade_copy_scheduler::plan::Order;

use crate::client::{Client, InterruptedCopy};
use crate::error::TaskFailure;
use crate::trace;

/// Bytes of a step: its copy costs about as much as twenty polls of the other clients' queues.
const STEP_BYTES: u64 = 8 << 10;

impl Client {
    /// Copies an order, or a part of it if `others` have work. Returns the number of copied bytes.
    pub(crate) fn copy_unless(&mut self, order: Order, others: &impl Fn() -> bool) -> u64 {
        self.prepare(&order);
        self.go_on_unless(InterruptedCopy { order, chunk: 0, chunk_bytes: 0, bytes: 0 }, others)
    }

    /// Continues an interrupted copy.
    pub(crate) fn go_on_copying(&mut self, others: &impl Fn() -> bool) -> u64 {
        let unfinished = self.unfinished.take();
        unfinished.map_or(0, |unfinished| self.go_on_unless(*unfinished, others))
    }

    /// Copies at least one step.
    fn go_on_unless(&mut self, mut at: InterruptedCopy, others: &impl Fn() -> bool) -> u64 {
        let before = at.bytes;
        let mut failure = None;
        let hint = self.hint_of(at.order.ticket);
        while let Some(chunk) = at.order.chunks.get(at.chunk) {
            let len = (chunk.len - at.chunk_bytes).min(STEP_BYTES);
            let (dst, src) = (chunk.dst + at.chunk_bytes, chunk.src + at.chunk_bytes);
            if let Err(fault) = self.space.copy_part(dst, src, len, hint) {
                tracing::debug!(ticket = at.order.ticket.0, %fault, "a copy failed");
                failure = Some(TaskFailure::BadAddress);
                break;
            }
            at.bytes += len;
            at.chunk_bytes += len;
            if at.chunk_bytes == chunk.len {
                (at.chunk, at.chunk_bytes) = (at.chunk + 1, 0);
            }
            if at.chunk < at.order.chunks.len() && others() {
                let bytes = at.bytes - before;
                self.count_copied(&at.order, bytes);
                self.unfinished = Some(Box::new(at));
                return bytes;
            }
        }
        let bytes = at.bytes - before;
        self.count_copied(&at.order, bytes);
        trace::done(&at.order, at.bytes, failure);
        self.finish(at.order, failure);
        bytes
    }

    /// Completes an interrupted copy: no other thread can, and the end of the service is no reason
    /// for a copy to fail.
    pub(crate) fn finish_copying(&mut self) {
        self.go_on_copying(&|| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Turn;
    use crate::counters::Counters;
    use crate::units::{Devices, Engine};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use unlade_copy_kernels::Regions;
    use unlade_copy_scheduler::Micros;
    use unlade_shm::{Arena, Memory, Queue, Task, Ticket};

    const BYTES: u64 = 1 << 20;

    struct World {
        queue: Queue,
        ticket: Ticket,
        file: File,
        client: Client,
        engine: Engine,
    }

    impl World {
        /// Creates a client with one task, from the first to the second half of its memory. `None`
        /// if bad addresses cannot be caught here.
        fn new() -> Option<World> {
            let guard = unlade_copy_kernels::guard::install().ok()?;
            let arena = Arena::create("queue", Queue::bytes_for(16).unwrap()).unwrap();
            let other = Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap();
            let queue = Queue::create(Memory::from(arena), 16).unwrap();
            let served = Queue::attach(Memory::from(other)).unwrap();
            let region = Arena::create("region", 2 * BYTES as usize).unwrap();
            let file = File::from(region.fd().try_clone_to_owned().unwrap());
            let source: Vec<u8> = (0..BYTES).map(|at| (at ^ at >> 8) as u8).collect();
            file.write_all_at(&source, 0).unwrap();
            let regions = Regions::new(guard, 1, 2 * BYTES);
            regions.add(1, 2 * BYTES, region.fd().try_clone_to_owned().unwrap()).unwrap();
            let counters = Arc::<Counters>::default();
            let client = Client::new(Arc::new(served), Arc::new(regions), counters, None);
            let ticket = queue.try_acquire().unwrap();
            let copy = Task::copy(BYTES, 0, BYTES as u32);
            queue.publish(ticket, &Task { dst_region: 1, src_region: 1, ..copy });
            let engine = Engine::new(&Devices::none(), 0);
            Some(World { queue, ticket, file, client, engine })
        }

        fn turn(&mut self, others: bool) -> (u64, Turn) {
            self.client.intake(Micros(0));
            self.client.turn(|| Micros(0), &mut self.engine, BYTES, 16 << 10, || others)
        }
    }

    #[test]
    fn others_wait_for_a_step_and_nothing_is_lost() {
        let Some(mut world) = World::new() else { return println!("skipped: no guard here") };
        for _ in 0..BYTES / STEP_BYTES {
            assert!(!world.queue.progress(world.ticket).is_done(u32::MAX));
            assert_eq!(world.turn(true), (STEP_BYTES, Turn::More));
        }
        assert!(world.queue.progress(world.ticket).is_done(u32::MAX));
        let mut bytes = [vec![0; BYTES as usize], vec![0; BYTES as usize]];
        bytes
            .iter_mut()
            .zip([0, BYTES])
            .for_each(|(b, at)| world.file.read_exact_at(b, at).unwrap());
        assert!(bytes[0] == bytes[1]);
        assert_eq!(world.turn(false), (0, Turn::Idle));
    }

    #[test]
    fn without_others_a_turn_is_a_slice() {
        let Some(mut world) = World::new() else { return println!("skipped: no guard here") };
        assert_eq!(world.turn(true), (STEP_BYTES, Turn::More));
        let (bytes, _) = world.turn(false);
        assert_eq!(bytes, BYTES - STEP_BYTES);
        assert!(world.queue.progress(world.ticket).is_done(u32::MAX));
    }

    #[test]
    fn what_others_came_between_is_finished_when_the_service_ends() {
        let Some(mut world) = World::new() else { return println!("skipped: no guard here") };
        assert_eq!(world.turn(true), (STEP_BYTES, Turn::More));
        world.client.cancel(&mut world.engine, 16 << 10);
        let progress = world.queue.progress(world.ticket);
        assert_eq!((progress.done(), progress.error()), (1, None));
        let segment_bytes = (BYTES / 32) as usize;
        let mut bytes = [vec![0; segment_bytes], vec![0; segment_bytes]];
        bytes
            .iter_mut()
            .zip([0, BYTES])
            .for_each(|(b, at)| world.file.read_exact_at(b, at).unwrap());
        assert!(bytes[0] == bytes[1]);
    }
}
