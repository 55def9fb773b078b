//! Conversion of parameters and results: JSON for the guest, text for the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::operation::Kind;

/// Formats a value as text of a kind; `None` if the value has another type.
pub fn to_text(value: &Value, kind: Kind) -> Option<String> {
    match (kind, value) {
        (Kind::Text, Value::String(text)) => Some(text.clone()),
        (Kind::Bytes, Value::String(text)) => Some(text.clone()),
        (Kind::Bytes, Value::Object(_)) => STANDARD.encode(bytes(value)?).into(),
        (Kind::Integer, Value::Number(number)) => number.as_i64().map(|number| number.to_string()),
        // Python's `bool` is a number, and SDKs send its name.
        (Kind::Integer, Value::Bool(flag)) => Some(if *flag { "True" } else { "False" }.to_owned()),
        (Kind::Boolean, Value::Bool(flag)) => Some(flag.to_string()),
        (Kind::HttpDate, Value::String(text)) => Some(text.clone()),
        (Kind::HttpDate, _) => {
            let seconds = instant(value)?.unix_timestamp();
            let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?);
            Some(httpdate::fmt_http_date(time))
        }
        (Kind::Timestamp, Value::String(text)) => Some(text.clone()),
        (Kind::Timestamp, _) => Some(sent_timestamp(instant(value)?)),
        (Kind::Names, Value::Array(names)) => {
            let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
            names.map(|names| names.join(","))
        }
        _ => None,
    }
}

/// Parses text of a kind; `None` if it is invalid.
pub fn from_text(text: &str, kind: Kind) -> Option<Value> {
    match kind {
        Kind::Text | Kind::Bytes => Some(text.into()),
        Kind::Integer => text.trim().parse::<i64>().ok().map(Value::from),
        Kind::Boolean => Some(text.trim().eq_ignore_ascii_case("true").into()),
        Kind::HttpDate => {
            let time = httpdate::parse_http_date(text.trim()).ok()?;
            let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
            let instant = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
            Some(json!({ "$instant": timestamp(instant) }))
        }
        Kind::Timestamp => {
            let instant = OffsetDateTime::parse(text.trim(), &Rfc3339).ok()?;
            Some(json!({ "$instant": timestamp(instant.to_offset(time::UtcOffset::UTC)) }))
        }
        Kind::Names => Some(text.split(',').map(|name| Value::from(name.trim())).collect()),
    }
}

/// The instant in `{"$instant": …}`.
pub fn instant(value: &Value) -> Option<OffsetDateTime> {
    let text = value.get("$instant")?.as_str()?;
    let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Some(instant.to_offset(time::UtcOffset::UTC))
}

/// The bytes in `{"$octets": …}`.
pub fn bytes(value: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(value.get("$octets")?.as_str()?).ok()
}

/// Formats `2026-01-02T03:04:05Z`, with six decimal digits if they are not zero, as SDKs do.
fn sent_timestamp(at: OffsetDateTime) -> String {
    let whole = timestamp(at.replace_millisecond(0).unwrap_or(at));
    let whole = whole.trim_end_matches(".000Z");
    match at.microsecond() {
        0 => format!("{whole}Z"),
        some => format!("{whole}.{some:06}Z"),
    }
}

/// Formats `2026-01-02T03:04:05.678Z`.
fn timestamp(at: OffsetDateTime) -> String {
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

/// A time as `{"$instant": …}`, and as an HTTP date.
pub fn of_time(time: SystemTime) -> (Value, String) {
    let whole = OffsetDateTime::from(time);
    (json!({ "$instant": timestamp(whole) }), httpdate::fmt_http_date(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_their_place_wants() {
        let value = json!({"$instant": "2026-01-02T05:04:05+02:00"});
        let date = "Fri, 02 Jan 2026 03:04:05 GMT";
        assert_eq!(to_text(&value, Kind::HttpDate).as_deref(), Some(date));
        assert_eq!(to_text(&value, Kind::Timestamp).as_deref(), Some("2026-01-02T03:04:05Z"));
        let fine = json!({"$instant": "2026-01-02T03:04:05.006007Z"});
        let due = "2026-01-02T03:04:05.006007Z";
        assert_eq!(to_text(&fine, Kind::Timestamp).as_deref(), Some(due));
        let zulu = "2026-01-02T03:04:05.000Z";
        assert_eq!(from_text(date, Kind::HttpDate), Some(json!({ "$instant": zulu })));
        assert_eq!(from_text(zulu, Kind::Timestamp), Some(json!({ "$instant": zulu })));
        assert_eq!(from_text("yesterday", Kind::HttpDate), None);
        assert_eq!(to_text(&json!({"$instant": 5}), Kind::HttpDate), None);
    }

    #[test]
    fn other_kinds_are_not_taken_for_each_other() {
        assert_eq!(to_text(&json!(5), Kind::Text), None);
        assert_eq!(to_text(&json!(5.5), Kind::Integer), None);
        assert_eq!(to_text(&json!("true"), Kind::Boolean), None);
        assert_eq!(to_text(&json!({"$octets": "AAE="}), Kind::Bytes).as_deref(), Some("AAE="));
        assert_eq!(to_text(&json!({"$octets": "AAE="}), Kind::Text), None);
        assert_eq!(to_text(&json!(["a", "b"]), Kind::Names).as_deref(), Some("a,b"));
        assert_eq!(from_text("17", Kind::Integer), Some(json!(17)));
    }
}
