//! Ambiguous delivery: finds the copy that TCP kept of bytes that the device has delivered more
//! than once, sealed and decrypted.
//!
//! The record's tag decides, and not every combination has to be tried. A GCM tag is linear in the
//! ciphertext (SP 800-38D §6.4): another copy of one part adds the same difference to the tag,
//! whatever the choice for the other parts. Each part's difference is computed once. Elimination
//! over GF(2) then finds the combination whose differences add up to the missing value, in time
//! that grows with the number of parts and not with the number of combinations.
//!
//! A forger gains the equivalent of at most 2^[`UNKNOWNS_MAX`] attempts at once against a tag of
//! 128 bits, and the first failure ends the connection.

use zeroize::Zeroizing;

use crate::resync::Worked;
use crate::software::open::Part;
use crate::tls::TAG_BYTES;

/// Maximum number of alternative deliveries of a part.
pub const DELIVERIES_MAX: usize = 4;
/// Maximum number of unknowns: one for each alternative of a part beyond its first one. If there
/// are more, adjacent parts are grouped, as if TCP had kept the same copy of them.
pub const UNKNOWNS_MAX: usize = 56;

/// A part of a record with several alternative deliveries, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmbiguousPart {
    /// Index of the part.
    part: usize,
    deliveries: [Option<Worked>; DELIVERIES_MAX],
    count: usize,
}

impl AmbiguousPart {
    /// Creates an ambiguous part; alternatives beyond [`DELIVERIES_MAX`] are ignored.
    pub(crate) fn new(part: usize, deliveries: &[Option<Worked>]) -> AmbiguousPart {
        let count = deliveries.len().min(DELIVERIES_MAX);
        let mut ambiguous = AmbiguousPart { part, deliveries: [None; DELIVERIES_MAX], count };
        ambiguous.deliveries[..count].copy_from_slice(&deliveries[..count]);
        ambiguous
    }

    /// Index of the part.
    pub(crate) fn part(&self) -> usize {
        self.part
    }

    fn deliveries(&self) -> &[Option<Worked>] {
        &self.deliveries[..self.count]
    }
}

/// A delivered record with ambiguous parts.
pub(crate) struct AmbiguousRecord<'r> {
    /// Its bytes.
    pub(crate) bytes: &'r [u8],
    /// Its parts; an ambiguous part has its first alternative.
    pub(crate) parts: &'r [Part],
    /// The ambiguous parts, in order.
    pub(crate) ambiguous_parts: &'r [AmbiguousPart],
}

/// Adjacent ambiguous parts with the same alternative.
struct Unknown {
    first: usize,
    end: usize,
    delivery: usize,
}

impl AmbiguousRecord<'_> {
    /// The delivery of each part for which `tag` gives the record's own tag, if there is such a
    /// combination. `tag` computes the tag of bytes, which it may change, with the given parts.
    pub(crate) fn solve(
        &self,
        mut tag: impl FnMut(&mut [u8], &mut [Part]) -> [u8; TAG_BYTES],
    ) -> Option<Vec<Part>> {
        let start = self.bytes.len().checked_sub(TAG_BYTES)?;
        let own = value(self.bytes[start..].try_into().ok()?);
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        let mut parts = self.parts.to_vec();
        let mut tag_of = |chosen: &[Part]| {
            bytes.copy_from_slice(self.bytes);
            parts.copy_from_slice(chosen);
            value(tag(&mut bytes, &mut parts))
        };
        let first = tag_of(self.parts);
        let unknowns = self.unknowns();
        let mut basis = Basis::default();
        let mut chosen = self.parts.to_vec();
        for (index, unknown) in unknowns.iter().enumerate() {
            self.choose(&mut chosen, unknown);
            basis.insert(tag_of(&chosen) ^ first, 1 << index);
            self.reset(&mut chosen, unknown);
        }
        let solution = basis.solve(own ^ first)?;
        let taken = unknowns.iter().enumerate().filter(|(index, _)| solution >> index & 1 == 1);
        taken.for_each(|(_, unknown)| self.choose(&mut chosen, unknown));
        // A sum of two alternatives of one part is usually neither: recompute and compare the tag.
        (tag_of(&chosen) == own).then_some(chosen)
    }

    /// The unknowns of the equation; at most [`UNKNOWNS_MAX`].
    fn unknowns(&self) -> Vec<Unknown> {
        let all: usize =
            self.ambiguous_parts.iter().map(|ambiguous| ambiguous.count.saturating_sub(1)).sum();
        let together = all.div_ceil(UNKNOWNS_MAX).max(1);
        let mut unknowns = Vec::with_capacity(all.min(UNKNOWNS_MAX));
        let mut first = 0;
        while first < self.ambiguous_parts.len() {
            let end = (first + together).min(self.ambiguous_parts.len());
            let most =
                self.ambiguous_parts[first..end].iter().map(|ambiguous| ambiguous.count).max();
            unknowns.extend((1..most.unwrap_or(1)).map(|delivery| Unknown {
                first,
                end,
                delivery,
            }));
            first = end;
        }
        unknowns.truncate(UNKNOWNS_MAX);
        unknowns
    }

    fn choose(&self, chosen: &mut [Part], unknown: &Unknown) {
        for ambiguous in &self.ambiguous_parts[unknown.first..unknown.end] {
            chosen[ambiguous.part].worked =
                ambiguous.deliveries()[unknown.delivery.min(ambiguous.count - 1)];
        }
    }

    fn reset(&self, chosen: &mut [Part], unknown: &Unknown) {
        for ambiguous in &self.ambiguous_parts[unknown.first..unknown.end] {
            chosen[ambiguous.part].worked = ambiguous.deliveries()[0];
        }
    }
}

fn value(tag: [u8; TAG_BYTES]) -> u128 {
    u128::from_be_bytes(tag)
}

/// Linearly independent tag differences, each with the set of unknowns whose sum it is.
#[derive(Default)]
struct Basis {
    /// Sorted by leading bit, the highest first.
    rows: Vec<(u128, u64)>,
}

impl Basis {
    /// Adds the difference of an unknown. A difference that depends on others is left out, because
    /// they cover its combinations.
    fn insert(&mut self, difference: u128, set: u64) {
        let (left, set) = self.reduce(difference, set);
        if left != 0 {
            let at = self.rows.partition_point(|(row, _)| *row > left);
            self.rows.insert(at, (left, set));
        }
    }

    /// The unknowns whose differences add up to `sum`.
    fn solve(&self, sum: u128) -> Option<u64> {
        let (left, set) = self.reduce(sum, 0);
        (left == 0).then_some(set)
    }

    fn reduce(&self, mut sum: u128, mut set: u64) -> (u128, u64) {
        for (row, of) in &self.rows {
            if sum.leading_zeros() == row.leading_zeros() {
                sum ^= row;
                set ^= of;
            }
        }
        (sum, set)
    }
}

#[cfg(test)]
mod tests {
    use super::{AmbiguousPart, AmbiguousRecord, Basis, DELIVERIES_MAX, UNKNOWNS_MAX};
    use crate::resync::{Extent, Pass, Worked};
    use crate::software::open::{Part, Position};
    use crate::tls::{TAG_BYTES, Tls, Version};
    use unlade_net::SeqNumber;
    use unlade_testkit::Random;

    const NUMBER: u64 = 3;
    const WORKED: Option<Worked> = Some(worked(9));

    const fn worked(generation: u32) -> Worked {
        let message = Extent { start: SeqNumber(0), bytes: 0, number: NUMBER };
        Worked { pass: Pass { key: 0, generation }, message }
    }

    fn tls() -> Tls {
        Tls::new(Version::Tls13, &[7; 16], [9; 12]).unwrap()
    }

    fn sealed(content: &[u8]) -> Vec<u8> {
        let mut record = vec![23, 3, 3];
        record.extend(((content.len() + TAG_BYTES) as u16).to_be_bytes());
        record.extend(content);
        record.extend([0; TAG_BYTES]);
        let parts = [Part { end: record.len(), worked: WORKED }];
        let tag = tls().tag(NUMBER, &mut record.clone(), &parts);
        let end = record.len() - TAG_BYTES;
        record[end..].copy_from_slice(&tag);
        let position = Position { start: SeqNumber(0), number: NUMBER };
        let all = 0..record.len();
        tls().restore(&position, &mut record, all, &worked(0).message);
        record
    }

    #[test]
    fn elimination_finds_what_adds_up() {
        unlade_testkit::cases(500, |random| {
            let count = 1 + random.below(UNKNOWNS_MAX as u64) as usize;
            let mut next = || u128::from(random.next()) << 64 | u128::from(random.next());
            let differences: Vec<u128> = (0..count).map(|_| next()).collect();
            let (set, other) = (next() as u64 & (u64::MAX >> (64 - count)), next());
            let mut basis = Basis::default();
            for (index, difference) in differences.iter().enumerate() {
                basis.insert(*difference, 1 << index);
            }
            let sum = |set: u64| {
                let taken = (0..count).filter(|index| set >> index & 1 == 1);
                taken.fold(0, |sum, index| sum ^ differences[index])
            };
            assert_eq!(basis.solve(sum(set)), Some(set));
            // Any other value is a sum with a probability of at most 2^-72.
            assert_eq!(basis.solve(other), None);
        });
    }

    #[test]
    fn differences_that_depend_on_each_other_are_no_obstacle() {
        let mut basis = Basis::default();
        for (index, difference) in [0b110, 0b011, 0b101, 0, 0b1000].into_iter().enumerate() {
            basis.insert(difference, 1 << index);
        }
        assert_eq!(basis.solve(0b1101), Some(0b10011));
        assert_eq!(basis.solve(0b100), None);
    }

    /// A record with randomly kept copies: the bytes, the parts and the ambiguous parts.
    fn kept(
        random: &mut Random,
        content: usize,
        cuts: u64,
    ) -> (Vec<u8>, Vec<Part>, Vec<AmbiguousPart>) {
        let plain: Vec<u8> = (0..content).map(|_| random.next() as u8).collect();
        let (sealed, clear) = (sealed(&plain), [&[23, 3, 3, 0, 0], &plain[..]].concat());
        let mut bytes = sealed.clone();
        let mut ends: Vec<usize> =
            (0..cuts).map(|_| 1 + random.below(sealed.len() as u64) as usize).collect();
        ends.push(sealed.len());
        ends.sort_unstable();
        ends.dedup();
        let (mut parts, mut ambiguous_parts, mut start) = (Vec::new(), Vec::new(), 0);
        for (part, &end) in ends.iter().enumerate() {
            let decrypted = random.once_in(2);
            let range = start.max(5)..end.min(clear.len());
            if decrypted && !range.is_empty() {
                bytes[range.clone()].copy_from_slice(&clear[range]);
            }
            let truth = if decrypted { WORKED } else { None };
            let deliveries = match random.below(3) {
                0 => vec![truth],
                1 => vec![WORKED, None],
                _ => vec![None, WORKED],
            };
            if deliveries.len() > 1 {
                ambiguous_parts.push(AmbiguousPart::new(part, &deliveries));
            }
            parts.push(Part { end, worked: deliveries[0] });
            start = end;
        }
        (bytes, parts, ambiguous_parts)
    }

    #[test]
    fn the_kept_copies_are_found() {
        unlade_testkit::cases(300, |random| {
            let content = random.below(3000) as usize;
            let (mut bytes, parts, ambiguous_parts) = kept(random, content, 30);
            let record =
                AmbiguousRecord { bytes: &bytes, parts: &parts, ambiguous_parts: &ambiguous_parts };
            let tag = |bytes: &mut [u8], parts: &mut [Part]| tls().tag(NUMBER, bytes, parts);
            let parts = record.solve(tag).unwrap();
            tls().open(NUMBER, &mut bytes, &parts).unwrap();
        });
    }

    #[test]
    fn a_record_that_was_changed_has_no_choice() {
        unlade_testkit::cases(100, |random| {
            let (mut bytes, parts, ambiguous_parts) = kept(random, 2000, 30);
            let at = 5 + random.below(bytes.len() as u64 - 5) as usize;
            bytes[at] ^= 1 << random.below(8);
            let record =
                AmbiguousRecord { bytes: &bytes, parts: &parts, ambiguous_parts: &ambiguous_parts };
            let tag = |bytes: &mut [u8], parts: &mut [Part]| tls().tag(NUMBER, bytes, parts);
            assert!(record.solve(tag).is_none());
        });
    }

    #[test]
    fn more_unknowns_than_the_limit_are_taken_together() {
        let deliveries: Vec<_> = (0..9).map(|generation| Some(worked(generation))).collect();
        let ambiguous_parts: Vec<_> =
            (0..500).map(|part| AmbiguousPart::new(part, &deliveries)).collect();
        assert_eq!(ambiguous_parts[0].deliveries().len(), DELIVERIES_MAX);
        let record = AmbiguousRecord { bytes: &[], parts: &[], ambiguous_parts: &ambiguous_parts };
        assert!(record.unknowns().len() <= UNKNOWNS_MAX);
        assert_eq!(record.unknowns().last().unwrap().end, 500);
    }
}
