//! Groups of clients that share a weight, and the share of a client.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use unlade_copy_scheduler::share::{GroupId, Membership, WEIGHT_DEFAULT, WEIGHT_MAX};

#[derive(Debug)]
struct GroupState {
    id: GroupId,
    weight: AtomicU32,
}

/// Clients that share a weight. It lasts as long as one of its handles or clients.
#[derive(Clone, Debug)]
pub struct Group(Arc<GroupState>);

impl Group {
    pub(crate) fn new(id: GroupId, weight: u32) -> Group {
        Group(Arc::new(GroupState { id, weight: AtomicU32::new(clamp(weight)) }))
    }

    /// Returns the weight among the groups of the service.
    #[inline]
    pub fn weight(&self) -> u32 {
        self.0.weight.load(Ordering::Relaxed)
    }

    /// Changes the weight, 1 to [`WEIGHT_MAX`]; other values become the nearest of these. It counts
    /// from the next turn of a client of the group on.
    pub fn set_weight(&self, weight: u32) {
        self.0.weight.store(clamp(weight), Ordering::Relaxed);
    }
}

fn clamp(weight: u32) -> u32 {
    weight.clamp(1, WEIGHT_MAX)
}

/// Share of a client.
#[derive(Clone, Debug)]
pub struct Share {
    /// Group of the client.
    pub group: Group,
    /// Weight among the clients of the group, 1 to [`WEIGHT_MAX`]; other values become the nearest
    /// of these. See [`Membership::weight`].
    pub weight: u32,
}

impl Share {
    /// The whole share of a group, or an equal part of it beside other clients.
    pub fn whole(group: Group) -> Share {
        Share { group, weight: WEIGHT_DEFAULT }
    }

    fn membership(&self) -> Membership {
        let (group, group_weight) = (self.group.0.id, self.group.weight());
        Membership { group, group_weight, weight: clamp(self.weight) }
    }
}

/// Share of a client that its attachment changes and its thread reads.
#[derive(Debug)]
pub(crate) struct SharedShare {
    share: Mutex<Share>,
    /// Number of changes.
    version: AtomicU32,
}

impl SharedShare {
    pub fn new(share: Share) -> SharedShare {
        SharedShare { share: Mutex::new(share), version: AtomicU32::new(0) }
    }

    pub fn get(&self) -> Share {
        self.share.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, share: Share) {
        *self.share.lock().unwrap_or_else(PoisonError::into_inner) = share;
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The thread's copy of a client's share.
#[derive(Debug)]
pub(crate) struct KnownShare {
    share: Share,
    version: u32,
    /// Value that the scheduler has.
    pub membership: Membership,
}

impl KnownShare {
    pub fn read(shared: &SharedShare) -> KnownShare {
        // A change after the load of the version is read again.
        let version = shared.version.load(Ordering::Acquire);
        let share = shared.get();
        let membership = share.membership();
        KnownShare { share, version, membership }
    }

    /// Reads the share again; returns its new value if the scheduler has another one.
    pub fn refresh(&mut self, shared: &SharedShare) -> Option<Membership> {
        if shared.version.load(Ordering::Acquire) != self.version {
            let before = self.membership;
            *self = KnownShare { membership: before, ..KnownShare::read(shared) };
        }
        let membership = self.share.membership();
        (std::mem::replace(&mut self.membership, membership) != membership).then_some(membership)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_is_told_each_change_once() {
        let group = Group::new(GroupId(1), 200);
        let shared = SharedShare::new(Share::whole(group.clone()));
        let mut known = KnownShare::read(&shared);
        assert_eq!(known.membership.group_weight, 200);
        assert_eq!(known.refresh(&shared), None);
        group.set_weight(0);
        let expected = Membership { group: GroupId(1), group_weight: 1, weight: WEIGHT_DEFAULT };
        assert_eq!((known.refresh(&shared), known.refresh(&shared)), (Some(expected), None));
        let other = Group::new(GroupId(2), WEIGHT_MAX + 1);
        shared.set(Share { group: other, weight: 0 });
        let expected = Membership { group: GroupId(2), group_weight: WEIGHT_MAX, weight: 1 };
        assert_eq!((known.refresh(&shared), known.refresh(&shared)), (Some(expected), None));
        // The old group does not count any more.
        group.set_weight(7);
        assert_eq!(known.refresh(&shared), None);
    }
}
