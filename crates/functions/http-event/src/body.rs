//! The body of a request in an event: text, or base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Media types of text beside `text/…`, `…+json` and `…+xml`.
const TEXT: [&str; 4] =
    ["application/javascript", "application/json", "application/x-javascript", "application/xml"];

/// Returns true if bodies of a content type are text.
fn is_text(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+json")
        || essence.ends_with("+xml")
        || TEXT.contains(&essence.as_str())
}

/// The body as text, and true if that is base64. A body is base64 unless its content type is one of text,
/// or absent, it is not encoded (compressed), and it is UTF-8.
pub fn encoded(
    body: &[u8],
    content_type: Option<&str>,
    content_encoding: Option<&str>,
) -> (String, bool) {
    let may_be_text = content_type.is_none_or(is_text)
        && content_encoding.is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"));
    match std::str::from_utf8(body) {
        Ok(text) if may_be_text => (text.to_owned(), false),
        _ => (STANDARD.encode(body), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_and_the_rest_is_base64() {
        for (kind, encoding, is_base64) in [
            (Some("text/plain; charset=utf-8"), None, false),
            (Some("Application/JSON"), Some("identity"), false),
            (Some("application/problem+json"), None, false),
            (Some("image/svg+xml"), None, false),
            (None, None, false),
            (Some("application/json"), Some("gzip"), true),
            (Some("application/x-www-form-urlencoded"), None, true),
            (Some("application/octet-stream"), None, true),
        ] {
            let due = if is_base64 { "YT1i" } else { "a=b" };
            assert_eq!(encoded(b"a=b", kind, encoding), (due.to_owned(), is_base64), "{kind:?}");
        }
        assert_eq!(encoded(&[0xff], Some("text/plain"), None), ("/w==".to_owned(), true));
        assert_eq!(encoded(b"", None, None), (String::new(), false));
    }
}
