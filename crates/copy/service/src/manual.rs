//! A client in another process that the caller serves, one turn at a time, without thread or
//! clock. Tests and fuzz targets use it to replay a client's writes.

use std::sync::Arc;

use unlade_copy_kernels::Space;
use unlade_copy_scheduler::Micros;
use unlade_shm::Queue;

use crate::client::{Client, Turn};
use crate::counters::{Counters, Counts};
use crate::units::{Devices, Engine};

/// A client that is served by calls; see the [module](self).
pub struct Manual {
    client: Client,
    engine: Engine,
    counters: Arc<Counters>,
}

/// State of the remaining work after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// There may be more work at once.
    More,
    /// The remaining tasks wait for the client, or for a time.
    Waiting,
    /// No work is left.
    Nothing,
}

impl Manual {
    /// Serves a queue that a client made, with its bytes in `space`. Bad addresses are caught only
    /// in threads that have called [`unlade_copy_kernels::guard::unblock`].
    pub fn new(queue: Queue, space: Arc<dyn Space>) -> Manual {
        let counters = Arc::<Counters>::default();
        let keep_alive = Arc::new(());
        let client = Client::new(Arc::new(queue), space, Arc::clone(&counters), Some(keep_alive));
        client.announce_awake();
        let engine = Engine::new(&Devices::none(), 0);
        Manual { client, engine, counters }
    }

    /// Accepts new lines and requests, and works for about `slice_bytes`, in runs of about
    /// `run_bytes`.
    pub fn turn(&mut self, now: Micros, slice_bytes: u64, run_bytes: u64) -> Remaining {
        self.client.intake(now);
        match self.client.turn(|| now, &mut self.engine, slice_bytes, run_bytes, || false) {
            (_, Turn::More) => Remaining::More,
            (0, Turn::Idle) if !self.client.has_news() => Remaining::Nothing,
            (0, _) => Remaining::Waiting,
            (_, Turn::Wait | Turn::Later(_) | Turn::Idle) => Remaining::More,
        }
    }

    /// Announces sleep to the client, and polls once more. Returns true if there was news.
    pub fn doze(&self) -> bool {
        self.client.announce_sleep();
        let has_news = self.client.has_news();
        self.client.announce_awake();
        has_news
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }
}

impl std::fmt::Debug for Manual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manual").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use unlade_copy_kernels::Regions;
    use unlade_shm::{Arena, Memory, Task};

    #[test]
    fn a_copy_is_made_when_its_turn_is_called() {
        let Ok(guard) = unlade_copy_kernels::guard::install() else {
            println!("skipped: bad addresses cannot be caught here");
            return;
        };
        let arena = Arena::create("manual", Queue::bytes_for(16).unwrap()).unwrap();
        let other = Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap();
        let queue = Queue::create(Memory::from(arena), 16).unwrap();
        let served = Queue::attach(Memory::from(other)).unwrap();
        let region = Arena::create("region", 4096).unwrap();
        let file = std::fs::File::from(region.fd().try_clone_to_owned().unwrap());
        file.write_all_at(b"hello", 100).unwrap();
        let regions = Regions::new(guard, 1, 4096);
        regions.add(1, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        let mut manual = Manual::new(served, Arc::new(regions));
        assert_eq!(manual.turn(Micros(0), 1 << 20, 1 << 20), Remaining::Nothing);
        let ticket = queue.try_acquire().unwrap();
        queue.publish(ticket, &Task { dst_region: 1, src_region: 1, ..Task::copy(200, 100, 5) });
        assert!(manual.doze());
        assert_eq!(manual.turn(Micros(1), 1 << 20, 1 << 20), Remaining::More);
        assert_eq!(manual.turn(Micros(1), 1 << 20, 1 << 20), Remaining::Nothing);
        assert!(queue.progress(ticket).is_done(1) && !manual.doze());
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 200).unwrap();
        assert_eq!((&bytes, manual.counts().copied_bytes), (b"hello", 5));
    }
}
