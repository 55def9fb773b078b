//! Test: two levels of shares against a slow account, which compares every pair of clients and
//! groups that compete, and computes each weight anew.

use std::collections::BTreeMap;

use unlade_testkit::Random;

use super::*;

/// Tolerance for the rounding of service, in bytes divided by weight.
const ROUNDING: f64 = 0.01;

/// A member that has work: the level in which it competes, and its weight there.
type Competing = (u32, f64);

/// Bytes and leads of two members, from when on both compete with these weights.
struct Since {
    bytes: [u64; 2],
    leads: [f64; 2],
}

/// Account of the members of one kind, clients or groups.
struct Account {
    slice_bytes: f64,
    now: BTreeMap<u32, Competing>,
    bytes: BTreeMap<u32, u64>,
    /// By how much a member may be ahead of the least served one of its level: a slice, by the
    /// weight at its last turn; nothing if it has had none.
    leads: BTreeMap<u32, f64>,
    pairs: BTreeMap<(u32, u32), Since>,
}

impl Account {
    fn new(slice_bytes: u64) -> Account {
        Account {
            slice_bytes: slice_bytes as f64,
            now: BTreeMap::new(),
            bytes: BTreeMap::new(),
            leads: BTreeMap::new(),
            pairs: BTreeMap::new(),
        }
    }

    fn bytes(&self, member: u32) -> u64 {
        self.bytes.get(&member).copied().unwrap_or(0)
    }

    fn lead(&self, member: u32) -> f64 {
        self.leads.get(&member).copied().unwrap_or(0.0)
    }

    /// The member begins anew.
    fn forget(&mut self, member: u32) {
        self.leads.remove(&member);
        self.now.remove(&member);
        self.pairs.retain(|(one, other), _| ![*one, *other].contains(&member));
    }

    /// Begins to compare the pairs that have changed.
    fn update(&mut self, now: BTreeMap<u32, Competing>) {
        let before = std::mem::replace(&mut self.now, now);
        let is_kept = |member: &u32| before.get(member) == self.now.get(member);
        self.pairs.retain(|(one, other), _| is_kept(one) && is_kept(other));
        for (one, (level, _)) in &self.now {
            for (other, _) in self.now.range(one + 1..).filter(|(_, it)| it.0 == *level) {
                let members = [*one, *other];
                let since = Since {
                    bytes: members.map(|it| self.bytes(it)),
                    leads: members.map(|it| self.lead(it)),
                };
                self.pairs.entry((*one, *other)).or_insert(since);
            }
        }
    }

    /// Records a turn, and checks the pairs of the member.
    fn serve(&mut self, member: u32, bytes: u64) {
        *self.bytes.entry(member).or_default() += bytes;
        self.leads.insert(member, self.slice_bytes / self.now[&member].1);
        for ((one, other), since) in &self.pairs {
            let members = [*one, *other];
            if !members.contains(&member) {
                continue;
            }
            let service = |at: usize| {
                let bytes = self.bytes(members[at]) - since.bytes[at];
                bytes as f64 / self.now[&members[at]].1
            };
            let ahead = service(0) - service(1);
            let most = self.lead(*one) + since.leads[1];
            let least = -(self.lead(*other) + since.leads[0]);
            assert!(
                (least - ROUNDING..=most + ROUNDING).contains(&ahead),
                "{members:?}: {ahead} is not in {least}..={most}"
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Known {
    group: u32,
    weight: u32,
    awake: bool,
}

/// Shares under test, with the accounts of clients and groups.
struct World {
    shares: Shares,
    slice_bytes: u64,
    known: BTreeMap<u32, Known>,
    group_weights: BTreeMap<u32, u32>,
    clients: Account,
    groups: Account,
    /// Bytes of all since the last turn of a client, or since something changed, and their maximum.
    waits: BTreeMap<u32, (u64, f64)>,
}

impl World {
    fn new(slice_bytes: u64) -> World {
        World {
            shares: Shares::new(slice_bytes),
            slice_bytes,
            known: BTreeMap::new(),
            group_weights: BTreeMap::new(),
            clients: Account::new(slice_bytes),
            groups: Account::new(slice_bytes),
            waits: BTreeMap::new(),
        }
    }

    /// Weight of a group by those of its clients that have work.
    fn weight(&self, group: u32) -> Option<f64> {
        let clients = self.known.values().filter(|it| it.group == group && it.awake);
        let most = clients.map(|it| it.weight).max()?;
        let fraction = f64::from(most.min(WEIGHT_DEFAULT)) / f64::from(WEIGHT_DEFAULT);
        Some(f64::from(self.group_weights[&group]) * fraction)
    }

    /// Groups without a client end.
    fn update(&mut self) {
        for group in self.group_weights.keys().copied().collect::<Vec<_>>() {
            if self.known.values().all(|it| it.group != group) {
                self.group_weights.remove(&group);
                self.groups.forget(group);
            }
        }
        let competing = self.known.iter().filter(|(_, it)| it.awake);
        let clients = competing.map(|(at, it)| (*at, (it.group, f64::from(it.weight)))).collect();
        let groups = self.group_weights.keys();
        let groups = groups.filter_map(|at| Some((*at, (0, self.weight(*at)?)))).collect();
        self.clients.update(clients);
        self.groups.update(groups);
        self.waits = self.clients.now.keys().map(|at| (*at, (0, self.patience(*at)))).collect();
    }

    fn place(&mut self, client: u32, random: &mut Random) {
        let weights = [25, 100, 100, 1 + random.below(300)];
        let (group, weight) = (random.below(4), random.pick(&weights));
        let group_weight = match self.group_weights.get(&group) {
            Some(weight) if random.chance(3, 4) => *weight,
            _ => 1 + random.below(500),
        };
        let place = Membership { group: GroupId(group), group_weight, weight };
        match self.known.get(&client).copied() {
            None => {
                self.shares.join(ClientId(client), place).unwrap();
                self.clients.forget(client);
                self.known.insert(client, Known { group, weight, awake: true });
            }
            Some(known) => {
                self.shares.change(ClientId(client), place);
                if known.group != group {
                    self.clients.forget(client);
                }
                self.known.insert(client, Known { group, weight, ..known });
            }
        }
        self.group_weights.insert(group, group_weight);
    }

    fn change(&mut self, random: &mut Random) {
        let client = random.below(8);
        match random.below(5_u32) {
            0 | 1 => self.place(client, random),
            2 => {
                self.shares.leave(ClientId(client));
                self.known.remove(&client);
                self.clients.forget(client);
            }
            3 => self.shares.sleep(ClientId(client)),
            _ => self.shares.wake(ClientId(client)),
        }
        if let Some(known) = self.known.get_mut(&client) {
            known.awake = self.shares.is_awake(ClientId(client));
        }
        self.update();
    }

    /// A bound for the bytes of all from now to the next turn of a client: the others get what is due
    /// to them while its lead passes, and a slice.
    fn patience(&self, client: u32) -> f64 {
        let slice = self.slice_bytes as f64;
        let (group, _) = self.clients.now[&client];
        let members = self.clients.now.values().filter(|it| it.0 == group);
        let lead = self.clients.lead(client);
        let of_group: f64 = members.map(|(_, weight)| slice + weight * lead).sum();
        let lead = of_group / self.groups.now[&group].1 + self.groups.lead(group);
        self.groups.now.values().map(|(_, weight)| slice + weight * lead).sum()
    }

    fn serve(&mut self, random: &mut Random) {
        let Some(ClientId(client)) = self.shares.pick() else {
            assert!(self.known.values().all(|it| !it.awake), "nobody is served");
            return;
        };
        let bytes = 1 + random.below(self.slice_bytes);
        self.shares.charge(ClientId(client), bytes);
        self.clients.serve(client, bytes);
        self.groups.serve(self.known[&client].group, bytes);
        self.waits.values_mut().for_each(|(waited, _)| *waited += bytes);
        self.waits.insert(client, (0, self.patience(client)));
        for (client, (waited, most)) in &self.waits {
            assert!(*waited as f64 <= *most, "{client} waits for {waited} bytes, {most} at most");
        }
    }
}

/// Clients and groups that compete are served in proportion to their weights, within one slice each,
/// from when on they compete; nobody starves; a wait or a move gives no credit.
#[test]
fn random_clients_and_groups_agree_with_a_slow_account() {
    let mut turns = 0;
    unlade_testkit::cases(300, |random| {
        let mut world = World::new(1 + random.below(10_000));
        for _ in 0..60 {
            world.change(random);
            for _ in 0..random.below(60_u32) {
                world.serve(random);
                turns += 1;
            }
        }
    });
    assert!(turns > 0);
}

/// No client and no group is ever ahead of its exact share by more than one slice.
#[test]
fn from_the_start_each_has_its_exact_share_and_a_slice_at_most() {
    unlade_testkit::cases(100, |random| {
        let slice_bytes = 1 + random.below(10_000);
        let mut world = World::new(slice_bytes);
        (0..8).for_each(|client| world.place(client, random));
        world.update();
        let weights: f64 = world.groups.now.values().map(|it| it.1).sum();
        let mut all = 0;
        for _ in 0..500 {
            let before = world.clients.bytes.values().sum::<u64>();
            world.serve(random);
            all += world.clients.bytes.values().sum::<u64>() - before;
            for (group, (_, weight)) in &world.groups.now {
                let bytes = world.groups.bytes(*group);
                let due = all as f64 * weight / weights;
                assert!(bytes as f64 <= due + slice_bytes as f64 + 1.0, "{bytes} of {due}");
                let clients = || world.clients.now.iter().filter(|(_, it)| it.0 == *group);
                let of_group: f64 = clients().map(|(_, it)| it.1).sum();
                for (client, (_, weight)) in clients() {
                    let (own, due) =
                        (world.clients.bytes(*client), bytes as f64 * weight / of_group);
                    assert!(own as f64 <= due + slice_bytes as f64 + 1.0, "{own} of {due}");
                }
            }
        }
    });
}

/// A group of three clients has what a group of one has.
#[test]
fn clients_of_a_group_share_its_share() {
    for (weights, expected) in [([100, 100], [600, 600]), ([100, 300], [300, 900])] {
        let mut shares = Shares::new(100);
        for client in 0..4 {
            let group = usize::from(client == 3);
            let place = Membership {
                group: GroupId(group as u32),
                group_weight: weights[group],
                weight: WEIGHT_DEFAULT,
            };
            shares.join(ClientId(client), place).unwrap();
        }
        let mut turns = [0; 4];
        for _ in 0..1200 {
            let client = shares.pick().unwrap();
            shares.charge(client, 100);
            turns[client.0 as usize] += 1;
        }
        let of_three = expected[0] / 3;
        for (turns, expected) in turns.iter().zip([of_three, of_three, of_three, expected[1]]) {
            assert!((expected - 1..=expected + 1).contains(turns), "{turns} for {expected}");
        }
    }
}

/// A share that a group does not use goes to the others, and one that only a client of less weight
/// uses is as much less.
#[test]
fn an_idle_group_leaves_its_share_to_the_others() {
    let mut shares = Shares::new(100);
    let place = |group, weight| Membership { group: GroupId(group), group_weight: 100, weight };
    for (client, place) in [place(0, 100), place(0, 25), place(1, 100)].into_iter().enumerate() {
        shares.join(ClientId(client as u32), place).unwrap();
    }
    let turns = |shares: &mut Shares| {
        let mut turns = [0; 3];
        for _ in 0..1000 {
            let client = shares.pick().unwrap();
            shares.charge(client, 100);
            turns[client.0 as usize] += 1;
        }
        turns
    };
    let about = |turns: [i32; 3], expected: [i32; 3]| {
        let is_near = turns.iter().zip(expected).all(|(turns, it)| (turns - it).abs() <= 2);
        assert!(is_near, "{turns:?} for {expected:?}");
    };
    about(turns(&mut shares), [400, 100, 500]);
    shares.sleep(ClientId(0));
    about(turns(&mut shares), [0, 200, 800]);
    shares.sleep(ClientId(1));
    about(turns(&mut shares), [0, 0, 1000]);
    shares.wake(ClientId(0));
    about(turns(&mut shares), [500, 0, 500]);
}
