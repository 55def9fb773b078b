//! Choice of the next client, in two levels: the group with the least service relative to its
//! weight, and in it the client with the least service relative to its own weight.
//!
//! Service is the number of bytes copied, divided by the weight (Copier, SOSP 2025, §4.5: time would
//! depend on caches; a share belongs to a cgroup). The clients of a group get its share, however many
//! they are; that of a group without work goes to the others. A client or group that was idle resumes
//! with at least the minimum of those with work. It neither collects credit nor loses the record of
//! its excess.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ClientId;

#[cfg(test)]
mod oracle;

/// Maximum number of clients of a thread; it has at most as many groups.
pub const CLIENTS_MAX: usize = 4096;
/// Maximum weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Default weight of a group, and of a client in its group.
pub const WEIGHT_DEFAULT: u32 = 100;
/// Default of [`Shares::slice_bytes`]: a copy of some tens of microseconds.
pub const SLICE_BYTES_DEFAULT: u64 = 256 * 1024;

/// Fixed-point unit of service, so that division by a weight loses nothing.
const BYTE_PARTS: u128 = 1 << 20;

/// Number of a group; the caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// The place of a client: its group, and the weights there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: GroupId,
    /// Weight of the group among groups, 1 to [`WEIGHT_MAX`]. The last one given counts for all of
    /// its clients.
    pub group_weight: u32,
    /// Weight of the client among the clients of the group, 1 to [`WEIGHT_MAX`]. A group without a
    /// client of [`WEIGHT_DEFAULT`] that has work counts less: with the largest weight of those that
    /// have, as a fraction of [`WEIGHT_DEFAULT`]. So a client of less weight has less also alone.
    pub weight: u32,
}

impl Membership {
    fn check(&self) -> Result<(), JoinError> {
        let is_wrong = |weight: &u32| !(1..=WEIGHT_MAX).contains(weight);
        match [self.group_weight, self.weight].into_iter().find(is_wrong) {
            Some(weight) => Err(JoinError::Weight(weight)),
            None => Ok(()),
        }
    }
}

/// Error of [`Shares::join`]; the caller can avoid all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// The maximum number of clients is reached.
    #[error("{CLIENTS_MAX} clients take part: serve this one on another thread, or refuse it")]
    Full,
    /// The client takes part already.
    #[error("client {} takes part already", .0.0)]
    Known(ClientId),
    /// A weight is out of range.
    #[error("weight {0}: give one from 1 to {WEIGHT_MAX}")]
    Weight(u32),
}

/// Service of a member of a level.
#[derive(Debug)]
struct Member {
    weight: u32,
    /// Service in parts of bytes, divided by the weight.
    served: u128,
    awake: bool,
}

/// Members that compete with each other: the groups, or the clients of a group.
#[derive(Debug)]
struct Level<K> {
    members: BTreeMap<K, Member>,
    /// Members with work, least served first.
    awake: BTreeSet<(u128, K)>,
    /// Last known minimum service of the members with work.
    floor: u128,
}

impl<K: Ord + Copy> Level<K> {
    fn new() -> Level<K> {
        Level { members: BTreeMap::new(), awake: BTreeSet::new(), floor: 0 }
    }

    /// Adds a member without work.
    fn add(&mut self, key: K, weight: u32) {
        self.members.insert(key, Member { weight, served: 0, awake: false });
    }

    fn remove(&mut self, key: K) {
        self.sleep(key);
        self.members.remove(&key);
    }

    /// Returns true if the member had work.
    fn sleep(&mut self, key: K) -> bool {
        let Some(member) = self.members.get_mut(&key).filter(|member| member.awake) else {
            return false;
        };
        member.awake = false;
        self.awake.remove(&(member.served, key));
        self.raise_floor();
        true
    }

    /// Returns true if the member had no work.
    fn wake(&mut self, key: K) -> bool {
        self.raise_floor();
        let Some(member) = self.members.get_mut(&key).filter(|member| !member.awake) else {
            return false;
        };
        member.awake = true;
        member.served = member.served.max(self.floor);
        self.awake.insert((member.served, key));
        true
    }

    fn pick(&self) -> Option<K> {
        self.awake.first().map(|(_, key)| *key)
    }

    /// Returns the weight before, and true if the member has work.
    fn reweigh(&mut self, key: K, weight: u32) -> Option<(u32, bool)> {
        let member = self.members.get_mut(&key)?;
        Some((std::mem::replace(&mut member.weight, weight), member.awake))
    }

    /// Adds service by `fraction` of the member's weight, in parts of [`WEIGHT_DEFAULT`].
    fn charge(&mut self, key: K, bytes: u64, fraction: u32) {
        let Some(member) = self.members.get_mut(&key) else { return };
        let before = member.served;
        let divisor = u128::from(member.weight) * u128::from(fraction);
        let parts = u128::from(bytes) * BYTE_PARTS * u128::from(WEIGHT_DEFAULT);
        member.served += parts / divisor.max(1);
        if member.awake {
            self.awake.remove(&(before, key));
            self.awake.insert((member.served, key));
        }
        self.raise_floor();
    }

    fn raise_floor(&mut self) {
        if let Some((least, _)) = self.awake.first() {
            self.floor = self.floor.max(*least);
        }
    }
}

/// Clients of one group.
#[derive(Debug)]
struct Group {
    clients: Level<ClientId>,
    /// Number of clients with work, by their weights.
    awake_weights: BTreeMap<u32, u32>,
}

impl Group {
    fn note_awake(&mut self, weight: u32) {
        *self.awake_weights.entry(weight).or_default() += 1;
    }

    fn note_asleep(&mut self, weight: u32) {
        if let Some(count) = self.awake_weights.get_mut(&weight) {
            *count -= 1;
            if *count == 0 {
                self.awake_weights.remove(&weight);
            }
        }
    }

    fn reweigh(&mut self, client: ClientId, weight: u32) {
        if let Some((before, true)) = self.clients.reweigh(client, weight) {
            self.note_asleep(before);
            self.note_awake(weight);
        }
    }

    /// Fraction of its weight with which the group counts, in parts of [`WEIGHT_DEFAULT`].
    fn fraction(&self) -> u32 {
        let most = self.awake_weights.last_key_value().map(|(weight, _)| *weight);
        most.unwrap_or(WEIGHT_DEFAULT).min(WEIGHT_DEFAULT)
    }
}

/// The clients of one service thread.
#[derive(Debug)]
pub struct Shares {
    slice_bytes: u64,
    /// Group of each client.
    homes: BTreeMap<ClientId, GroupId>,
    /// The groups among each other.
    between: Level<GroupId>,
    groups: BTreeMap<GroupId, Group>,
}

impl Shares {
    /// Creates an empty set of clients; a picked client copies at most `slice_bytes`.
    pub fn new(slice_bytes: u64) -> Shares {
        let (homes, groups) = (BTreeMap::new(), BTreeMap::new());
        Shares { slice_bytes: slice_bytes.max(1), homes, between: Level::new(), groups }
    }

    /// Returns the maximum number of bytes that a picked client copies before the next pick.
    pub fn slice_bytes(&self) -> u64 {
        self.slice_bytes
    }

    /// Adds a client that has work.
    ///
    /// # Errors
    /// See [`JoinError`]; the set is unchanged then.
    pub fn join(&mut self, client: ClientId, place: Membership) -> Result<(), JoinError> {
        place.check()?;
        if self.homes.contains_key(&client) {
            return Err(JoinError::Known(client));
        }
        if self.homes.len() >= CLIENTS_MAX {
            return Err(JoinError::Full);
        }
        self.settle(client, place);
        self.wake(client);
        Ok(())
    }

    /// Adds a client without work to its group.
    fn settle(&mut self, client: ClientId, place: Membership) {
        self.homes.insert(client, place.group);
        let group = self.groups.entry(place.group).or_insert_with(|| {
            self.between.add(place.group, place.group_weight);
            Group { clients: Level::new(), awake_weights: BTreeMap::new() }
        });
        group.clients.add(client, place.weight);
        self.between.reweigh(place.group, place.group_weight);
    }

    /// Changes the weights of a client and its group, or its group; a weight that is out of range
    /// changes nothing. Bytes that are charged from now on count by the new weights, what the client
    /// has had stays as it was counted. A client that comes to another group begins there as one
    /// that joins.
    pub fn change(&mut self, client: ClientId, place: Membership) {
        let Some(home) = self.homes.get(&client).copied() else { return };
        if place.check().is_err() {
            return;
        }
        let was_awake = self.is_awake(client);
        if home != place.group {
            self.leave(client);
            self.settle(client, place);
        } else if let Some(group) = self.groups.get_mut(&home) {
            group.reweigh(client, place.weight);
            self.between.reweigh(home, place.group_weight);
        }
        if was_awake {
            self.wake(client);
        }
    }

    fn is_awake(&self, client: ClientId) -> bool {
        let group = self.homes.get(&client).and_then(|home| self.groups.get(home));
        group.and_then(|group| group.clients.members.get(&client)).is_some_and(|it| it.awake)
    }

    /// Removes a client, and its group with the last one. Unknown clients are ignored, here and in
    /// the following functions.
    pub fn leave(&mut self, client: ClientId) {
        self.sleep(client);
        let Some(home) = self.homes.remove(&client) else { return };
        let Some(group) = self.groups.get_mut(&home) else { return };
        group.clients.remove(client);
        if group.clients.members.is_empty() {
            self.groups.remove(&home);
            self.between.remove(home);
        }
    }

    fn group_of(&mut self, client: ClientId) -> Option<(GroupId, &mut Group)> {
        let home = self.homes.get(&client)?;
        Some((*home, self.groups.get_mut(home)?))
    }

    /// Records that a client has no work.
    pub fn sleep(&mut self, client: ClientId) {
        let Some((home, group)) = self.group_of(client) else { return };
        if !group.clients.sleep(client) {
            return;
        }
        let weight = group.clients.members.get(&client).map_or(0, |member| member.weight);
        group.note_asleep(weight);
        if group.clients.awake.is_empty() {
            self.between.sleep(home);
        }
    }

    /// Records that a client has work again.
    pub fn wake(&mut self, client: ClientId) {
        let Some((home, group)) = self.group_of(client) else { return };
        if !group.clients.wake(client) {
            return;
        }
        let weight = group.clients.members.get(&client).map_or(0, |member| member.weight);
        group.note_awake(weight);
        self.between.wake(home);
    }

    /// Returns the client to serve next, or `None` if no client has work.
    pub fn pick(&self) -> Option<ClientId> {
        self.groups.get(&self.between.pick()?)?.clients.pick()
    }

    /// Records bytes copied for a client.
    pub fn charge(&mut self, client: ClientId, bytes: u64) {
        let Some((home, group)) = self.group_of(client) else { return };
        group.clients.charge(client, bytes, WEIGHT_DEFAULT);
        let fraction = group.fraction();
        self.between.charge(home, bytes, fraction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that is a group of its own.
    fn alone(client: ClientId, group_weight: u32) -> Membership {
        Membership { group: GroupId(client.0), group_weight, weight: WEIGHT_DEFAULT }
    }

    fn join(shares: &mut Shares, client: ClientId, weight: u32) -> Result<(), JoinError> {
        shares.join(client, alone(client, weight))
    }

    /// Serves one slice or a part of it, and returns the client.
    fn serve(shares: &mut Shares, bytes: u64) -> ClientId {
        let client = shares.pick().unwrap();
        shares.charge(client, bytes);
        client
    }

    #[test]
    fn service_is_in_proportion_to_weights_within_one_slice() {
        unlade_testkit::cases(100, |random| {
            let slice = 1 + random.below(10_000);
            let mut shares = Shares::new(slice);
            let count = 2 + random.below(6) as u32;
            let weights: Vec<u32> = (0..count).map(|_| 1 + random.below(500) as u32).collect();
            for (client, weight) in weights.iter().enumerate() {
                join(&mut shares, ClientId(client as u32), *weight).unwrap();
            }
            let mut served = vec![0u64; weights.len()];
            for _ in 0..500 {
                let bytes = 1 + random.below(slice);
                served[serve(&mut shares, bytes).0 as usize] += bytes;
                let parts = |at: usize| served[at] as f64 / f64::from(weights[at]);
                for (one, other) in (0..weights.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let lead = parts(one) - parts(other);
                    let ahead = if lead > 0.0 { one } else { other };
                    let allowed = slice as f64 / f64::from(weights[ahead]);
                    assert!(lead.abs() <= allowed + 0.01, "{served:?} of {weights:?}");
                }
            }
        });
    }

    #[test]
    fn a_new_weight_counts_from_then_on() {
        unlade_testkit::cases(200, |random| {
            let slice = 1 + random.below(10_000);
            let mut shares = Shares::new(slice);
            let mut weights = [1 + random.below(500) as u32, 1 + random.below(500) as u32];
            for client in [0, 1] {
                join(&mut shares, ClientId(client), weights[client as usize]).unwrap();
            }
            let mut before = weights;
            for _ in 0..5 {
                let mut served = [0u64; 2];
                for _ in 0..300 {
                    let bytes = 1 + random.below(slice);
                    served[serve(&mut shares, bytes).0 as usize] += bytes;
                }
                // At the start one is ahead by a slice at most, by its weight before; at the end by
                // its weight now.
                let parts = |at: usize| served[at] as f64 / f64::from(weights[at]);
                let lead = |weights: [u32; 2]| slice as f64 / f64::from(weights[0].min(weights[1]));
                let allowed = lead(before) + lead(weights) + 0.01;
                assert!((parts(0) - parts(1)).abs() <= allowed, "{served:?} of {weights:?}");
                before = weights;
                let at = random.below(2_u32);
                weights[at as usize] = 1 + random.below(500) as u32;
                shares.change(ClientId(at), alone(ClientId(at), weights[at as usize]));
            }
            shares.change(ClientId(0), alone(ClientId(0), 0));
            shares.change(ClientId(1), alone(ClientId(1), WEIGHT_MAX + 1));
            assert_eq!([0, 1].map(|at| shares.between.members[&GroupId(at)].weight), weights);
        });
    }

    #[test]
    fn a_client_that_was_idle_gets_no_more_than_the_others() {
        let mut shares = Shares::new(100);
        let (steady, away) = (ClientId(1), ClientId(2));
        join(&mut shares, steady, 100).unwrap();
        join(&mut shares, away, 100).unwrap();
        shares.sleep(away);
        for _ in 0..1000 {
            assert_eq!(serve(&mut shares, 100), steady);
        }
        shares.wake(away);
        let turns = (0..100).filter(|_| serve(&mut shares, 100) == away).count();
        assert!((50..=51).contains(&turns), "{turns}");
    }

    #[test]
    fn sleeping_does_not_free_from_what_one_has_had() {
        let mut shares = Shares::new(100);
        let (greedy, other) = (ClientId(1), ClientId(2));
        join(&mut shares, greedy, 100).unwrap();
        join(&mut shares, other, 100).unwrap();
        shares.charge(greedy, 1_000);
        shares.sleep(greedy);
        shares.wake(greedy);
        for _ in 0..10 {
            assert_eq!(serve(&mut shares, 100), other);
        }
    }

    #[test]
    fn bad_joins_are_refused() {
        let mut shares = Shares::new(100);
        assert_eq!(join(&mut shares, ClientId(0), 0), Err(JoinError::Weight(0)));
        let much = WEIGHT_MAX + 1;
        assert_eq!(join(&mut shares, ClientId(0), much), Err(JoinError::Weight(much)));
        for client in (0..CLIENTS_MAX as u32).map(ClientId) {
            join(&mut shares, client, WEIGHT_DEFAULT).unwrap();
        }
        assert_eq!(join(&mut shares, ClientId(7), 1), Err(JoinError::Known(ClientId(7))));
        assert_eq!(join(&mut shares, ClientId(u32::MAX), 1), Err(JoinError::Full));
        shares.leave(ClientId(7));
        shares.charge(ClientId(7), 1);
        assert_eq!(join(&mut shares, ClientId(u32::MAX), 1), Ok(()));
    }
}
