//! The longest common subsequence of two values.

use std::ops::Range;

/// A run of equal bytes in both values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: Range<usize>,
    pub second: Range<usize>,
}

impl Run {
    pub fn len(&self) -> usize {
        self.first.len()
    }
}

/// Returns the number of bytes of the table for values of these lengths; `None` if it overflows.
pub(crate) fn table_bytes(first: usize, second: usize) -> Option<usize> {
    (first + 1).checked_mul(second + 1)?.checked_mul(size_of::<u32>())
}

/// Returns the runs of the subsequence, the last one first. Where several subsequences are the
/// longest, it is the one that the protocol's reference implementation returns: a position of the
/// first value is only given up if that is better than one of the second value.
pub(crate) fn runs(first: &[u8], second: &[u8]) -> Vec<Run> {
    let width = second.len() + 1;
    let mut lengths = vec![0u32; (first.len() + 1) * width];
    for (row, one) in first.iter().enumerate() {
        let (above, below) = lengths[row * width..].split_at_mut(width);
        for (column, other) in second.iter().enumerate() {
            below[column + 1] = match one == other {
                true => above[column] + 1,
                false => above[column + 1].max(below[column]),
            };
        }
    }
    let mut runs: Vec<Run> = Vec::new();
    let (mut row, mut column) = (first.len(), second.len());
    while row > 0 && column > 0 {
        if first[row - 1] == second[column - 1] {
            (row, column) = (row - 1, column - 1);
            match runs.last_mut() {
                Some(run) if run.first.start == row + 1 && run.second.start == column + 1 => {
                    (run.first.start, run.second.start) = (row, column);
                }
                _ => runs.push(Run { first: row..row + 1, second: column..column + 1 }),
            }
        } else if lengths[(row - 1) * width + column] > lengths[row * width + column - 1] {
            row -= 1;
        } else {
            column -= 1;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    fn slow(first: &[u8], second: &[u8]) -> usize {
        match (first, second) {
            ([one, first @ ..], [other, second @ ..]) if one == other => 1 + slow(first, second),
            ([_, first_rest @ ..], [_, second_rest @ ..]) => {
                slow(first_rest, second).max(slow(first, second_rest))
            }
            _ => 0,
        }
    }

    #[test]
    fn it_is_common_and_as_long_as_a_slow_one() {
        cases(300, |random| {
            let mut text =
                || -> Vec<u8> { (0..random.below(9)).map(|_| random.pick(b"abc")).collect() };
            let (first, second) = (text(), text());
            let runs = runs(&first, &second);
            assert_eq!(runs.iter().map(Run::len).sum::<usize>(), slow(&first, &second));
            for run in &runs {
                assert_eq!(first[run.first.clone()], second[run.second.clone()]);
            }
            for pair in runs.windows(2) {
                assert!(pair[1].first.end <= pair[0].first.start);
                assert!(pair[1].second.end <= pair[0].second.start);
            }
        });
    }

    #[test]
    fn runs_from_the_end() {
        let found = runs(b"ohmytext", b"mynewtext");
        let expected = [Run { first: 4..8, second: 5..9 }, Run { first: 2..4, second: 0..2 }];
        assert_eq!(found, expected);
        assert_eq!(table_bytes(usize::MAX - 1, 4), None);
    }
}
