//! Percent-encoding (RFC 3986 §2.1) in SigV4's form: all characters except unreserved ones.

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Encodes all characters that are neither unreserved nor in `safe`.
pub fn percent(text: &str, safe: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if unreserved || safe.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

/// Decodes percent-encoding; with `plus`, `+` is a space. Invalid sequences stay. Invalid UTF-8 is
/// replaced.
pub fn unpercent(text: &str, plus: bool) -> String {
    let input = text.as_bytes();
    let mut out = Vec::with_capacity(input.len());
    let mut at = 0;
    while let Some(&byte) = input.get(at) {
        let pair = input.get(at + 1..at + 3).filter(|_| byte == b'%');
        let decoded = pair.and_then(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?));
        match decoded {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(if plus && byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    match String::from_utf8(out) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(percent("a b/ü~", b"/"), "a%20b/%C3%BC~");
        assert_eq!(unpercent("a+b%2Bc%zz%4", true), "a b+c%zz%4");
        cases(200, |random| {
            let count = random.below(20);
            let text: String =
                (0..count).filter_map(|_| char::from_u32(random.below(0x500) as u32)).collect();
            let encoded = percent(&text, b"");
            assert!(encoded.bytes().all(|o| o.is_ascii_alphanumeric() || b"%-._~".contains(&o)));
            assert_eq!(unpercent(&encoded, true), text);
        });
    }
}
