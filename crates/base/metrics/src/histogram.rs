//! A histogram of durations: logarithmic buckets, each power of two cut into equal parts.
//!
//! A bucket holds the durations above its lower bound, up to and including its upper bound. It is
//! at most 1/32 of them wide, so a quantile has an error below 2 %. Powers of two are bucket
//! bounds: those buckets are rendered.

/// Parts of one power of two, as a power of two.
const PART_BITS: u32 = 5;
/// Parts of one power of two.
const PARTS: usize = 1 << PART_BITS;
/// Durations of 2^37 ns (137 s) and more are counted as 2^37 ns.
const LONGEST_BITS: u32 = 37;
/// Number of buckets.
pub(crate) const BUCKETS: usize = ((LONGEST_BITS - PART_BITS) as usize + 1) * PARTS;

/// The bucket that holds a duration of `ns` nanoseconds.
pub(crate) fn bucket(ns: u64) -> usize {
    // Upper bounds are inclusive: subtracting one makes them exclusive.
    let below = ns.saturating_sub(1).min((1 << LONGEST_BITS) - 1);
    let bits = u64::BITS - below.leading_zeros();
    match bits.checked_sub(PART_BITS + 1) {
        None => below as usize,
        Some(shift) => (shift as usize * PARTS) + (below >> shift) as usize,
    }
}

/// The longest duration, nanoseconds, that bucket `index` holds.
pub(crate) fn upper_ns(index: usize) -> u64 {
    match (index / PARTS).checked_sub(1) {
        None => index as u64 + 1,
        Some(shift) => ((index % PARTS + PARTS) as u64 + 1) << shift,
    }
}

/// The middle of bucket `index`, in nanoseconds.
pub(crate) fn middle_ns(index: usize) -> u64 {
    let lower = index.checked_sub(1).map_or(0, upper_ns);
    (lower + upper_ns(index)).div_ceil(2)
}

/// The non-empty bucket that contains the `q`-quantile.
pub(crate) fn quantile(counts: &[u64], q: f64) -> Option<usize> {
    let total: u64 = counts.iter().sum();
    let rank = ((q.clamp(0.0, 1.0) * total as f64).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    counts.iter().position(|count| {
        seen += count;
        seen >= rank
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_contiguous() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(upper_ns(index)), index);
            assert_eq!(bucket(upper_ns(index) + 1), (index + 1).min(BUCKETS - 1));
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper_ns(BUCKETS - 1), 1 << LONGEST_BITS);
    }

    #[test]
    fn powers_of_two_are_bounds() {
        for bits in 0..=LONGEST_BITS {
            assert_eq!(upper_ns(bucket(1 << bits)), 1 << bits);
        }
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_another_histogram(
            values in prop::collection::vec(1u64..60_000_000_000, 1..300), q in 0.0f64..=1.0
        ) {
            let mut counts = vec![0; BUCKETS];
            let mut other = hdrhistogram::Histogram::<u64>::new(5).unwrap();
            for &value in &values {
                counts[bucket(value)] += 1;
                other.record(value).unwrap();
            }
            let ours = middle_ns(quantile(&counts, q).unwrap()) as f64;
            let theirs = other.value_at_quantile(q) as f64;
            prop_assert!((ours - theirs).abs() <= theirs * 0.02 + 1.0, "{ours} {theirs}");
        }
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        assert_eq!(quantile(&[0; BUCKETS], 0.5), None);
    }
}
