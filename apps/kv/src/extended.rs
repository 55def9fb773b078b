//! Numbers of `INCRBYFLOAT`: binary floating point with 64 bits of precision, as the x87 extended
//! format has, and their decimal text. Clients of Redis see the digits of that format.

use num_bigint::{BigInt, BigUint, Sign};

/// Precision in bits.
const BITS: u64 = 64;
/// Digits behind the decimal point in the text.
const DECIMALS: u32 = 17;
/// Largest exponent: a number is below 2 to the power of this.
const EXPONENT_MAX: i64 = 16_384;
/// Smallest exponent of the last bit of a number.
const LAST_BIT_MIN: i64 = -16_445;
/// Maximum length of a number's text.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Maximum decimal exponent that is computed; numbers beyond are out of range.
const DECIMAL_EXPONENT_MAX: i64 = 16_000;

/// A number: its digits in binary, times 2 to the power of `exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finite {
    digits: BigInt,
    exponent: i64,
}

/// A number, or one that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extended(Option<Finite>);

impl Extended {
    /// Parses a number in decimal, with or without fraction and exponent, or an infinity. `None` if
    /// it is no number, or too large or too small to be represented.
    pub fn parse(text: &[u8]) -> Option<Extended> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended(None));
        }
        let (digits, exponent) = decimal(text)?;
        let is_zero = digits == BigUint::ZERO;
        if !is_zero && !(-DECIMAL_EXPONENT_MAX..=DECIMAL_EXPONENT_MAX).contains(&exponent) {
            return None;
        }
        let sign = if is_negative { Sign::Minus } else { Sign::Plus };
        let finite = match u32::try_from(exponent) {
            _ if is_zero => Finite { digits: BigInt::ZERO, exponent: 0 },
            Ok(exponent) => {
                let digits = digits * BigUint::from(10u8).pow(exponent);
                rounded(&digits, 0, false, sign)?
            }
            Err(_) => {
                let divisor = BigUint::from(10u8).pow(u32::try_from(-exponent).ok()?);
                // The quotient has more bits than the precision.
                let shift = (BITS + 2 + divisor.bits()).saturating_sub(digits.bits());
                let shifted = digits << shift;
                let quotient = &shifted / &divisor;
                let has_rest = &quotient * &divisor != shifted;
                rounded(&quotient, -(shift as i64), has_rest, sign)?
            }
        };
        // A number that is rounded to zero is out of range.
        (is_zero || finite.digits != BigInt::ZERO).then_some(Extended(Some(finite)))
    }

    /// Returns the sum; `None` if it is not finite.
    pub fn plus(&self, other: &Extended) -> Option<Extended> {
        let (one, other) = (self.0.as_ref()?, other.0.as_ref()?);
        let exponent = one.exponent.min(other.exponent);
        let aligned = |number: &Finite| &number.digits << (number.exponent - exponent) as u64;
        let (sign, digits) = (aligned(one) + aligned(other)).into_parts();
        Some(Extended(Some(rounded(&digits, exponent, false, sign)?)))
    }

    /// Returns the text, with as many decimals as necessary and 17 at most.
    pub fn text(&self) -> String {
        let Some(number) = &self.0 else { return "inf".to_owned() };
        let scaled = number.digits.magnitude() * BigUint::from(10u8).pow(DECIMALS);
        let scaled = match u64::try_from(number.exponent) {
            Ok(left) => scaled << left,
            Err(_) => half_even(&scaled, number.exponent.unsigned_abs(), false),
        };
        let digits = format!("{scaled:0>width$}", width = DECIMALS as usize + 1);
        let (whole, decimals) = digits.split_at(digits.len() - DECIMALS as usize);
        let decimals = decimals.trim_end_matches('0');
        let point = if decimals.is_empty() { "" } else { "." };
        let is_negative = number.digits.sign() == Sign::Minus && scaled != BigUint::ZERO;
        let sign = if is_negative { "-" } else { "" };
        format!("{sign}{whole}{point}{decimals}")
    }
}

/// Parses digits, fraction and exponent. Returns the digits, and the power of ten to multiply by.
fn decimal(text: &[u8]) -> Option<(BigUint, i64)> {
    let end = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (number, exponent) = match end {
        Some(end) => (&text[..end], signed(&text[end + 1..])?),
        None => (text, 0),
    };
    let point = number.iter().position(|byte| *byte == b'.').unwrap_or(number.len());
    let fraction = number.get(point + 1..).unwrap_or_default();
    let digits = [&number[..point], fraction].concat();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = BigUint::parse_bytes(&digits, 10)?;
    Some((value, exponent.saturating_sub(fraction.len() as i64)))
}

/// Parses the exponent; a huge one is limited, because its number is out of range anyway.
fn signed(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let limit = i64::from(i32::MAX);
    let magnitude =
        digits.iter().fold(0, |sum: i64, digit| (sum * 10 + i64::from(digit - b'0')).min(limit));
    Some(if is_negative { -magnitude } else { magnitude })
}

/// Rounds `digits` × 2^`exponent` to the precision. `has_rest`: the exact number is slightly
/// larger. `None` if it is too large.
fn rounded(digits: &BigUint, exponent: i64, has_rest: bool, sign: Sign) -> Option<Finite> {
    let over = digits.bits().saturating_sub(BITS) as i64;
    let drop = over.max(LAST_BIT_MIN - exponent).max(0);
    let rounded = half_even(digits, drop as u64, has_rest);
    if rounded == BigUint::ZERO {
        return Some(Finite { digits: BigInt::ZERO, exponent: 0 });
    }
    let exponent = exponent + drop;
    if rounded.bits() as i64 + exponent > EXPONENT_MAX {
        return None;
    }
    Some(Finite { digits: BigInt::from_biguint(sign, rounded), exponent })
}

/// Returns `digits` / 2^`drop`, rounded to nearest, ties to even.
fn half_even(digits: &BigUint, drop: u64, has_rest: bool) -> BigUint {
    if drop == 0 {
        return digits.clone();
    }
    let mut result = digits >> drop;
    let is_half_set = digits.bit(drop - 1);
    // A set bit below that of the half.
    let has_more = has_rest || digits.trailing_zeros().is_some_and(|zeros| zeros < drop - 1);
    if is_half_set && (has_more || result.bit(0)) {
        result += 1u8;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    fn sum(one: &str, other: &str) -> Option<String> {
        let parse = |text: &str| Extended::parse(text.as_bytes());
        Some(parse(one)?.plus(&parse(other)?)?.text())
    }

    /// Answers of a real Redis on x86-64.
    #[test]
    fn known_sums() {
        for (one, other, expected) in [
            ("1.1", "2.2", "3.3"),
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3.0", "1.0", "4"),
            ("1", "-1.1", "-0.1"),
            ("0", "1e-17", "0.00000000000000001"),
            ("0", "1e-18", "0"),
            ("-1e-18", "0", "0"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1e20", "1", "100000000000000000000"),
            ("1e19", "1", "10000000000000000001"),
            ("507.668257350876", "0", "507.66825735087599999"),
            (".5", "5.", "5.5"),
            ("+3", "0", "3"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} + {other}");
        }
    }

    #[test]
    fn texts_that_are_no_numbers() {
        for text in
            ["", " 1", "1 ", ".", "-", "1e", "e1", "1.2.3", "nan", "x", "1e5000", "1e-6000", "--1"]
        {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text:?}");
        }
        for text in ["inf", "-Infinity", "+inf"] {
            assert_eq!(sum(text, "1"), None);
        }
        assert_eq!(sum("1.1e4932", "1.1e4932"), None);
        assert!(sum("1e4931", "0").is_some_and(|text| text.len() == 4932));
        assert_eq!(sum("0e99999999999", "0").as_deref(), Some("0"));
    }

    /// Integers of 64 bits and their sums are exact.
    #[test]
    fn integers_are_exact() {
        cases(2000, |random| {
            let mut half = || random.next() as i64 >> random.below(63) >> 1;
            let (one, other) = (half(), half());
            let expected = (one + other).to_string();
            assert_eq!(sum(&one.to_string(), &other.to_string()), Some(expected));
        });
    }

    /// A number below 10 has 17 exact decimals, so 14 of them come back as they are.
    #[test]
    fn short_decimals_come_back() {
        cases(2000, |random| {
            let decimals = random.below(100_000_000_000_000u64);
            let text = format!("{}.{decimals:014}", random.below(10));
            let expected = text.trim_end_matches('0').trim_end_matches('.');
            assert_eq!(sum(&text, "0").as_deref(), Some(expected));
        });
    }
}
