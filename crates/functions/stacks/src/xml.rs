//! XML of the query protocol's answers.

use crate::error::Failure;

/// The namespace of answers.
const NAMESPACE: &str = "http://cloudformation.amazonaws.com/doc/2010-05-15/";

/// A document that is being written.
#[derive(Default)]
pub struct Xml(String);

impl Xml {
    /// Writes an element with text.
    pub fn text(&mut self, name: &str, text: &str) {
        self.within(name, |xml| xml.escaped(text));
    }

    /// Writes an element with text if there is some.
    pub fn maybe(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// Writes a truth value.
    pub fn flag(&mut self, name: &str, value: bool) {
        self.text(name, if value { "true" } else { "false" });
    }

    /// Writes a time, given in milliseconds since 1970.
    pub fn time(&mut self, name: &str, time_ms: u64) {
        self.text(name, &iso(time_ms));
    }

    /// Writes an element with elements in it.
    pub fn within(&mut self, name: &str, write: impl FnOnce(&mut Xml)) {
        self.0 += &format!("<{name}>");
        write(self);
        self.0 += &format!("</{name}>");
    }

    /// Writes a list.
    pub fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Xml, T),
    ) {
        self.within(name, |xml| {
            for item in items {
                xml.within("member", |xml| write(xml, item));
            }
        });
    }

    /// Writes a list of texts.
    pub fn texts<T: AsRef<str>>(&mut self, name: &str, items: impl IntoIterator<Item = T>) {
        self.list(name, items, |xml, item| xml.escaped(item.as_ref()));
    }

    /// Writes text. A character that XML does not have becomes U+FFFD.
    fn escaped(&mut self, text: &str) {
        for char in text.chars() {
            match char {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\r' => self.0.push_str("&#13;"),
                '\t' | '\n' => self.0.push(char),
                '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
    }

    /// The document so far.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Writes the answer of an operation; `result` writes the members, and none has an operation without
/// any.
pub fn answer(operation: &str, request_id: &str, result: Option<impl FnOnce(&mut Xml)>) -> String {
    let mut xml = Xml::default();
    xml.0 += &format!("<{operation}Response xmlns=\"{NAMESPACE}\">");
    if let Some(result) = result {
        xml.within(&format!("{operation}Result"), result);
    }
    xml.within("ResponseMetadata", |xml| xml.text("RequestId", request_id));
    xml.0 += &format!("</{operation}Response>");
    xml.finish()
}

/// Writes a refusal.
pub fn failure(failure: &Failure, request_id: &str) -> String {
    let mut xml = Xml::default();
    xml.0 += &format!("<ErrorResponse xmlns=\"{NAMESPACE}\">");
    xml.within("Error", |xml| {
        xml.text("Type", "Sender");
        xml.text("Code", failure.kind.code());
        xml.text("Message", &failure.message);
    });
    xml.text("RequestId", request_id);
    xml.0 += "</ErrorResponse>";
    xml.finish()
}

/// A time as in RFC 3339, with milliseconds.
pub fn iso(time_ms: u64) -> String {
    let time = i64::try_from(time_ms / 1000).ok();
    let time = time.and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    let time = time.unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (date, clock) = (time.date(), time.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second(),
        time_ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn text_is_escaped() {
        let hostile = "<a b=\"c\">&amp;\u{1}\r\n]]>\u{ffff}é";
        let text = answer("Op", "id", Some(|xml: &mut Xml| xml.text("Name", hostile)));
        let document = roxmltree::Document::parse(&text).unwrap();
        let name =
            document.descendants().find(|node| node.has_tag_name((NAMESPACE, "Name"))).unwrap();
        assert_eq!(name.text(), Some("<a b=\"c\">&amp;\u{fffd}\r\n]]>\u{fffd}é"));
        let failure = failure(&Failure::new(Kind::ChangeSetNotFound, "a < b"), "id");
        assert!(failure.contains("<Code>ChangeSetNotFound</Code><Message>a &lt; b</Message>"));
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(iso(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(iso(u64::MAX), "1970-01-01T00:00:00.615Z");
    }
}
