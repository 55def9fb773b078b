//! Form bodies of the query protocol: `Action=Publish&TopicArn=…`.

use super::members::{COUNT_MAX, Unreadable};

/// Decodes a form.
///
/// # Errors
/// It is not a form, or has too many fields.
pub fn fields(body: &[u8]) -> Result<Vec<(String, String)>, Unreadable> {
    let text = std::str::from_utf8(body).map_err(|_| Unreadable("it is not text"))?;
    let mut out = Vec::new();
    for field in text.split('&').filter(|field| !field.is_empty()) {
        if out.len() >= COUNT_MAX {
            return Err(Unreadable("it has too many fields"));
        }
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        out.push((decoded(name)?, decoded(value)?));
    }
    Ok(out)
}

fn decoded(text: &str) -> Result<String, Unreadable> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|digit| (digit as char).to_digit(16));
                let pair = digit().zip(digit());
                let (high, low) = pair.ok_or(Unreadable("an escape is incomplete"))?;
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(out).map_err(|_| Unreadable("it is not text"))
}

/// The value of a field that occurs once; `None` otherwise.
pub fn only<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut found = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
    match (found.next(), found.next()) {
        (Some((field, value)), None) if field == name => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_decoded_once() {
        let found = fields(b"Action=Publish&Message=a%20b+c%2525&x&&y=%C3%A9").unwrap();
        let due = [("Action", "Publish"), ("Message", "a b c%25"), ("x", ""), ("y", "\u{e9}")];
        assert_eq!(found, due.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for wrong in [&b"a=%"[..], b"a=%f", b"a=%zz", b"a=\xff", b"a=%ff"] {
            assert!(fields(wrong).is_err(), "{wrong:?}");
        }
        assert!(fields("a=1&".repeat(COUNT_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_field_that_could_be_read_in_two_ways_has_no_value() {
        let of = |text: &str| fields(text.as_bytes()).unwrap();
        assert_eq!(only(&of("Action=a&b=c"), "Action"), Some("a"));
        for text in ["Action=a&Action=b", "Action=a&action=b", "action=a", "b=c"] {
            assert_eq!(only(&of(text), "Action"), None, "{text}");
        }
    }
}
