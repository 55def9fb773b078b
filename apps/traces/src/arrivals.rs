//! Start times of a trace's invocations.

use std::ops::Range;

use unlade_testkit::Random;

use crate::azure2019::Invocations;

/// Maximum number of arrivals in one call.
pub const ARRIVALS_MAX: u64 = 1 << 24;
/// Microseconds per minute.
pub const MINUTE_US: u64 = 60_000_000;

/// Error for a trace with too many arrivals; take fewer minutes or functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{arrivals} arrivals; take fewer minutes or functions: {ARRIVALS_MAX} at most")]
pub struct TooManyArrivals {
    /// Number of arrivals.
    pub arrivals: u64,
}

/// Start of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// Time since the start of the first minute.
    pub at_us: u64,
    /// Index of the row.
    pub row: u32,
}

/// Returns the arrivals of a range of minutes (counted from 0), in order. A file contains the
/// number of each minute; within the minute they are uniformly distributed, like those of a
/// Poisson process with a known number.
///
/// # Errors
/// There are more than [`ARRIVALS_MAX`].
pub fn arrivals(
    rows: &[Invocations],
    minutes: Range<usize>,
    seed: u64,
) -> Result<Vec<Arrival>, TooManyArrivals> {
    let counts = |row: &Invocations| -> Vec<u32> {
        let end = minutes.end.min(row.per_minute.len());
        row.per_minute.get(minutes.start..end).unwrap_or_default().to_vec()
    };
    let total = |row: &Invocations| counts(row).into_iter().map(u64::from).sum::<u64>();
    let all: u64 = rows.iter().map(total).fold(0, u64::saturating_add);
    if all > ARRIVALS_MAX {
        return Err(TooManyArrivals { arrivals: all });
    }
    let mut made = Vec::with_capacity(all as usize);
    for (number, row) in (0..).zip(rows) {
        let mut random = Random::numbered(seed, u64::from(number));
        for (minute, count) in (0u64..).zip(counts(row)) {
            made.extend((0..count).map(|_| {
                let at_us = minute * MINUTE_US + random.below(MINUTE_US);
                Arrival { at_us, row: number }
            }));
        }
    }
    made.sort_unstable();
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::azure2019::Trigger;
    use unlade_testkit::cases;

    fn row(per_minute: Vec<u32>) -> Invocations {
        Invocations {
            owner: "o".into(),
            app: "a".into(),
            function: "f".into(),
            trigger: Trigger::Http,
            per_minute,
        }
    }

    #[test]
    fn each_minute_has_its_arrivals() {
        cases(100, |random| {
            let minutes = 1 + random.below(20usize);
            let mut rows = Vec::new();
            for _ in 0..1 + random.below(5u32) {
                rows.push(row((0..minutes).map(|_| random.below(6u32)).collect()));
            }
            let range = random.below(minutes)..minutes + random.below(3usize);
            let made = arrivals(&rows, range.clone(), random.next()).unwrap();
            assert!(made.is_sorted());
            for (number, row) in rows.iter().enumerate() {
                for minute in range.clone() {
                    let own = made.iter().filter(|arrival| {
                        let at = arrival.at_us / MINUTE_US;
                        arrival.row as usize == number && at == (minute - range.start) as u64
                    });
                    let due = row.per_minute.get(minute).copied().unwrap_or(0);
                    assert_eq!(own.count(), due as usize);
                }
            }
        });
    }

    #[test]
    fn too_many_are_refused_before_they_are_made() {
        let rows = vec![row(vec![u32::MAX; 1440]); 3];
        let refused = arrivals(&rows, 0..1440, 1).unwrap_err();
        assert_eq!(refused.arrivals, u64::from(u32::MAX) * 1440 * 3);
        assert!(arrivals(&rows, 1440..2000, 1).unwrap().is_empty());
    }
}
