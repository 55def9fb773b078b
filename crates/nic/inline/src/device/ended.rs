//! Names of offloaded connections that have ended. The kernel has their records in the clear:
//! payload that it still sends under such a name is dropped.
//!
//! A name takes no place of a live connection. It is kept until the kernel cannot have anything
//! to send:
//! - if the owner of the socket has seen that all is acknowledged ([`Retention::Spent`]), until the
//!   frames that were on their way to the device have arrived;
//! - otherwise ([`Retention::Quiet`]) until the kernel has been silent for longer than the longest
//!   time between two retransmissions. An acknowledgement on the wire does not shorten that: the
//!   kernel may have rejected it.
//!
//! A new connection that the kernel opens under the same name ends this at once.

use std::collections::{HashMap, VecDeque};

use unlade_net::FlowKey;

/// Largest number of names that are kept. Above it, ended connections keep their places.
pub const ENDED_MAX: usize = 262_144;
/// How long the name of a connection is kept if the kernel has nothing left to send.
pub const SPENT_MS: u64 = 1_000;
/// How long the kernel has to be silent about any other name: twice the longest time between two
/// retransmissions (120 s, `TCP_RTO_MAX`), and a margin.
pub const QUIET_MS: u64 = 300_000;

/// How long a name is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Nothing is left to send: [`SPENT_MS`].
    Spent,
    /// The kernel may have something left to send: [`QUIET_MS`].
    Quiet,
}

impl Retention {
    fn silence_ms(self) -> u64 {
        match self {
            Retention::Spent => SPENT_MS,
            Retention::Quiet => QUIET_MS,
        }
    }
}

struct Name {
    /// Time of the kernel's last packet.
    heard_ms: u64,
    /// Distinguishes its queue entry from one of an earlier connection of that name.
    id: u64,
}

/// Queue entry: a name to be checked later.
struct Turn {
    due_ms: u64,
    name: FlowKey,
    id: u64,
}

/// The kept names.
#[derive(Default)]
pub struct EndedFlows {
    names: HashMap<FlowKey, Name>,
    /// One queue for each [`Retention`], so that each is in the order of time.
    spent: VecDeque<Turn>,
    quiet: VecDeque<Turn>,
    next_id: u64,
}

impl EndedFlows {
    /// Number of names that are kept.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if no name is kept.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Keeps the name of a connection whose last packet was at `heard_ms`. Returns false if there
    /// are too many names.
    pub fn insert(&mut self, heard_ms: u64, name: FlowKey, kept: Retention) -> bool {
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

    fn queue(&mut self, kept: Retention) -> &mut VecDeque<Turn> {
        match kept {
            Retention::Spent => &mut self.spent,
            Retention::Quiet => &mut self.quiet,
        }
    }

    /// Notes that the kernel sends under this name. Returns true if the name is kept.
    pub fn hear(&mut self, now_ms: u64, name: &FlowKey) -> bool {
        let kept = self.names.get_mut(name);
        kept.map(|name| name.heard_ms = now_ms).is_some()
    }

    /// Drops the name: it belongs to another connection now.
    pub fn forget(&mut self, name: &FlowKey) {
        self.names.remove(name);
    }

    /// Drops the names whose time is over. All that the kernel sent before `seen_ms` has been
    /// processed.
    pub fn sweep(&mut self, seen_ms: u64) {
        for kept in [Retention::Spent, Retention::Quiet] {
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
        let mut ended = EndedFlows::default();
        assert!(
            ended.insert(10, name(1), Retention::Spent)
                && ended.insert(10, name(2), Retention::Quiet)
        );
        ended.sweep(9 + SPENT_MS);
        assert!(ended.hear(9 + SPENT_MS, &name(1)) && ended.hear(10, &name(2)));
        // The kernel sent under it in the meantime.
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
        let mut ended = EndedFlows::default();
        assert!(ended.insert(0, name(1), Retention::Spent));
        ended.forget(&name(1));
        assert!(ended.insert(500, name(1), Retention::Spent));
        ended.sweep(SPENT_MS);
        assert_eq!((ended.len(), ended.spent.len()), (1, 1));
        ended.sweep(500 + SPENT_MS);
        assert!(ended.is_empty() && ended.spent.is_empty());
    }
}
