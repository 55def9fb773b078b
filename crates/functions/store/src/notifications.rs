//! The notification configuration of a bucket: the changes of objects that invoke functions.
//!
//! It is in `.unlade/notifications/BUCKET`, as rules; at most one of them matches a change.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use s3s::dto::*;
use s3s::xml;
use s3s::{S3Request, S3Result};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::disk::{self, Disk, there};
use crate::fault::Fault;
use crate::objects::Objects;
use crate::outbox::Question;
use crate::vault::{SMALL_BYTES_MAX, Vault};

/// Most configurations of a bucket (S3 user guide, *Quotas*).
const RULES_MAX: usize = 100;
/// Most characters of an id.
const ID_CHARS_MAX: usize = 255;
/// Most characters of the value of a filter.
const FILTER_CHARS_MAX: usize = 1024;
/// Events of a configuration, with those that stand for several.
const EVENTS: [&str; 8] = [
    "s3:ObjectCreated:*",
    "s3:ObjectCreated:Put",
    "s3:ObjectCreated:Post",
    "s3:ObjectCreated:Copy",
    "s3:ObjectCreated:CompleteMultipartUpload",
    "s3:ObjectRemoved:*",
    "s3:ObjectRemoved:Delete",
    "s3:ObjectRemoved:DeleteMarkerCreated",
];
/// Timeout of the gateway's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A configuration: events of keys that invoke a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its id.
    pub id: String,
    /// The ARN of the function.
    pub function: String,
    /// The events, as `s3:ObjectCreated:*`.
    pub events: Vec<String>,
    /// The beginning of the keys.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prefix: Option<String>,
    /// The end of the keys.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suffix: Option<String>,
}

/// Returns true if an event of a configuration includes one (`ObjectCreated:Put`).
fn includes(of_rule: &str, event: &str) -> bool {
    let own = of_rule.strip_prefix("s3:").unwrap_or(of_rule);
    own == event || own.strip_suffix('*').is_some_and(|start| event.starts_with(start))
}

/// Returns true if one of two texts begins (or ends, by `is`) with the other one.
fn overlap(a: Option<&String>, b: Option<&String>, is: fn(&str, &str) -> bool) -> bool {
    let (a, b) = (a.map_or("", |a| a), b.map_or("", |b| b));
    is(a, b) || is(b, a)
}

impl Rule {
    /// Returns true if the event (`ObjectCreated:Put`) of a key is one of this configuration.
    pub fn matches(&self, event: &str, key: &str) -> bool {
        self.events.iter().any(|own| includes(own, event))
            && self.prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix))
            && self.suffix.as_ref().is_none_or(|suffix| key.ends_with(suffix))
    }

    /// Returns true if a change may match both configurations.
    pub fn overlaps(&self, other: &Rule) -> bool {
        let is_shared = |a: &String, b: &String| {
            let [a, b] = [a, b].map(|event| event.trim_start_matches("s3:"));
            includes(a, b) || includes(b, a)
        };
        self.events.iter().any(|a| other.events.iter().any(|b| is_shared(a, b)))
            && overlap(self.prefix.as_ref(), other.prefix.as_ref(), |a, b| a.starts_with(b))
            && overlap(self.suffix.as_ref(), other.suffix.as_ref(), |a, b| a.ends_with(b))
    }
}

fn wrong<T>(why: String) -> Result<T, Fault> {
    Err(Fault::Argument(why))
}

/// Returns true if a text has the form of a function's ARN: with a name and perhaps a qualifier.
fn is_function(arn: &str) -> bool {
    let parts: Vec<&str> = arn.split(':').collect();
    let has_form = matches!(
        parts.as_slice(),
        ["arn", _, "lambda", _, _, "function", _] | ["arn", _, "lambda", _, _, "function", _, _]
    );
    has_form && parts.iter().all(|part| !part.is_empty()) && !arn.contains(char::is_whitespace)
}

/// The prefix and the suffix of a filter.
fn filter(
    filter: Option<NotificationConfigurationFilter>,
) -> Result<(Option<String>, Option<String>), Fault> {
    let rules = filter.and_then(|filter| filter.key).and_then(|key| key.filter_rules);
    let (mut prefix, mut suffix) = (None, None);
    for rule in rules.unwrap_or_default() {
        let name = rule.name.as_ref().map_or("", |name| name.as_str());
        let value = rule.value.unwrap_or_default();
        if value.chars().count() > FILTER_CHARS_MAX {
            return wrong(format!(
                "the value of a filter has at most {FILTER_CHARS_MAX} characters"
            ));
        }
        let place = match name.to_ascii_lowercase().as_str() {
            "prefix" => &mut prefix,
            "suffix" => &mut suffix,
            _ => return wrong(format!("the filter {name:?} is neither prefix nor suffix")),
        };
        if place.replace(value).is_some() {
            return wrong(format!("a filter has more than one {name}; give one value"));
        }
    }
    Ok((prefix, suffix))
}

/// Makes the rules of a document.
///
/// # Errors
/// It is invalid, or names destinations that are not offered.
pub fn rules(document: NotificationConfiguration) -> Result<Vec<Rule>, Fault> {
    let is_some = |count: Option<usize>| count.unwrap_or(0) > 0;
    if is_some(document.queue_configurations.as_ref().map(Vec::len))
        || is_some(document.topic_configurations.as_ref().map(Vec::len))
        || document.event_bridge_configuration.is_some()
    {
        let why = "this store notifies functions only: remove the configurations of queues, topics and \
                   EventBridge, or let a function pass its events on";
        return Err(Fault::Unsupported(why.to_owned()));
    }
    let all = document.lambda_function_configurations.unwrap_or_default();
    if all.len() > RULES_MAX {
        return wrong(format!("a bucket has at most {RULES_MAX} configurations"));
    }
    let mut rules: Vec<Rule> = Vec::with_capacity(all.len());
    for (at, one) in all.into_iter().enumerate() {
        let function = one.lambda_function_arn;
        if !is_function(&function) {
            return wrong(format!(
                "{function:?} is no ARN of a function: arn:aws:lambda:REGION:ACCOUNT:function:NAME"
            ));
        }
        let mut events: Vec<String> = Vec::new();
        for event in &one.events {
            let event: &str = event.as_ref();
            if !EVENTS.contains(&event) {
                let all = EVENTS.join(", ");
                return wrong(format!("{event:?} is no event of this store, which has {all}"));
            }
            if !events.iter().any(|own| own == event) {
                events.push(event.to_owned());
            }
        }
        if events.is_empty() {
            return wrong("a configuration names at least one event".to_owned());
        }
        // The same document has the same ids, wherever it is sent.
        let id = one.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("rule-{}", at + 1));
        if id.chars().count() > ID_CHARS_MAX {
            return wrong(format!("an id has at most {ID_CHARS_MAX} characters"));
        }
        let (prefix, suffix) = filter(one.filter)?;
        let rule = Rule { id, function, events, prefix, suffix };
        if let Some(other) = rules.iter().find(|other| other.id == rule.id) {
            return wrong(format!(
                "two configurations have the id {:?}; each needs its own",
                other.id
            ));
        }
        if let Some(other) = rules.iter().find(|other| other.overlaps(&rule)) {
            return wrong(format!(
                "the configurations {:?} and {:?} overlap: a change would match both; give them other \
                 events, prefixes or suffixes",
                other.id, rule.id
            ));
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// Makes the rules of a document of XML, as a request has it.
///
/// # Errors
/// The text is no document, or see [`rules`].
pub fn parse(text: &[u8]) -> Result<Vec<Rule>, String> {
    let mut reader = xml::Deserializer::new(text);
    let document: Result<NotificationConfiguration, _> = xml::Deserialize::deserialize(&mut reader);
    let document = document.map_err(|error| error.to_string())?;
    reader.expect_eof().map_err(|error| error.to_string())?;
    rules(document).map_err(|fault| fault.to_string())
}

/// The document of rules.
fn document(rules: Vec<Rule>) -> LambdaFunctionConfigurationList {
    let of_rule = |rule: Rule| {
        let filter = |name: &'static str, value: Option<String>| {
            let name = Some(FilterRuleName::from_static(name));
            value.map(|value| FilterRule { name, value: Some(value) })
        };
        let filters = [filter("Prefix", rule.prefix), filter("Suffix", rule.suffix)];
        let filters: Vec<FilterRule> = filters.into_iter().flatten().collect();
        let key = S3KeyFilter { filter_rules: Some(filters) };
        let has_filter = key.filter_rules.as_ref().is_some_and(|all| !all.is_empty());
        LambdaFunctionConfiguration {
            events: rule.events.into_iter().map(Event::from).collect(),
            filter: has_filter.then_some(NotificationConfigurationFilter { key: Some(key) }),
            id: Some(rule.id),
            lambda_function_arn: rule.function,
        }
    };
    rules.into_iter().map(of_rule).collect()
}

impl<D: Disk> Vault<D> {
    fn notifications_path(&self, bucket: &str) -> PathBuf {
        self.own("notifications").join(bucket)
    }

    /// The rules of a bucket.
    ///
    /// # Errors
    /// The system call failed.
    pub fn notifications(&self, bucket: &str) -> io::Result<Vec<Rule>> {
        let path = self.notifications_path(bucket);
        let text = there(disk::read(&*self.disk, &path, SMALL_BYTES_MAX))?;
        let parse = |text: Vec<u8>| serde_json::from_slice(&text).map_err(io::Error::other);
        Ok(text.map(parse).transpose()?.unwrap_or_default())
    }

    /// Replaces the rules of a bucket, durably.
    ///
    /// # Errors
    /// The bucket does not exist, or the system call failed.
    pub fn set_notifications(&self, bucket: &str, rules: &[Rule]) -> Result<(), Fault> {
        let _alone = self.alone();
        self.check_bucket(bucket)?;
        if rules.is_empty() {
            return Ok(self.remove_notifications(bucket)?);
        }
        let text = serde_json::to_vec(rules).map_err(io::Error::other)?;
        Ok(self.write(&self.notifications_path(bucket), &text)?)
    }

    /// Removes the rules of a bucket, durably. The caller has the lock of buckets.
    ///
    /// # Errors
    /// The system call failed.
    pub fn remove_notifications(&self, bucket: &str) -> io::Result<()> {
        let path = self.notifications_path(bucket);
        match (there(self.disk.remove_file(&path))?, path.parent()) {
            (Some(()), Some(dir)) => self.disk.sync_dir(dir),
            _ => Ok(()),
        }
    }
}

impl<D: Disk> Objects<D> {
    pub(crate) async fn configured_notifications(
        self,
        req: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<GetBucketNotificationConfigurationOutput> {
        let rules = self.with(move |vault| {
            vault.check_bucket(&req.input.bucket)?;
            Ok(vault.notifications(&req.input.bucket)?)
        });
        Ok(GetBucketNotificationConfigurationOutput {
            lambda_function_configurations: Some(document(rules.await?)),
            ..GetBucketNotificationConfigurationOutput::default()
        })
    }

    pub(crate) async fn configure_notifications(
        self,
        req: S3Request<PutBucketNotificationConfigurationInput>,
    ) -> S3Result<PutBucketNotificationConfigurationOutput> {
        let input = req.input;
        let bucket = input.bucket.clone();
        self.with(move |vault| vault.check_bucket(&bucket)).await?;
        let rules = rules(input.notification_configuration)?;
        if !rules.is_empty() {
            let is_skipped = input.skip_destination_validation.unwrap_or(false);
            self.check_functions(&input.bucket, &rules, is_skipped).await?;
        }
        self.with(move |vault| vault.set_notifications(&input.bucket, &rules)).await?;
        Ok(PutBucketNotificationConfigurationOutput::default())
    }

    /// Asks the gateway if the functions of rules exist, and may be invoked for a bucket.
    async fn check_functions(
        &self,
        bucket: &str,
        rules: &[Rule],
        is_skipped: bool,
    ) -> Result<(), Fault> {
        let Some(gateway) = self.vault.outbox.gateway() else {
            let why = "this store runs without a gateway, which would invoke the functions: use the \
                       store of `unlade fn serve`";
            return Err(Fault::Unsupported(why.to_owned()));
        };
        if is_skipped {
            return Ok(());
        }
        let mut functions: Vec<String> = rules.iter().map(|rule| rule.function.clone()).collect();
        functions.sort();
        functions.dedup();
        let (answer, answered) = oneshot::channel();
        let question = Question { bucket: bucket.to_owned(), functions, answer };
        let asked = async {
            gateway.send(question).await.ok()?;
            answered.await.ok()
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        let refused = answer.ok().flatten().ok_or(Fault::NoGateway)?;
        if refused.is_empty() {
            return Ok(());
        }
        let all: Vec<String> =
            refused.into_iter().map(|(function, why)| format!("{function}: {why}")).collect();
        let why = format!(
            "Unable to validate the following destination configurations: {}",
            all.join("; ")
        );
        Err(Fault::Argument(why))
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::{Random, cases};

    use super::*;

    const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";

    /// A configuration: its id, its events, its prefix and suffix.
    type Own<'a> = (&'a str, &'a [&'a str], [Option<&'a str>; 2]);

    fn one((id, events, [prefix, suffix]): &Own<'_>) -> LambdaFunctionConfiguration {
        let rule = |name: &'static str, value: &Option<&str>| {
            let name = Some(FilterRuleName::from_static(name));
            value.map(|value| FilterRule { name, value: Some(value.to_owned()) })
        };
        let rules =
            [rule("prefix", prefix), rule("SUFFIX", suffix)].into_iter().flatten().collect();
        let key = Some(S3KeyFilter { filter_rules: Some(rules) });
        LambdaFunctionConfiguration {
            events: events.iter().map(|event| Event::from((*event).to_owned())).collect(),
            filter: Some(NotificationConfigurationFilter { key }),
            id: Some((*id).to_owned()).filter(|id| !id.is_empty()),
            lambda_function_arn: ARN.to_owned(),
        }
    }

    fn of(all: &[Own<'_>]) -> NotificationConfiguration {
        let all = all.iter().map(one).collect();
        NotificationConfiguration {
            lambda_function_configurations: Some(all),
            ..NotificationConfiguration::default()
        }
    }

    const CREATED: &[&str] = &["s3:ObjectCreated:*"];

    #[test]
    fn a_configuration_comes_back_as_it_was() {
        let asked = of(&[
            ("one", CREATED, [Some("in/"), Some(".jpg")]),
            ("", &["s3:ObjectRemoved:Delete", "s3:ObjectRemoved:Delete"], [None, None]),
        ]);
        let found = document(rules(asked).unwrap());
        assert_eq!(found[0].id.as_deref(), Some("one"));
        let filters = found[0].filter.as_ref().unwrap().key.as_ref().unwrap();
        let filters = filters.filter_rules.as_ref().unwrap();
        let values: Vec<_> = filters.iter().map(|rule| rule.value.as_deref().unwrap()).collect();
        assert_eq!(values, ["in/", ".jpg"]);
        assert_eq!(found[1].id.as_deref(), Some("rule-2"));
        assert_eq!((found[1].events.len(), &found[1].filter), (1, &None));
        let again = NotificationConfiguration {
            lambda_function_configurations: Some(found.clone()),
            ..NotificationConfiguration::default()
        };
        assert_eq!(document(rules(again).unwrap()), found);
        assert_eq!(rules(NotificationConfiguration::default()).unwrap(), []);
    }

    #[test]
    fn invalid_documents_are_refused() {
        let refused = |document| rules(document).unwrap_err().to_string();
        for (wrong, why) in [
            (of(&[("a", CREATED, [None, None]), ("b", CREATED, [None, None])]), "overlap"),
            (
                of(&[
                    ("a", &["s3:ObjectCreated:Put"], [Some("a"), None]),
                    ("b", CREATED, [Some("ab"), Some("c")]),
                ]),
                "overlap",
            ),
            (of(&[("a", CREATED, [None, None]), ("a", &[EVENTS[6]], [None, None])]), "the id"),
            (of(&[("a", &["s3:ObjectTagging:Put"], [None, None])]), "no event"),
            (of(&[("a", &["s3:ObjectCreated:"], [None, None])]), "no event"),
            (of(&[("a", &[], [None, None])]), "at least one event"),
            (of(&[(&"i".repeat(256), CREATED, [None, None])]), "characters"),
            (of(&[("a", CREATED, [Some(&"i".repeat(1025)), None])]), "characters"),
        ] {
            let found = refused(wrong);
            assert!(found.contains(why), "{found}");
        }
        let many: Vec<String> = (0..101).map(|at| format!("{at:03}")).collect();
        let many: Vec<Own<'_>> =
            many.iter().map(|at| (at.as_str(), CREATED, [Some(at.as_str()), None])).collect();
        assert!(refused(of(&many)).contains("at most 100"));
        assert_eq!(rules(of(&many[..100])).unwrap().len(), 100);
        for arn in ["", "f", "arn:aws:sqs:us-east-1:0:f", "arn:aws:lambda:::function:f", "a b"] {
            let mut document = of(&[("a", CREATED, [None, None])]);
            document.lambda_function_configurations.as_mut().unwrap()[0].lambda_function_arn =
                arn.to_owned();
            assert!(refused(document).contains("no ARN"), "{arn}");
        }
        let mut document = of(&[("a", CREATED, [None, None])]);
        let own = &mut document.lambda_function_configurations.as_mut().unwrap()[0];
        let filters = own.filter.as_mut().unwrap().key.as_mut().unwrap();
        let rule = |name: &'static str| FilterRule {
            name: Some(FilterRuleName::from_static(name)),
            value: Some(String::new()),
        };
        filters.filter_rules = Some(vec![rule("prefix"), rule("Prefix")]);
        assert!(refused(document.clone()).contains("more than one"));
        let own = &mut document.lambda_function_configurations.as_mut().unwrap()[0];
        own.filter.as_mut().unwrap().key.as_mut().unwrap().filter_rules = Some(vec![rule("tag")]);
        assert!(refused(document).contains("neither prefix nor suffix"));
    }

    #[test]
    fn destinations_that_are_not_offered_are_refused() {
        let bridge = NotificationConfiguration {
            event_bridge_configuration: Some(EventBridgeConfiguration {}),
            ..NotificationConfiguration::default()
        };
        assert!(matches!(rules(bridge), Err(Fault::Unsupported(_))));
        let queue = QueueConfiguration {
            events: vec![Event::from(EVENTS[0].to_owned())],
            filter: None,
            id: None,
            queue_arn: "arn:aws:sqs:us-east-1:0:q".to_owned(),
        };
        let queues = NotificationConfiguration {
            queue_configurations: Some(vec![queue]),
            ..NotificationConfiguration::default()
        };
        assert!(matches!(rules(queues), Err(Fault::Unsupported(_))));
    }

    /// Accepted rules: at most one matches a change. Refused pairs: some change would match both.
    #[test]
    fn rules_overlap_exactly_if_a_change_may_match_two() {
        let texts = ["", "a", "b", "ab", "ba", "aa"];
        let names = EVENTS.iter().filter_map(|event| event.strip_prefix("s3:"));
        let names: Vec<&str> = names.filter(|event| !event.ends_with('*')).collect();
        let mut keys = vec![String::new()];
        for _ in 0..5 {
            let longer = |key: &String| ["a", "b"].map(|next| format!("{key}{next}"));
            let more: Vec<String> = keys.iter().flat_map(longer).collect();
            keys.extend(more);
            keys.sort();
            keys.dedup();
        }
        cases(300, |random: &mut Random| {
            let mut rule = |id: &str| Rule {
                id: id.to_owned(),
                function: ARN.to_owned(),
                events: vec![EVENTS[random.below(EVENTS.len())].to_owned()],
                prefix: Some(texts[random.below(texts.len())].to_owned()),
                suffix: Some(texts[random.below(texts.len())].to_owned()),
            };
            let (a, b) = (rule("a"), rule("b"));
            let both = |event: &&str, key: &String| a.matches(event, key) && b.matches(event, key);
            let oracle = names.iter().any(|event| keys.iter().any(|key| both(event, key)));
            assert_eq!(a.overlaps(&b), oracle, "{a:?} {b:?}");
            assert_eq!(b.overlaps(&a), oracle);
        });
    }
}
