//! Names of offloaded connections that have ended. The kernel has their records in the clear:
//! payload that it still sends under such a name is dropped.
//!
//! A name takes no place of a living connection, and is kept until the kernel cannot have anything
//! to send:
//! - where the owner of the socket has seen that all is acknowledged ([`Kept::Spent`]), until the
//!   frames that were on their way to the device have arrived;
//! - else ([`Kept::Quiet`]) until the kernel has been silent for longer than it ever is between two
//!   retransmissions. An acknowledgement on the wire does not shorten that: the kernel may have
//!   refused it.
//!
//! A connection that the kernel opens under the same name ends this at once.

use std::collections::{HashMap, VecDeque};

use unlade_net::FlowKey;

/// Most names that are kept. Where there are so many, ended connections keep their places.
pub const ENDED_MAX: usize = 262_144;
/// How long the name of a connection is kept that has nothing left to send.
pub const SPENT_MS: u64 = 1_000;
/// How long the kernel has to be silent about another one: twice the longest time between two
/// retransmissions (120 s, `TCP_RTO_MAX`), and some.
pub const QUIET_MS: u64 = 300_000;

/// For how long a name is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing is left to send: [`SPENT_MS`].
    Spent,
    /// The kernel may have something left to send: [`QUIET_MS`].
    Quiet,
}

impl Kept {
    fn silence_ms(self) -> u64 {
        match self {
            Kept::Spent => SPENT_MS,
            Kept::Quiet => QUIET_MS,
        }
    }
}

struct Name {
    /// When the kernel was last heard.
    heard_ms: u64,
    /// Tells its place in the queue from one of an earlier connection of that name.
    id: u64,
}

/// A name's turn to be looked at.
struct Turn {
    due_ms: u64,
    name: FlowKey,
    id: u64,
}

/// The names.
#[derive(Default)]
pub struct Ended {
    names: HashMap<FlowKey, Name>,
    /// One queue for each [`Kept`], so that each is in the order of time.
    spent: VecDeque<Turn>,
    quiet: VecDeque<Turn>,
    next_id: u64,
}

impl Ended {
    /// How many names are kept.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// None is kept.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Keeps the name of a connection that was last heard at `heard_ms`. False where there are too
    /// many names.
    pub fn insert(&mut self, heard_ms: u64, name: FlowKey, kept: Kept) -> bool {
        if self.names.len() >= ENDED_MAX {
            return false;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.names.insert(name, Name { heard_ms, id });
        let turn = Turn { due_ms: heard_ms + kept.silence_ms(), name, id };
        self.queue(kept).push_back(turn);
        true
    }

    fn queue(&mut self, kept: Kept) -> &mut VecDeque<Turn> {
        match kept {
            Kept::Spent => &mut self.spent,
            Kept::Quiet => &mut self.quiet,
        }
    }

    /// The kernel sends under this name; true where it is kept.
    pub fn hear(&mut self, now_ms: u64, name: &FlowKey) -> bool {
        let kept = self.names.get_mut(name);
        kept.map(|name| name.heard_ms = now_ms).is_some()
    }

    /// The name belongs to another connection now.
    pub fn forget(&mut self, name: &FlowKey) {
        self.names.remove(name);
    }

    /// Forgets the names whose time is over; all that the kernel sent before `seen_ms` was heard.
    pub fn sweep(&mut self, seen_ms: u64) {
        for kept in [Kept::Spent, Kept::Quiet] {
            while let Some(turn) = self.queue(kept).front()
                && turn.due_ms <= seen_ms
            {
                let Some(turn) = self.queue(kept).pop_front() else { break };
                let Some(known) = self.names.get(&turn.name).filter(|known| known.id == turn.id)
                else {
                    continue;
                };
                let due_ms = known.heard_ms + kept.silence_ms();
                if due_ms <= seen_ms {
                    self.names.remove(&turn.name);
                } else {
                    self.queue(kept).push_back(Turn { due_ms, ..turn });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(port: u16) -> FlowKey {
        FlowKey::new(([10, 9, 0, 1], 443).into(), ([10, 9, 0, 2], port).into())
    }

    #[test]
    fn a_name_is_kept_until_the_kernel_was_silent_for_its_time() {
        let mut ended = Ended::default();
        assert!(ended.insert(10, name(1), Kept::Spent) && ended.insert(10, name(2), Kept::Quiet));
        ended.sweep(9 + SPENT_MS);
        assert!(ended.hear(9 + SPENT_MS, &name(1)) && ended.hear(10, &name(2)));
        // It was heard meanwhile.
        ended.sweep(10 + SPENT_MS);
        assert_eq!(ended.len(), 2);
        ended.sweep(9 + 2 * SPENT_MS);
        assert!(!ended.hear(0, &name(1)));
        ended.sweep(9 + QUIET_MS);
        assert_eq!(ended.len(), 1);
        ended.sweep(10 + QUIET_MS);
        assert!(ended.is_empty() && ended.quiet.is_empty() && ended.spent.is_empty());
    }

    #[test]
    fn the_turn_of_an_earlier_connection_does_not_end_a_later_one_of_its_name() {
        let mut ended = Ended::default();
        assert!(ended.insert(0, name(1), Kept::Spent));
        ended.forget(&name(1));
        assert!(ended.insert(500, name(1), Kept::Spent));
        ended.sweep(SPENT_MS);
        assert_eq!((ended.len(), ended.spent.len()), (1, 1));
        ended.sweep(500 + SPENT_MS);
        assert!(ended.is_empty() && ended.spent.is_empty());
    }
}
