//! Data of a caller that the function gets beside its event: the client context and the trace, as with
//! Lambda.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use unlade_fn_model::lambda::Refusal;

/// The header field with the client context.
pub const CLIENT_CONTEXT_HEADER: &str = "x-amz-client-context";
/// The header field with the trace.
pub const TRACE_HEADER: &str = "x-amzn-trace-id";
/// Longest client context in base64, as with Lambda.
const CLIENT_CONTEXT_BYTES_MAX: usize = 3583;
/// Longest trace; a longer one is replaced.
const TRACE_BYTES_MAX: usize = 256;

/// The client context in a header field, in base64: an object of JSON. Returns its text in ASCII on one
/// line, which is a valid header field.
///
/// # Errors
/// It is too long, or no such object.
pub fn client_context(field: &[u8]) -> Result<String, Refusal> {
    let wrong = |why: String| Refusal::ClientContext(why);
    if field.len() > CLIENT_CONTEXT_BYTES_MAX {
        return Err(wrong(format!("it has more than {CLIENT_CONTEXT_BYTES_MAX} bytes")));
    }
    let bytes = STANDARD.decode(field).map_err(|_| wrong("it is not base64".to_owned()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    // Parsed as the function will, which is to meet no surprise.
    serde_json::from_str::<Map<String, Value>>(&text)
        .map_err(|error| wrong(format!("it is no object of JSON: {error}")))?;
    Ok(in_ascii(&text))
}

/// JSON in ASCII on one line: other characters occur in strings only, line ends between values only.
fn in_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => out.push(character),
            '\t' | '\r' | '\n' => out.push(' '),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

/// The trace of an invocation: the caller's with the fields that it lacks, or else a new one. It is
/// passed on and not recorded.
pub fn trace(given: Option<&str>, invocation: &str) -> String {
    let digits: String = invocation.chars().filter(char::is_ascii_hexdigit).collect();
    let digits = format!("{digits:0<32.32}");
    let (root, parent) = digits.split_at(16);
    let given = given.filter(|given| is_trace(given));
    let mut fields: Vec<String> = match given {
        Some(given) => given.split(';').map(|field| field.trim().to_owned()).collect(),
        None => {
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let seconds = seconds.as_secs() & 0xffff_ffff;
            vec![format!("Root=1-{seconds:08x}-{root}{}", parent.get(..8).unwrap_or_default())]
        }
    };
    // The caller leaves the decision to a service that records.
    fields.retain(|field| !field.is_empty() && field != "Sampled=?");
    for (name, value) in [("Parent", parent), ("Sampled", "0")] {
        let is_there = |field: &String| field.split_once('=').is_some_and(|(key, _)| key == name);
        if !fields.iter().any(is_there) {
            fields.push(format!("{name}={value}"));
        }
    }
    fields.join(";")
}

/// Returns true if a trace is a valid header field and has the id of a trace.
pub fn is_trace(trace: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_id = |id: &str| {
        let parts: Vec<&str> = id.split('-').collect();
        matches!(parts[..], ["1", time, rest]
            if time.len() == 8 && rest.len() == 24 && is_hex(time) && is_hex(rest))
    };
    trace.len() <= TRACE_BYTES_MAX
        && trace.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && trace.split(';').any(|field| field.trim().strip_prefix("Root=").is_some_and(is_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    fn told(json: &str) -> Result<String, Refusal> {
        client_context(STANDARD.encode(json).as_bytes())
    }

    #[test]
    fn a_client_context_keeps_its_meaning_and_is_a_header_field() {
        cases(500, |random| {
            let mut text = String::from("{");
            for number in 0..random.below(6_usize) {
                let value =
                    random.pick(&["5", "\"a b\"", "[1,\n\t2]", "{\"\u{fc}\": null}", "1e3"]);
                let name: String = (0..random.below(9_usize))
                    .map(|_| random.pick(&['a', '\u{e9}', '\u{20ac}', '\u{1f600}', '\u{7f}', ' ']))
                    .collect();
                let comma = if number > 0 { ",\r\n" } else { "" };
                text.push_str(&format!("{comma}\"{number}{name}\":{value}"));
            }
            text.push('}');
            let found = told(&text).unwrap();
            assert!(found.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{found}");
            let values = [&text, &found].map(|t| serde_json::from_str::<Value>(t).unwrap());
            assert_eq!(values[0], values[1], "{text}");
            assert_eq!(told(&found).unwrap(), found);
        });
    }

    #[test]
    fn what_is_no_client_context_is_refused() {
        for (text, due) in [
            ("", "no object"),
            ("5", "no object"),
            ("[]", "no object"),
            ("{\"a\"", "no object"),
            ("{\"a\": \"\n\"}", "no object"),
        ] {
            let refusal = told(text).unwrap_err();
            assert_eq!((refusal.status(), refusal.code()), (400, "InvalidRequestContentException"));
            assert!(refusal.message().contains(due), "{text}: {}", refusal.message());
        }
        assert!(client_context(b"{}").unwrap_err().message().contains("base64"));
        assert!(client_context(b"wyg=").unwrap_err().message().contains("UTF-8"));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(told(&deep).is_err(), "a function could not read it");
        let most = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        assert!(told(&most(2685)).is_ok());
        assert!(told(&most(2688)).unwrap_err().message().contains("3583"));
    }

    #[test]
    fn a_trace_is_the_callers_or_new() {
        const ID: &str = "9f0a1b2c-3d4e-4f60-8192-a3b4c5d6e7f8";
        const ROOT: &str = "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700";
        let parent = "Parent=8192a3b4c5d6e7f8";
        let whole = format!("{ROOT};Parent=9a9197af755a6419;Sampled=1;Lineage=a:0");
        assert_eq!(trace(Some(&whole), ID), whole);
        assert_eq!(trace(Some(ROOT), ID), format!("{ROOT};{parent};Sampled=0"));
        let asked = format!("Self=1-2-3; {ROOT};Sampled=?;");
        assert_eq!(trace(Some(&asked), ID), format!("Self=1-2-3;{ROOT};{parent};Sampled=0"));
        let long = format!("{ROOT};a={}", "x".repeat(TRACE_BYTES_MAX));
        let control = format!("{ROOT};a=\u{7f}");
        for none in [None, Some(""), Some("Root=1-0-0"), Some("x"), Some(&*long), Some(&*control)] {
            let made = trace(none, ID);
            assert!(made.ends_with(&format!(";{parent};Sampled=0")), "{made}");
            assert!(made.contains("-9f0a1b2c3d4e4f608192a3b4;") && is_trace(&made), "{made}");
        }
    }
}
