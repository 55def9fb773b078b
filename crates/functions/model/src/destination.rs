//! ARNs of queues, topics, functions and event buses: the destinations of asynchronous invocations, and
//! the sources of events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest ARN, in bytes.
const ARN_BYTES_MAX: usize = 350;

/// The kind of a [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A queue of Amazon SQS.
    Queue,
    /// A topic of Amazon SNS.
    Topic,
    /// A function of Lambda.
    Function,
    /// An event bus of Amazon EventBridge.
    Bus,
}

/// A queue, topic, function or event bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// The kind.
    pub kind: Kind,
    /// The ARN.
    pub arn: String,
    /// The region.
    pub region: String,
    /// The account: digits.
    pub account: String,
    /// The name; of a function with its qualifier, if there is one: `NAME:QUALIFIER`.
    pub name: String,
}

impl Target {
    /// Parses an ARN.
    ///
    /// # Errors
    /// It is none of these kinds, or one of a queue or topic in order (`.fifo`), for humans.
    pub fn parse(arn: &str) -> Result<Target, String> {
        let wrong = || {
            format!(
                "{arn:?} is no ARN of a queue (arn:aws:sqs:REGION:ACCOUNT:NAME), topic (sns), \
                 function (lambda) or event bus (events)"
            )
        };
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        let ["arn", partition, service, region, account, rest] = parts[..] else {
            return Err(wrong());
        };
        let (kind, name) = match service {
            "sqs" => (Kind::Queue, Some(rest)),
            "sns" => (Kind::Topic, Some(rest)),
            "lambda" => (Kind::Function, rest.strip_prefix("function:")),
            "events" => (Kind::Bus, rest.strip_prefix("event-bus/")),
            _ => return Err(wrong()),
        };
        let name = name.ok_or_else(wrong)?;
        let is_word = |text: &str, more: &[u8]| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
            !text.is_empty() && text.bytes().all(allowed)
        };
        let is_account = account.bytes().all(|byte| byte.is_ascii_digit()) && !account.is_empty();
        let is_name = match kind {
            Kind::Function => {
                let mut parts = name.split(':');
                parts.clone().count() <= 2 && parts.all(|part| is_word(part, b"-_$"))
            }
            _ => is_word(name, b"-_./"),
        };
        let is_arn = arn.len() <= ARN_BYTES_MAX && partition.starts_with("aws");
        if !is_arn || !is_word(partition, b"-") || !is_word(region, b"-") || !is_account || !is_name
        {
            return Err(wrong());
        }
        if name.ends_with(".fifo") && matches!(kind, Kind::Queue | Kind::Topic) {
            return Err(format!("{arn}: queues and topics in order (FIFO) are not served"));
        }
        let text = |text: &str| text.to_owned();
        let (arn, region, account) = (text(arn), text(region), text(account));
        Ok(Target { kind, arn, region, account, name: text(name) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arn)
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Target, String> {
        Target::parse(&text)
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.arn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arns_have_kinds() {
        for (text, kind, name) in [
            ("arn:aws:sqs:us-east-1:123456789012:q-1", Kind::Queue, "q-1"),
            ("arn:aws-cn:sns:cn-north-1:123456789012:t", Kind::Topic, "t"),
            ("arn:aws:lambda:us-east-1:000000000000:function:f", Kind::Function, "f"),
            ("arn:aws:lambda:us-east-1:000000000000:function:f:live", Kind::Function, "f:live"),
            ("arn:aws:events:us-east-1:123456789012:event-bus/a/b", Kind::Bus, "a/b"),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!((target.kind, target.name.as_str()), (kind, name));
            let json = serde_json::to_string(&target).unwrap();
            assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
            assert_eq!(target.to_string(), text);
        }
        for wrong in [
            "",
            "q",
            "arn:aws:s3:::bucket",
            "arn:aws:sqs:us-east-1:123456789012:",
            "arn:aws:sqs:us-east-1:12a:q",
            "arn:aws:sqs::123456789012:q",
            "arn:aws:sqs:us-east-1:123456789012:a b",
            "arn:aws:sqs:us-east-1:123456789012:a\"b",
            "arn:aws:sqs:us-east-1:123456789012:q.fifo",
            "arn:aws:sns:us-east-1:123456789012:t.fifo",
            "arn:aws:lambda:us-east-1:000000000000:f",
            "arn:aws:lambda:us-east-1:000000000000:function:f:a:b",
            "arn:aws:events:us-east-1:123456789012:rule/r",
            "arn:evil:sqs:us-east-1:123456789012:q",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
        let long = format!("arn:aws:sqs:us-east-1:123456789012:{}", "q".repeat(400));
        assert!(Target::parse(&long).is_err());
    }
}
