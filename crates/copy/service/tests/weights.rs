//! Clients that demand more than the service can copy share it by weight.

use std::sync::{Arc, Mutex, PoisonError};

use unlade_copy_kernels::{Fault, Hint, Space};
use unlade_copy_service::{Attachment, Config, Service};
use unlade_shm::{Flags, Task};

/// A space that copies nothing and records the client of each copy.
struct Noted {
    client: usize,
    notes: Arc<Mutex<Vec<(usize, u64)>>>,
}

impl Space for Noted {
    fn place(&self, _region: u16, offset: u64, _len: u64) -> Option<u64> {
        Some(offset)
    }

    fn copy(&self, _dst: u64, _src: u64, len: u64) -> Result<(), Fault> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push((self.client, len));
        Ok(())
    }
}

/// Two clients copy equally many bytes, and have these weights; `change` is called before the second
/// copy. Returns the bytes of the second client while the first one copied, and those of a client.
fn shared_out(weights: [u32; 2], change: impl FnOnce(&[Attachment])) -> (u64, u64) {
    const TASKS: u64 = 256;
    const TASK_BYTES: u32 = 16 << 10;
    let config = Config { slice_bytes: 64 << 10, ..Config::default() };
    let service = Service::start(config).unwrap();
    let notes = Arc::new(Mutex::new(Vec::new()));
    // The first copy of either client waits until both have filled their queues.
    let gate = notes.lock().unwrap();
    let clients: Vec<_> = weights
        .into_iter()
        .enumerate()
        .map(|(client, weight)| {
            let space = Noted { client, notes: Arc::clone(&notes) };
            let attachment = service.attach(Arc::new(space), weight).unwrap();
            for number in 0..TASKS {
                let ticket = attachment.queue().try_acquire().unwrap();
                let at = number << 20;
                attachment.queue().publish(ticket, &Task::copy(at, 1 << 40 | at, TASK_BYTES));
            }
            attachment.ring();
            attachment
        })
        .collect();
    change(&clients);
    drop(gate);
    for attachment in &clients {
        let last = attachment.queue().progress(unlade_shm::Ticket(TASKS - 1));
        while !last.is_done(1) {
            std::thread::yield_now();
        }
    }
    let notes = notes.lock().unwrap();
    let last = notes.iter().rposition(|(client, _)| *client == 0).unwrap();
    let of_other = notes[..last].iter().filter(|(client, _)| *client == 1).map(|n| n.1).sum();
    (of_other, TASKS * u64::from(TASK_BYTES))
}

#[test]
fn bytes_are_shared_out_by_weight() {
    let (of_other, all) = shared_out([300, 100], |_| {});
    // A third, except for a slice or two at either end.
    assert!((all / 4..all / 12 * 5).contains(&of_other), "{of_other} of {all}");
}

#[test]
fn a_new_weight_counts_for_a_served_client() {
    let (of_other, all) = shared_out([100, 100], |clients| {
        clients[0].set_weight(900);
        clients[1].set_weight(0);
        clients[1].set_weight(100);
    });
    // A ninth, except for a slice or two at either end; with equal weights nearly all.
    assert!((all / 18..all / 4).contains(&of_other), "{of_other} of {all}");
}

/// A space that copies nothing and records the cache hint of each copy.
#[derive(Default)]
struct Hints(Mutex<Vec<Hint>>);

impl Space for Hints {
    fn place(&self, _region: u16, offset: u64, _len: u64) -> Option<u64> {
        Some(offset)
    }

    fn copy(&self, _dst: u64, _src: u64, _len: u64) -> Result<(), Fault> {
        Ok(())
    }

    fn copy_part(&self, _dst: u64, _src: u64, _len: u64, hint: Hint) -> Result<(), Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(hint);
        Ok(())
    }
}

#[test]
fn a_task_of_a_long_copy_goes_past_the_caches() {
    let service = Service::start(Config::default()).unwrap();
    for (flags, expected) in [(Flags::default(), Hint::Reuse), (Flags::STREAMS, Hint::Stream)] {
        let hints = Arc::new(Hints::default());
        let attachment = service.attach(Arc::clone(&hints) as _, 1).unwrap();
        let ticket = attachment.queue().try_acquire().unwrap();
        let task = Task { flags, ..Task::copy(1 << 20, 1 << 40, 64 << 10) };
        attachment.queue().publish(ticket, &task);
        attachment.ring();
        while !attachment.queue().progress(ticket).is_done(task.bits()) {
            std::thread::yield_now();
        }
        let hints = hints.0.lock().unwrap();
        assert!(!hints.is_empty() && hints.iter().all(|hint| *hint == expected), "{hints:?}");
    }
}
