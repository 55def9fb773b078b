//! Which server an object's name belongs to: consistent hashing (Karger et al. 1997).

/// Points of a member of weight 1 on the ring.
const POINTS_PER_WEIGHT: u32 = 64;

/// A ring of members. Equal member lists give equal rings on every machine and build.
#[derive(Clone, Debug)]
pub struct Ring {
    /// (position, member), sorted.
    points: Vec<(u64, u16)>,
}

/// A stable 64-bit hash: FNV-1a, finished with the mixer of SplitMix64.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Ring {
    /// Builds the ring of members (name, weight).
    pub fn new(members: &[(&str, u16)]) -> Ring {
        let mut points = Vec::new();
        for (member, (name, weight)) in members.iter().enumerate() {
            for point in 0..POINTS_PER_WEIGHT * u32::from(*weight) {
                let position = hash(name.bytes().chain(point.to_be_bytes()));
                points.push((position, member as u16));
            }
        }
        points.sort_unstable();
        Ring { points }
    }

    /// The member that `path` belongs to; nothing where the ring is empty.
    pub fn owner(&self, path: &str) -> Option<usize> {
        let position = hash(path.bytes());
        let at = self.points.partition_point(|(point, _)| *point < position);
        let (_, member) = self.points.get(at).or(self.points.first())?;
        Some(usize::from(*member))
    }
}
