//! Assigns objects to servers: consistent hashing with bounded load (Mirrokni, Thorup,
//! Zadimoghaddam: *Consistent Hashing with Bounded Loads*, SODA 2018; arXiv 1608.01350).
//!
//! Every server has points on a ring of 64-bit numbers, in proportion to its weight. An object
//! belongs to the server of the first point at or behind the hash of its path. A server that is
//! added takes objects from the others and moves none between them; one that is removed leaves its
//! objects to the others. If load is considered, a server that has its share is passed over for
//! the next one on the ring.
//!
//! The hash is SipHash-1-3 with the fixed key below, of the bytes of the path as sent, without its
//! query. It is part of the protocol between balancer and server: both compute the owner
//! independently, from the same names and weights. The key is no secret. It spreads the objects
//! and does not defend against a client that chooses paths; the bound on load does.

use siphasher::sip::SipHasher13;

/// Points on the ring for each unit of weight, while they fit: a server's share is within about
/// 1/sqrt([`POINTS_PER_WEIGHT`]) of the share by its weight.
pub const POINTS_PER_WEIGHT: usize = 256;
/// Most members of a ring; those beyond own nothing.
pub const MEMBERS_MAX: usize = 1024;
/// Largest weight of a member; a larger one is reduced to this.
pub const WEIGHT_MAX: u16 = 256;
/// Most points on a ring (4 MiB of memory): if the weights ask for more, each unit gets fewer.
pub const POINTS_MAX: usize = MEMBERS_MAX * WEIGHT_MAX as usize;
/// Default of the load that a server may have, as a multiple of its share.
pub const LOAD_FACTOR: f64 = 1.25;
/// The load of an unavailable server: it is down, or drains.
pub const UNAVAILABLE: u32 = u32::MAX;

/// The key of the hash: "unlade shard v1" and a zero byte, as two little-endian numbers.
const KEY: (u64, u64) = (u64::from_le_bytes(*b"unlade s"), u64::from_le_bytes(*b"hard v1\0"));

/// One point: its position and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: u64,
    /// Index of the server, below the number of servers.
    server: u16,
}

/// A ring of servers.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Sorted.
    points: Vec<Point>,
    /// Weight of each member, by index.
    weights: Vec<u16>,
}

impl Ring {
    /// Builds the ring of `members`: each has a name, unique and the same wherever the ring is
    /// built, and a weight. A member's position in the list is its index, and does not affect the
    /// ownership of objects. A member of weight 0 owns nothing.
    pub fn new(members: &[(&str, u16)]) -> Ring {
        let weigh = |(index, member): (usize, &(&str, u16))| match index < MEMBERS_MAX {
            true => member.1.min(WEIGHT_MAX),
            false => 0,
        };
        let weights: Vec<u16> = members.iter().enumerate().map(weigh).collect();
        let total: usize = weights.iter().copied().map(usize::from).sum();
        let per_weight = POINTS_PER_WEIGHT.min(POINTS_MAX / total.max(1));
        let mut points = Vec::with_capacity(total * per_weight);
        for (server, ((name, _), weight)) in (0u16..).zip(members.iter().zip(&weights)) {
            let count = (usize::from(*weight) * per_weight) as u32;
            points.extend((0..count).map(|number| Point { at: point(name, number), server }));
        }
        // Points that coincide are ordered by name, not by index, so that the order of the list
        // does not matter.
        let name = |point: &Point| members.get(usize::from(point.server)).map(|member| member.0);
        points.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| name(a).cmp(&name(b))));
        Ring { points, weights }
    }

    /// Returns the memory of its points, bytes.
    pub fn bytes(&self) -> usize {
        self.points.capacity() * size_of::<Point>()
    }

    /// Returns the number of members, those without a weight included.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns true for a ring without members.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the index of the member that owns `path`; `None` if no member has a weight.
    pub fn owner(&self, path: &str) -> Option<usize> {
        self.walk(path).next()
    }

    /// Returns true if the member at `index` owns `path`.
    pub fn owns(&self, index: usize, path: &str) -> bool {
        self.owner(path) == Some(index)
    }

    /// Returns the members in the order in which they are tried for `path`, each once: the owner,
    /// then its stand-ins.
    pub fn preference(&self, path: &str) -> impl Iterator<Item = usize> + '_ {
        let mut seen = vec![false; self.weights.len()];
        let mut left = self.weights.iter().filter(|&&weight| weight > 0).count();
        let mut walk = self.walk(path);
        std::iter::from_fn(move || {
            while left > 0 {
                let server = walk.next()?;
                if let Some(seen @ false) = seen.get_mut(server) {
                    *seen = true;
                    left -= 1;
                    return Some(server);
                }
            }
            None
        })
    }

    /// Returns the first member in the order of [`preference`](Ring::preference) that has not got
    /// its share: one more request must not load it above `factor` (at least 1) times the mean, in
    /// proportion to the weights.
    ///
    /// `loads` is the present load of each server, by index; [`UNAVAILABLE`] is passed over, as is
    /// a server without an entry in `loads`. `None` if none is available.
    pub fn owner_bounded(&self, path: &str, loads: &[u32], factor: f64) -> Option<usize> {
        let bound = Bound::new(self, loads, factor)?;
        self.walk(path).find(|&server| bound.admits(server))
    }

    /// Returns the servers of the points from the hash of `path` on, once round the ring.
    fn walk(&self, path: &str) -> impl Iterator<Item = usize> + '_ {
        let at = hash(path.as_bytes());
        let first = self.points.partition_point(|point| point.at < at);
        let (before, behind) = self.points.split_at(first);
        behind.iter().chain(before).map(|point| usize::from(point.server))
    }
}

/// The load that each server may have.
struct Bound<'r> {
    weights: &'r [u16],
    loads: &'r [u32],
    /// Load of a server of weight 1.
    share: f64,
}

impl<'r> Bound<'r> {
    fn new(ring: &'r Ring, loads: &'r [u32], factor: f64) -> Option<Bound<'r>> {
        let available = || {
            let all = ring.weights.iter().zip(loads);
            all.filter(|(weight, load)| **weight > 0 && **load != UNAVAILABLE)
        };
        let weight: u64 = available().map(|(&weight, _)| u64::from(weight)).sum();
        let load: u64 = available().map(|(_, &load)| u64::from(load)).sum();
        let factor = if factor >= 1.0 { factor } else { 1.0 };
        let share = factor * (load + 1) as f64 / weight as f64;
        (weight > 0).then_some(Bound { weights: &ring.weights, loads, share })
    }

    /// Returns true if the server has room. The shares add up to more than the load and are
    /// rounded up, so that at least one server has room.
    fn admits(&self, server: usize) -> bool {
        let weight = self.weights.get(server).copied().unwrap_or(0);
        match self.loads.get(server) {
            None | Some(&UNAVAILABLE) => false,
            Some(&load) => f64::from(load) < (self.share * f64::from(weight)).ceil(),
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(KEY.0, KEY.1).hash(bytes)
}

/// Returns the position of a server's point: the hash of its name, a zero byte and the point's
/// number.
fn point(name: &str, number: u32) -> u64 {
    hash(&[name.as_bytes(), &[0], &number.to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(members: &[(&str, u16)]) -> Ring {
        Ring::new(members)
    }

    const FOUR: [(&str, u16); 4] = [("s1", 1), ("s2", 1), ("s3", 1), ("s4", 1)];

    fn paths(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("/bucket/object-{number}.bin"))
    }

    /// Returns how many of `count` paths each server owns.
    fn owned(ring: &Ring, count: usize) -> Vec<usize> {
        let mut owned = vec![0; ring.len()];
        paths(count).for_each(|path| owned[ring.owner(&path).unwrap()] += 1);
        owned
    }

    #[test]
    fn the_hash_is_what_it_was() {
        // Golden values: other values mean that balancers and servers of different builds
        // disagree.
        assert_eq!(hash(b""), GOLDEN_HASHES[0]);
        assert_eq!(hash(b"/"), GOLDEN_HASHES[1]);
        assert_eq!(hash("/bucket/object-0.bin".as_bytes()), GOLDEN_HASHES[2]);
        assert_eq!(point("s1", 0), GOLDEN_HASHES[3]);
        let ring = ring(&FOUR);
        let owners: Vec<usize> = paths(16).map(|path| ring.owner(&path).unwrap()).collect();
        assert_eq!(owners, GOLDEN_OWNERS);
    }

    /// Computed by another implementation of SipHash-1-3.
    const GOLDEN_HASHES: [u64; 4] = [
        0xfa20_9c78_4270_acf0,
        0x793a_3418_6e9c_d78c,
        0x29d1_ebde_87cb_7b7f,
        0xf93c_3bfe_d02d_5dc3,
    ];
    const GOLDEN_OWNERS: [usize; 16] = [3, 1, 1, 1, 3, 2, 3, 1, 2, 2, 0, 3, 0, 2, 1, 0];

    #[test]
    fn objects_are_spread_by_weight() {
        for (servers, count) in [(&FOUR[..], 40_000), (&[("a", 1), ("b", 3), ("c", 4)], 40_000)] {
            let total: u16 = servers.iter().map(|server| server.1).sum();
            for (owned, (name, weight)) in owned(&ring(servers), count).iter().zip(servers) {
                let due = count as f64 * f64::from(*weight) / f64::from(total);
                let off = *owned as f64 / due - 1.0;
                assert!(off.abs() < 0.2, "{name}: {off}");
            }
        }
    }

    #[test]
    fn a_server_without_weight_owns_nothing() {
        let ring = ring(&[("a", 1), ("b", 0), ("c", 1)]);
        assert_eq!(owned(&ring, 1_000)[1], 0);
        assert_eq!(ring.preference("/x").count(), 2);
        assert_eq!(ring.owner_bounded("/x", &[UNAVAILABLE, 0, UNAVAILABLE], 1.0), None);
    }

    #[test]
    fn unavailable_servers_are_passed_over() {
        let ring = ring(&FOUR);
        for path in paths(200) {
            let order: Vec<usize> = ring.preference(&path).collect();
            let mut loads = [0; 4];
            assert_eq!(ring.owner_bounded(&path, &loads, LOAD_FACTOR), Some(order[0]));
            for pair in order.windows(2) {
                loads[pair[0]] = UNAVAILABLE;
                assert_eq!(ring.owner_bounded(&path, &loads, LOAD_FACTOR), Some(pair[1]));
            }
            loads[order[3]] = UNAVAILABLE;
            assert_eq!(ring.owner_bounded(&path, &loads, LOAD_FACTOR), None);
        }
        assert_eq!(ring.owner_bounded("/x", &[], LOAD_FACTOR), None);
    }

    #[test]
    fn a_ring_stays_within_its_limits() {
        assert!(ring(&[]).is_empty());
        assert_eq!(ring(&[]).owner("/x"), None);
        assert_eq!(ring(&[("a", 0)]).owner("/x"), None);
        assert_eq!(ring(&[("a", 0)]).owner_bounded("/x", &[0], LOAD_FACTOR), None);
        let names: Vec<String> = (0..=MEMBERS_MAX).map(|number| number.to_string()).collect();
        let heavy: Vec<(&str, u16)> = names.iter().map(|name| (name.as_str(), u16::MAX)).collect();
        let ring = ring(&heavy);
        assert_eq!((ring.len(), ring.points.len()), (MEMBERS_MAX + 1, POINTS_MAX));
        assert!(ring.points.iter().all(|point| usize::from(point.server) < MEMBERS_MAX));
        let five = Ring::new(&heavy[..5]);
        assert_eq!(five.points.len(), 5 * 256 * (POINTS_MAX / (5 * 256)));
    }

    prop_compose! {
        fn some_servers()(weights in prop::collection::vec(1u16..4, 2..8)) -> Vec<(String, u16)> {
            weights.into_iter().enumerate().map(|(n, weight)| (format!("10.0.0.{n}"), weight)).collect()
        }
    }

    fn of(servers: &[(String, u16)]) -> Ring {
        let servers: Vec<_> =
            servers.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
        ring(&servers)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn only_objects_of_the_changed_server_move(servers in some_servers(), salt: u32) {
            let (few, all) = (of(&servers[1..]), of(&servers));
            for number in 0..200 {
                let path = format!("/{salt}/{number}");
                let (before, after) = (few.owner(&path).unwrap() + 1, all.owner(&path).unwrap());
                prop_assert!(after == before || after == 0);
            }
        }

        #[test]
        fn the_order_of_the_list_does_not_matter(
            servers in some_servers(), turn in 0usize..8, salt: u32,
        ) {
            let mut turned = servers.clone();
            turned.rotate_left(turn % servers.len());
            let (one, other) = (of(&servers), of(&turned));
            for number in 0..100 {
                let path = format!("/{salt}/{number}");
                let (one, other) = (one.owner(&path).unwrap(), other.owner(&path).unwrap());
                    prop_assert_eq!(&servers[one].0, &turned[other].0);
            }
        }

        #[test]
        fn no_server_is_loaded_above_its_bound(
            servers in some_servers(), factor in 1.0f64..2.0, hot in 0u32..3, salt: u32,
        ) {
            let ring = of(&servers);
            let total: f64 = servers.iter().map(|server| f64::from(server.1)).sum();
            let mut loads = vec![0u32; servers.len()];
            for number in 0..300u32 {
                // Few distinct paths: the owner alone would get most of the load.
                let path = format!("/{salt}/{}", number % (hot + 1));
                let chosen = ring.owner_bounded(&path, &loads, factor).unwrap();
                loads[chosen] += 1;
                let bound = factor * f64::from(number + 1) / total * f64::from(servers[chosen].1);
                prop_assert!(f64::from(loads[chosen]) <= bound.ceil());
            }
            prop_assert_eq!(loads.iter().sum::<u32>(), 300);
        }

        #[test]
        fn a_choice_follows_the_order_of_preference(
            servers in some_servers(), loads in prop::collection::vec(0u32..50, 8), salt: u32,
        ) {
            let ring = of(&servers);
            let loads = &loads[..servers.len()];
            let path = format!("/{salt}");
            let order: Vec<usize> = ring.preference(&path).collect();
            prop_assert_eq!(order.len(), servers.len());
            prop_assert!(ring.owns(order[0], &path));
            let chosen = ring.owner_bounded(&path, loads, LOAD_FACTOR).unwrap();
            // If every server has room for the whole load, the owner is chosen.
            prop_assert_eq!(ring.owner_bounded(&path, loads, 1e9), Some(order[0]));
            let bound = Bound::new(&ring, loads, LOAD_FACTOR).unwrap();
            for &passed in order.iter().take_while(|&&server| server != chosen) {
                prop_assert!(!bound.admits(passed));
            }
        }
    }
}
