//! Percent-encoding of paths, queries and other parts of a URI (RFC 3986 §2.1).

/// Decodes `text` strictly: `None` if a `%` is not followed by two hexadecimal digits.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push((high << 4 | low) as u8);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_notation_is_strict() {
        assert_eq!(decoded("a%3A%c3%BC+").unwrap(), "a:ü+".as_bytes());
        assert_eq!(decoded("%ff%00").unwrap(), [255, 0]);
        assert_eq!(decoded("").unwrap(), []);
        for wrong in ["%", "%4", "%zz", "%+1", "%1", "a%%", "%4ü"] {
            assert!(decoded(wrong).is_none(), "{wrong}");
        }
    }
}
