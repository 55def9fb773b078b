//! Patterns of keys, as in `KEYS` and `SCAN`: `*`, `?`, `[a-c]`, `[^a]` and `\`.

/// Returns true if `pattern` matches all of `text`. Takes time in proportion to the product of
/// their lengths at most.
pub(crate) fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // After the last star: the pattern behind it, and the text that the star has not taken.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let is_one = match (pattern, text) {
            ([b'*', behind @ ..], _) => {
                star = Some((behind, text));
                pattern = behind;
                continue;
            }
            ([], []) => return true,
            ([], _) | (_, []) => false,
            (_, [first, rest @ ..]) => match one(pattern, *first) {
                Some(behind) => {
                    (pattern, text) = (behind, rest);
                    true
                }
                None => false,
            },
        };
        if is_one {
            continue;
        }
        // The last star takes one more byte: an earlier star need not, because this one can.
        match star {
            Some((behind, [_, rest @ ..])) => {
                star = Some((behind, rest));
                (pattern, text) = (behind, rest);
            }
            _ => return false,
        }
    }
}

/// Returns the pattern behind its first element if that matches `byte`. The pattern is not empty
/// and does not begin with a star.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', behind @ ..] => Some(behind),
        [b'[', class @ ..] => {
            let (is_in, behind) = class_has(class, byte);
            is_in.then_some(behind)
        }
        [b'\\', literal, behind @ ..] => (*literal == byte).then_some(behind),
        [literal, behind @ ..] => (*literal == byte).then_some(behind),
        [] => None,
    }
}

/// Returns true if the class, without its opening bracket, has `byte`; and the pattern behind the
/// class. A class without an end reaches to the end of the pattern.
fn class_has(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (is_negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut is_in = false;
    loop {
        rest = match rest {
            [] => break,
            [b']', behind @ ..] => {
                rest = behind;
                break;
            }
            [b'\\', literal, behind @ ..] => {
                is_in |= *literal == byte;
                behind
            }
            [low, b'-', high, behind @ ..] => {
                is_in |= (*low.min(high)..=*low.max(high)).contains(&byte);
                behind
            }
            [literal, behind @ ..] => {
                is_in |= *literal == byte;
                behind
            }
        };
    }
    (is_in != is_negated, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    #[test]
    fn elements() {
        let both = |pattern: &str, text: &str| is_match(pattern.as_bytes(), text.as_bytes());
        assert!(both("h?llo", "hello") && !both("h?llo", "hllo"));
        assert!(both("h[ae]llo", "hallo") && !both("h[ae]llo", "hillo"));
        assert!(both("h[^e]llo", "hallo") && !both("h[^e]llo", "hello"));
        assert!(both("h[c-a]t", "hbt") && !both("h[a-c]t", "hdt"));
        assert!(both("\\*\\?", "*?") && !both("\\*", "a"));
        assert!(both("[\\]]", "]") && both("[a", "a") && both("a\\", "a\\"));
        assert!(both("", "") && both("*", "") && !both("", "a") && !both("?", ""));
    }

    /// Tries every length of every star.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', behind @ ..], _) => (0..=text.len()).any(|len| slow(behind, &text[len..])),
            (_, []) => false,
            (_, [first, rest @ ..]) => {
                one(pattern, *first).is_some_and(|behind| slow(behind, rest))
            }
        }
    }

    #[test]
    fn it_agrees_with_a_slow_one() {
        let mut matches = 0;
        cases(3000, |random| {
            let pattern: Vec<u8> =
                (0..random.below(8)).map(|_| random.pick(b"ab*?[]^-\\")).collect();
            let text: Vec<u8> = (0..random.below(8)).map(|_| random.pick(b"ab-]")).collect();
            let expected = slow(&pattern, &text);
            matches += u32::from(expected);
            let said = (pattern.escape_ascii().to_string(), text.escape_ascii().to_string());
            assert_eq!(is_match(&pattern, &text), expected, "{said:?}");
        });
        println!("{matches} matches");
    }

    #[test]
    fn stars_that_almost_match_end_soon() {
        let pattern = [b"a*".repeat(30), b"b".to_vec()].concat();
        assert!(!is_match(&pattern, &[b'a'; 5000]));
    }
}
