//! Clients and groups that demand more than the service can copy share it by weight.

use std::sync::{Arc, Mutex, PoisonError};

use unlade_copy_kernels::{Fault, Hint, Space};
use unlade_copy_service::{Attachment, Config, Service, Share};
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

const TASKS: u64 = 256;
const TASK_BYTES: u32 = 16 << 10;
/// Bytes of a client.
const ALL: u64 = TASKS * TASK_BYTES as u64;

/// Clients with these shares copy [`ALL`] bytes each; `change` is called before the second copy.
/// Returns the bytes of each client while the first one copied.
fn shared_out(
    shares: impl FnOnce(&Service) -> Vec<Share>,
    change: impl FnOnce(&Service, &[Attachment]),
) -> Vec<u64> {
    let config = Config { slice_bytes: 64 << 10, ..Config::default() };
    let service = Service::start(config).unwrap();
    let notes = Arc::new(Mutex::new(Vec::new()));
    // The first copy waits until all clients have filled their queues.
    let gate = notes.lock().unwrap();
    let clients: Vec<_> = shares(&service)
        .into_iter()
        .enumerate()
        .map(|(client, share)| {
            let space = Noted { client, notes: Arc::clone(&notes) };
            let attachment = service.attach_to(Arc::new(space), share).unwrap();
            for number in 0..TASKS {
                let ticket = attachment.queue().try_acquire().unwrap();
                let at = number << 20;
                attachment.queue().publish(ticket, &Task::copy(at, 1 << 40 | at, TASK_BYTES));
            }
            attachment.ring();
            attachment
        })
        .collect();
    change(&service, &clients);
    drop(gate);
    for attachment in &clients {
        let last = attachment.queue().progress(unlade_shm::Ticket(TASKS - 1));
        while !last.is_done(1) {
            std::thread::yield_now();
        }
    }
    let notes = notes.lock().unwrap();
    let last = notes.iter().rposition(|(client, _)| *client == 0).unwrap();
    let mut bytes = vec![0; clients.len()];
    notes[..last].iter().for_each(|(client, len)| bytes[*client] += len);
    bytes
}

/// Shares of clients that are groups of their own.
fn alone(weights: [u32; 2]) -> impl FnOnce(&Service) -> Vec<Share> {
    move |service| weights.map(|weight| Share::whole(service.group(weight))).into()
}

/// Shares of one client of a group, and of three of another one, of groups with these weights.
fn one_and_three(weights: [u32; 2]) -> impl FnOnce(&Service) -> Vec<Share> {
    move |service| {
        let groups = weights.map(|weight| service.group(weight));
        [0, 1, 1, 1].map(|at: usize| Share::whole(groups[at].clone())).into()
    }
}

/// The bytes are these, except for some slices at either end.
#[track_caller]
fn are_about(bytes: u64, expected: u64) {
    assert!((expected / 2..expected / 2 * 3).contains(&bytes), "{bytes} for {expected}");
}

#[test]
fn bytes_are_shared_out_by_weight() {
    let of_other = shared_out(alone([300, 100]), |_, _| {})[1];
    // A third, except for a slice or two at either end.
    assert!((ALL / 4..ALL / 12 * 5).contains(&of_other), "{of_other} of {ALL}");
}

#[test]
fn a_new_weight_counts_for_a_served_client() {
    let of_other = shared_out(alone([100, 100]), |_, clients| {
        clients[0].set_weight(900);
        clients[1].set_weight(0);
        clients[1].set_weight(100);
    })[1];
    // A ninth, except for a slice or two at either end; with equal weights nearly all.
    assert!((ALL / 18..ALL / 4).contains(&of_other), "{of_other} of {ALL}");
}

#[test]
fn clients_of_a_group_share_its_share() {
    for (weights, of_group) in [([100, 100], ALL), ([300, 100], ALL / 3)] {
        let bytes = shared_out(one_and_three(weights), |_, _| {});
        bytes[1..].iter().for_each(|bytes| are_about(*bytes, of_group / 3));
    }
}

#[test]
fn a_client_that_moves_to_another_group_has_a_share_of_that() {
    // One of the three becomes a group of its own.
    let change = |service: &Service, clients: &[Attachment]| {
        clients[1].set_share(Share::whole(service.group(100)));
    };
    let bytes = shared_out(one_and_three([200, 100]), change);
    [ALL / 2, ALL / 4, ALL / 4].iter().zip(&bytes[1..]).for_each(|(due, it)| are_about(*it, *due));
}

#[test]
fn a_client_of_less_weight_has_less_also_alone_in_its_group() {
    let quarter = |service: &Service| {
        let own = Share::whole(service.group(100));
        vec![own, Share { group: service.group(200), weight: 25 }]
    };
    are_about(shared_out(quarter, |_, _| {})[1], ALL / 2);
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
