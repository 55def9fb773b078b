//! The members of a JSON body that tell what a request is on. Everything else is skipped and not
//! kept.
//!
//! Parsers differ in a member that occurs twice, and some ignore the case of names: a body in which
//! that could matter is unreadable.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Most members and entries that are kept or looked at.
pub const COUNT_MAX: usize = 20_000;

/// The reason why a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

/// A kept part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Kept>),
    /// An object: names, and values where they are wanted.
    Object(Vec<(String, Kept)>),
    /// Anything else, or not wanted.
    Skipped,
}

impl Kept {
    /// A member of an object.
    pub fn get(&self, name: &str) -> Option<&Kept> {
        self.members().iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    /// The members of an object; none for anything else.
    pub fn members(&self) -> &[(String, Kept)] {
        if let Kept::Object(members) = self { members } else { &[] }
    }

    /// The entries of a list; none for anything else.
    pub fn entries(&self) -> &[Kept] {
        if let Kept::List(entries) = self { entries } else { &[] }
    }

    /// The text.
    pub fn text(&self) -> Option<&str> {
        if let Kept::Text(text) = self { Some(text) } else { None }
    }
}

/// The members of a service's JSON bodies that name resources.
pub fn wanted(service: &str) -> &'static [&'static str] {
    match service {
        "dynamodb" => &[
            "TableName",
            "IndexName",
            "RequestItems",
            "TransactItems",
            "Get",
            "Put",
            "Update",
            "Delete",
            "ConditionCheck",
        ],
        "sqs" => &["QueueUrl", "QueueName", "QueueOwnerAWSAccountId"],
        "secretsmanager" => &["SecretId", "Name", "SecretIdList", "Filters"],
        "ssm" => &["Name", "Names", "Path"],
        "kinesis" => &["StreamName", "StreamARN"],
        "events" => &["Entries", "EventBusName", "Name", "Rule", "EndpointId"],
        "logs" => &["logGroupName", "logGroupIdentifier"],
        _ => &[],
    }
}

/// Reads a JSON object; keeps the members with `wanted` names at any depth below kept ones.
///
/// # Errors
/// It is not an object, or could be read in two ways.
pub fn read(body: &[u8], wanted: &[&str]) -> Result<Kept, Unreadable> {
    if body.is_empty() {
        return Ok(Kept::Object(Vec::new()));
    }
    let mut left = COUNT_MAX;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let keep = Keep { wanted, left: &mut left, depth: 0 };
    let kept = keep.deserialize(&mut deserializer);
    let kept = kept.and_then(|kept| deserializer.end().map(|()| kept));
    match kept {
        Ok(kept @ Kept::Object(_)) => Ok(kept),
        _ => Err(Unreadable("it is not a JSON object whose members occur once")),
    }
}

/// Reads one value.
struct Keep<'a> {
    wanted: &'a [&'a str],
    left: &'a mut usize,
    depth: usize,
}

impl Keep<'_> {
    fn inner(&mut self) -> Keep<'_> {
        Keep { wanted: self.wanted, left: self.left, depth: self.depth + 1 }
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| E::custom("too many members"))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Keep<'_> {
    type Value = Kept;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kept, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep<'_> {
    type Value = Kept;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Kept, E> {
        Ok(Kept::Skipped)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Kept, E> {
        Ok(Kept::Skipped)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Kept, E> {
        Ok(Kept::Skipped)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kept, E> {
        Ok(Kept::Skipped)
    }

    fn visit_unit<E>(self) -> Result<Kept, E> {
        Ok(Kept::Skipped)
    }

    fn visit_str<E>(self, text: &str) -> Result<Kept, E> {
        Ok(Kept::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut entries: A) -> Result<Kept, A::Error> {
        let mut out = Vec::new();
        while let Some(entry) = entries.next_element_seed(self.inner())? {
            self.count()?;
            out.push(entry);
        }
        Ok(Kept::List(out))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Kept, A::Error> {
        let mut out: Vec<(String, Kept)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            self.count()?;
            // Names below are those of tables and attributes, too.
            let folded =
                self.depth == 0 && self.wanted.iter().any(|w| w.eq_ignore_ascii_case(&name));
            let key = if folded { name.to_ascii_lowercase() } else { name.clone() };
            if !names.insert(key) {
                return Err(A::Error::custom("a member occurs twice"));
            }
            let value = match self.wanted.contains(&name.as_str()) {
                true => members.next_value_seed(self.inner())?,
                false if folded => return Err(A::Error::custom("a member in another case")),
                false => members.next_value::<IgnoredAny>().map(|_| Kept::Skipped)?,
            };
            out.push((name, value));
        }
        Ok(Kept::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use unlade_testkit::{Random, cases};

    #[test]
    fn only_what_is_wanted_is_kept() {
        let body = br#"{"TableName":"t","Item":{"TableName":{"S":"x"}},"N":[1.5,null,true,-1],
            "RequestItems":{"a":[{"b":1}],"TableName":"c"}}"#;
        let kept = read(body, &["TableName", "RequestItems"]).unwrap();
        assert_eq!(kept.get("TableName").and_then(Kept::text), Some("t"));
        assert_eq!(kept.get("Item"), Some(&Kept::Skipped));
        let tables = kept.get("RequestItems").unwrap();
        assert_eq!(tables.get("a"), Some(&Kept::Skipped));
        assert_eq!(tables.get("TableName").and_then(Kept::text), Some("c"));
        assert_eq!(read(b"", &[]), Ok(Kept::Object(Vec::new())));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_not_read() {
        for body in [
            r#"{"TableName":"a","TableName":"b"}"#,
            r#"{"TableName":"a","tablename":"b"}"#,
            r#"{"tablename":"a"}"#,
            r#"{"Table\u004eame":"a","TableName":"b"}"#,
            r#"{"x":1,"x":2}"#,
            r#"{"TableName":{"a":1,"a":2}}"#,
            r#"{"TableName":"a"} {"TableName":"b"}"#,
            r#"["TableName"]"#,
            r#""TableName""#,
            "TableName",
            "\u{feff}{}",
            "{",
        ] {
            assert!(read(body.as_bytes(), &["TableName"]).is_err(), "{body}");
        }
        assert!(read(b"{\"a\":\"\xff\"}", &["a"]).is_err());
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(COUNT_MAX));
        assert!(read(many.as_bytes(), &["a"]).is_err());
        let deep = "[".repeat(100_000);
        assert!(read(format!("{{\"a\":{deep}").as_bytes(), &["a"]).is_err());
    }

    fn any(random: &mut Random, depth: u32) -> Value {
        let name = |random: &mut Random| ["a", "b", "c", "d"][random.below(4_u64) as usize];
        match random.below(if depth == 0 { 3_u64 } else { 5 }) {
            0 => json!(name(random)),
            1 => json!(random.below(1000_u64)),
            2 => Value::Null,
            3 => (0..random.below(4_u64)).map(|_| any(random, depth - 1)).collect(),
            _ => {
                let count = random.below(4_u64);
                let members = (0..count).map(|_| (name(random).to_owned(), any(random, depth - 1)));
                Value::Object(members.collect())
            }
        }
    }

    fn oracle(value: &Value, wanted: &[&str]) -> Kept {
        match value {
            Value::String(text) => Kept::Text(text.clone()),
            Value::Array(entries) => {
                Kept::List(entries.iter().map(|entry| oracle(entry, wanted)).collect())
            }
            Value::Object(members) => Kept::Object(
                members
                    .iter()
                    .map(|(name, value)| {
                        let is_wanted = wanted.contains(&name.as_str());
                        let kept = if is_wanted { oracle(value, wanted) } else { Kept::Skipped };
                        (name.clone(), kept)
                    })
                    .collect(),
            ),
            _ => Kept::Skipped,
        }
    }

    /// Compares with a parser that keeps everything.
    #[test]
    fn kept_members_are_those_of_the_whole_value() {
        cases(2000, |random| {
            let value = json!({"a": any(random, 4), "b": any(random, 2), "c": any(random, 1)});
            let wanted = if random.below(2_u64) == 0 { &["a", "d"][..] } else { &["b", "c"][..] };
            let kept = read(value.to_string().as_bytes(), wanted).unwrap();
            assert_eq!(kept, oracle(&value, wanted));
        });
    }
}
