//! Bits of values: bit 0 is the highest bit of the first byte.

/// A range of bits, from the first to behind the last.
pub(crate) type Range = std::ops::Range<u64>;

/// Returns a bit; 0 behind the end.
pub(crate) fn get(bytes: &[u8], offset: u64) -> bool {
    let byte = usize::try_from(offset / 8).ok().and_then(|at| bytes.get(at));
    byte.is_some_and(|byte| byte >> (7 - offset % 8) & 1 == 1)
}

/// Sets a bit, and returns its value before. The value grows by zeros.
pub(crate) fn set(bytes: &mut Vec<u8>, offset: u64, bit: bool) -> bool {
    let at = (offset / 8) as usize;
    if at >= bytes.len() {
        bytes.resize(at + 1, 0);
    }
    let mask = 1 << (7 - offset % 8);
    let before = bytes[at] & mask != 0;
    bytes[at] = if bit { bytes[at] | mask } else { bytes[at] & !mask };
    before
}

/// Returns the number of ones in a range, which is within `bytes`.
pub(crate) fn count(bytes: &[u8], range: &Range) -> u64 {
    edges(
        range,
        |from, to| {
            let whole = &bytes[from..to];
            whole.iter().map(|byte| u64::from(byte.count_ones())).sum()
        },
        |offset| u64::from(get(bytes, offset)),
    )
}

/// Adds up a range: its whole bytes by one call, and its other bits one by one.
fn edges(range: &Range, whole: impl Fn(usize, usize) -> u64, single: impl Fn(u64) -> u64) -> u64 {
    let first = range.start.next_multiple_of(8).min(range.end);
    let last = (range.end / 8 * 8).max(first);
    let bits = (range.start..first).chain(last..range.end).map(single).sum::<u64>();
    bits + whole((first / 8) as usize, (last / 8) as usize)
}

/// Returns the first bit with this value in a range, which is within `bytes`.
pub(crate) fn position(bytes: &[u8], bit: bool, range: &Range) -> Option<u64> {
    // Bytes without the bit are skipped whole.
    let none = if bit { 0 } else { 0xff };
    let mut at = range.start;
    while at < range.end {
        if at.is_multiple_of(8) && at + 8 <= range.end && bytes[(at / 8) as usize] == none {
            at += 8;
        } else if get(bytes, at) == bit {
            return Some(at);
        } else {
            at += 1;
        }
    }
    None
}

/// A bitwise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    And,
    Or,
    Xor,
    Not,
}

/// Combines values; shorter ones are padded with zeros.
pub(crate) fn combine(operation: Operation, values: &[&[u8]]) -> Vec<u8> {
    let len = values.iter().map(|value| value.len()).max().unwrap_or(0);
    let mut result = values.first().copied().unwrap_or_default().to_vec();
    result.resize(len, 0);
    if operation == Operation::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    for value in values.iter().skip(1) {
        for (at, byte) in result.iter_mut().enumerate() {
            let other = value.get(at).copied().unwrap_or(0);
            match operation {
                Operation::And => *byte &= other,
                Operation::Or => *byte |= other,
                Operation::Xor => *byte ^= other,
                Operation::Not => {}
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    #[test]
    fn they_agree_with_a_vector_of_bits() {
        cases(500, |random| {
            let mut bytes = Vec::new();
            let mut slow: Vec<bool> = Vec::new();
            for _ in 0..60 {
                let (offset, bit) = (random.below(200), random.chance(1, 2));
                let before = slow.get(offset).copied().unwrap_or(false);
                if offset >= slow.len() {
                    slow.resize((offset / 8 + 1) * 8, false);
                }
                slow[offset] = bit;
                assert_eq!(set(&mut bytes, offset as u64, bit), before);
                assert_eq!(bytes.len() * 8, slow.len());
                let start = random.below(slow.len() + 1);
                let end = start + random.below(slow.len() + 1 - start);
                let range = start as u64..end as u64;
                let ones = slow[start..end].iter().filter(|bit| **bit).count();
                assert_eq!(count(&bytes, &range), ones as u64);
                let at = slow[start..end].iter().position(|other| *other == bit);
                assert_eq!(position(&bytes, bit, &range), at.map(|at| (start + at) as u64));
                let any = random.below(300);
                assert_eq!(get(&bytes, any as u64), slow.get(any).copied().unwrap_or(false));
            }
        });
    }

    #[test]
    fn shorter_values_are_padded() {
        let values: [&[u8]; 2] = [b"\x0f", b"\xff\xf0"];
        assert_eq!(combine(Operation::And, &values), b"\x0f\x00");
        assert_eq!(combine(Operation::Or, &values), b"\xff\xf0");
        assert_eq!(combine(Operation::Xor, &values), b"\xf0\xf0");
        assert_eq!(combine(Operation::Not, &values[1..]), b"\x00\x0f");
        assert_eq!(combine(Operation::Not, &[]), b"");
    }
}
