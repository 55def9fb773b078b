use std::collections::BTreeMap;

use unlade_testkit::{Random, cases};

use super::*;
use crate::Manifest;
use crate::lambda::Refusal;

pub fn edition(code: u64) -> Edition {
    Edition {
        code,
        code_sha256: format!("sha-{code}"),
        code_bytes: code,
        manifest: Manifest::of_handler("app.handler"),
        runtime: "python3.11".to_owned(),
        role: "arn:aws:iam::000000000000:role/default".to_owned(),
        description: String::new(),
        modified: "2026-01-01T00:00:00.000+0000".to_owned(),
        revision: format!("edition-{code}"),
        dead_letter: None,
    }
}

fn stamp(number: u64) -> Stamp {
    Stamp { time: format!("t{number}"), revision: format!("r{number}") }
}

pub fn number(number: u64) -> Qualifier {
    Qualifier::Version(Version::Number(number))
}

fn name(name: &str) -> Qualifier {
    Qualifier::Alias(name.to_owned())
}

fn to(version: u64) -> AliasChange {
    AliasChange { version: Some(Version::Number(version)), ..AliasChange::default() }
}

/// A record with two versions.
pub fn record() -> Record {
    let mut record = Record::new("t", edition(1));
    assert_eq!(record.publish(Publication::default(), stamp(1)), Ok(1));
    record.update(edition(2), None).unwrap();
    assert_eq!(record.publish(Publication::default(), stamp(2)), Ok(2));
    record
}

#[test]
fn a_version_is_published_once_and_never_changes() {
    let mut record = record();
    assert_eq!(record.publish(Publication::default(), stamp(3)), Ok(2), "nothing has changed");
    let first = record.versions[&1].clone();
    let mut next = edition(2);
    next.manifest.timeout = std::time::Duration::from_secs(9);
    record.update(next, None).unwrap();
    let said = Publication { description: Some("nine".to_owned()), ..Publication::default() };
    assert_eq!(record.publish(said, stamp(4)), Ok(3));
    assert_eq!(record.versions[&3].description, "nine");
    assert_eq!(
        (record.versions[&3].revision.as_str(), record.latest.revision.as_str()),
        ("r4", "edition-2")
    );
    assert_eq!(record.versions[&1], first);
    record.delete_version(&number(3)).unwrap();
    assert_eq!(record.publish(Publication::default(), stamp(5)), Ok(4), "no number twice");
    assert_eq!(record.codes().into_iter().collect::<Vec<_>>(), [1, 2]);
    let again: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert_eq!(again, record);
}

#[test]
fn a_change_of_another_state_is_refused() {
    let mut record = record();
    let status = |refused: Result<(), Refusal>| refused.unwrap_err().status();
    assert_eq!(status(record.update(edition(3), Some("edition-1"))), 412);
    record.update(edition(3), Some("edition-2")).unwrap();
    let other = |sha: Option<&str>, revision: Option<&str>| Publication {
        code_sha256: sha.map(str::to_owned),
        revision: revision.map(str::to_owned),
        description: None,
    };
    assert_eq!(record.publish(other(Some("sha-1"), None), stamp(1)).unwrap_err().status(), 400);
    assert_eq!(record.publish(other(None, Some("r9")), stamp(1)).unwrap_err().status(), 412);
    record.create_alias("prod", to(1), stamp(7)).unwrap();
    assert_eq!(status(record.update_alias("prod", to(2), Some("r1"), stamp(8))), 412);
    record.update_alias("prod", to(2), Some("r7"), stamp(8)).unwrap();
    assert_eq!(record.alias("prod").unwrap().revision, "r8");
}

#[test]
fn invalid_aliases_are_refused() {
    let mut record = record();
    record.create_alias("prod", to(1), stamp(1)).unwrap();
    let weighted = |version, weights: &[(u64, f64)]| AliasChange {
        version: Some(version),
        weights: Some(weights.iter().copied().collect()),
        description: None,
    };
    let second = Version::Number(2);
    for (alias, change, status) in [
        ("prod", to(2), 409),
        ("7", to(2), 400),
        ("a b", to(2), 400),
        ("new", AliasChange::default(), 400),
        ("new", to(9), 404),
        ("new", weighted(second, &[(9, 0.1)]), 404),
        ("new", weighted(second, &[(1, 1.5)]), 400),
        ("new", weighted(second, &[(1, f64::NAN)]), 400),
        ("new", weighted(second, &[(2, 0.5)]), 400),
        ("new", weighted(second, &[(1, 0.5), (2, 0.5)]), 400),
        ("new", weighted(Version::Latest, &[(1, 0.5)]), 400),
    ] {
        let refused = record.create_alias(alias, change.clone(), stamp(2)).unwrap_err();
        assert_eq!(refused.status(), status, "{alias} {change:?}");
    }
    assert_eq!(record.delete_version(&number(1)).unwrap_err().status(), 409);
    assert_eq!(record.delete_version(&name("prod")).unwrap_err().status(), 400);
    let latest = Qualifier::Version(Version::Latest);
    assert_eq!(record.delete_version(&latest).unwrap_err().status(), 400);
    assert_eq!(record.delete_version(&number(9)).unwrap_err().status(), 404);
    assert_eq!(record.delete_alias("absent").unwrap_err().status(), 404);
}

#[test]
fn provisioned_concurrency_is_within_the_reserved() {
    let mut record = record();
    record.create_alias("prod", to(2), stamp(1)).unwrap();
    let latest = Qualifier::Version(Version::Latest);
    assert_eq!(record.provision(&latest, 1, stamp(1)).unwrap_err().status(), 400);
    assert_eq!(record.provision(&number(1), 0, stamp(1)).unwrap_err().status(), 400);
    assert_eq!(record.provision(&name("absent"), 1, stamp(1)).unwrap_err().status(), 404);
    assert_eq!(
        record.provisioned(&number(1)).unwrap_err().code(),
        "ProvisionedConcurrencyConfigNotFoundException"
    );
    record.provision(&name("prod"), 3, stamp(1)).unwrap();
    assert_eq!(record.provision(&number(2), 1, stamp(1)).unwrap_err().status(), 409);
    record.provision(&number(1), 2, stamp(2)).unwrap();
    record.provision(&number(1), 4, stamp(3)).unwrap();
    let warm = |record: &Record| {
        [Version::Latest, Version::Number(1), Version::Number(2)].map(|own| record.warm(own))
    };
    assert_eq!(warm(&record), [0, 4, 3]);
    assert_eq!(record.reserve(Some(6)).unwrap_err().status(), 400);
    record.reserve(Some(7)).unwrap();
    assert_eq!(record.provision(&name("prod"), 4, stamp(4)).unwrap_err().status(), 400);
    record.update_alias("prod", to(1), None, stamp(5)).unwrap();
    assert_eq!(warm(&record), [0, 7, 0], "they follow the alias");
    record.delete_alias("prod").unwrap();
    assert_eq!(warm(&record), [0, 4, 0]);
    record.unprovision(&number(1)).unwrap();
    assert_eq!(warm(&record), [0, 0, 0]);
}

#[test]
fn permissions_are_statements_of_a_policy() {
    let mut record = record();
    let statement = |sid: &str, principal: &str| Statement {
        sid: sid.to_owned(),
        action: "lambda:InvokeFunction".to_owned(),
        principal: principal.to_owned(),
        conditions: vec![
            ("ArnLike".to_owned(), "AWS:SourceArn".to_owned(), "arn:aws:s3:::box".to_owned()),
            ("StringEquals".to_owned(), "AWS:SourceAccount".to_owned(), "1".to_owned()),
        ],
    };
    assert_eq!(record.policy(None).unwrap_err().status(), 404);
    let s3 = statement("s3", "s3.amazonaws.com");
    record.add_permission(None, s3.clone(), None, stamp(1)).unwrap();
    let taken = record.add_permission(None, s3.clone(), None, stamp(2)).unwrap_err();
    assert_eq!(taken.status(), 409);
    let late = record.add_permission(None, statement("b", "*"), Some("r9"), stamp(2));
    assert_eq!(late.unwrap_err().status(), 412);
    record.add_permission(None, statement("b", "123456789012"), Some("r1"), stamp(2)).unwrap();
    let document = record.policy(None).unwrap().document("arn:f");
    assert_eq!(document["Statement"][0]["Principal"]["Service"], "s3.amazonaws.com");
    assert_eq!(document["Statement"][0]["Resource"], "arn:f");
    let conditions = &document["Statement"][0]["Condition"];
    assert_eq!(conditions["ArnLike"]["AWS:SourceArn"], "arn:aws:s3:::box");
    assert_eq!(conditions["StringEquals"]["AWS:SourceAccount"], "1");
    assert_eq!(document["Statement"][1]["Principal"]["AWS"], "arn:aws:iam::123456789012:root");
    for wrong in [statement("a b", "*"), statement("", "*"), statement("c", "")] {
        assert_eq!(record.add_permission(None, wrong, None, stamp(3)).unwrap_err().status(), 400);
    }
    let action = Statement { action: "s3:GetObject".to_owned(), ..statement("c", "*") };
    assert_eq!(record.add_permission(None, action, None, stamp(3)).unwrap_err().status(), 400);
    let full = (0..200).find_map(|n| {
        let one = statement(&format!("n{n}"), "*");
        record.add_permission(Some(&number(1)), one, None, stamp(n)).err()
    });
    assert_eq!(full.unwrap().code(), "PolicyLengthExceededException");
    record.remove_permission(None, "s3", None, stamp(4)).unwrap();
    assert_eq!(record.remove_permission(None, "s3", None, stamp(4)).unwrap_err().status(), 404);
    record.remove_permission(None, "b", None, stamp(5)).unwrap();
    assert_eq!(record.policy(None).unwrap_err().status(), 404, "the last one takes it along");
}

#[test]
fn tags_are_limited() {
    let mut record = record();
    let tags = |range: std::ops::Range<usize>| {
        range.map(|n| (format!("k{n}"), "v".to_owned())).collect::<BTreeMap<_, _>>()
    };
    record.tag(tags(0..tags::TAGS_MAX)).unwrap();
    assert_eq!(record.tag(tags(99..100)).unwrap_err().status(), 400);
    record.tag(tags(0..3)).unwrap();
    record.untag(&["k0".to_owned(), "absent".to_owned()]);
    record.tag(tags(99..100)).unwrap();
    for wrong in ["", "aws:x", &"x".repeat(129)] {
        let one = BTreeMap::from([(wrong.to_owned(), String::new())]);
        assert_eq!(record.tag(one).unwrap_err().status(), 400, "{wrong}");
    }
}

/// A slow model: the list of all that ever happened, searched anew for each question.
#[derive(Debug, Default)]
struct History {
    events: Vec<Happened>,
}

#[derive(Clone, Debug)]
enum Happened {
    Updated { code: u64 },
    Published { version: u64, code: u64 },
    Deleted { version: u64 },
    Aliased { name: String, version: u64, other: Option<(u64, u64)> },
    Unaliased { name: String },
}

impl History {
    fn latest(&self) -> u64 {
        let code = |event: &Happened| match event {
            Happened::Updated { code } => Some(*code),
            _ => None,
        };
        self.events.iter().rev().find_map(code).unwrap_or(1)
    }

    /// The code of a version that exists.
    fn code(&self, version: u64) -> Option<u64> {
        let about = |event: &Happened| match event {
            Happened::Published { version: own, code } if *own == version => Some(Some(*code)),
            Happened::Deleted { version: own } if *own == version => Some(None),
            _ => None,
        };
        self.events.iter().rev().find_map(about).flatten()
    }

    /// The target of an alias, and the other version with its share in percent.
    fn alias(&self, name: &str) -> Option<(u64, Option<(u64, u64)>)> {
        let about = |event: &Happened| match event {
            Happened::Aliased { name: own, version, other } if own == name => {
                Some(Some((*version, *other)))
            }
            Happened::Unaliased { name: own } if own == name => Some(None),
            _ => None,
        };
        self.events.iter().rev().find_map(about).flatten()
    }

    fn published(&self) -> Option<(u64, u64)> {
        let publication = |event: &Happened| match event {
            Happened::Published { version, code } => Some((*version, *code)),
            _ => None,
        };
        self.events.iter().rev().find_map(publication)
    }

    /// All hundred lots of an invocation of an alias.
    fn lots(&self, name: &str) -> Vec<u64> {
        let Some((version, other)) = self.alias(name) else { return Vec::new() };
        let (second, percent) = other.unwrap_or((version, 0));
        (0..100).map(|lot| if lot < percent { second } else { version }).collect()
    }
}

const NAMES: [&str; 3] = ["prod", "beta", "canary"];

#[test]
fn versions_aliases_and_weights_follow_their_history() {
    cases(300, |random| {
        let (mut record, mut history) = (Record::new("t", edition(1)), History::default());
        for turn in 0..120 {
            act(random, &mut record, &mut history, turn);
            compare(&record, &history);
        }
    });
}

fn act(random: &mut Random, record: &mut Record, history: &mut History, turn: u64) {
    let alias = NAMES[random.below(3) as usize].to_owned();
    let version = 1 + random.below(8);
    let exists = |history: &History, version| history.code(version).is_some();
    match random.below(8) {
        0 | 1 => {
            let code = 1 + random.below(4);
            record.update(edition(code), None).unwrap();
            history.events.push(Happened::Updated { code });
        }
        2 | 3 => {
            let version = record.publish(Publication::default(), stamp(turn)).unwrap();
            let code = history.latest();
            let last = history.published();
            let same = last.filter(|(last, of)| *of == code && exists(history, *last));
            match same {
                Some((last, _)) => assert_eq!(version, last),
                None => {
                    assert_eq!(version, last.map_or(1, |(last, _)| last + 1));
                    history.events.push(Happened::Published { version, code });
                }
            }
        }
        4 => {
            let refers = |name: &&str| {
                let target = history.alias(name);
                target.is_some_and(|(own, other)| {
                    own == version || other.is_some_and(|(second, _)| second == version)
                })
            };
            let may = exists(history, version) && !NAMES.iter().any(refers);
            assert_eq!(record.delete_version(&number(version)).is_ok(), may);
            if may {
                history.events.push(Happened::Deleted { version });
            }
        }
        5 | 6 => {
            let second = 1 + random.below(8);
            let other = (random.below(2) == 0).then(|| (second, random.below(101)));
            let weights = other.map(|(second, percent)| (second, percent as f64 / 100.0));
            let change = AliasChange {
                version: Some(Version::Number(version)),
                weights: Some(weights.into_iter().collect()),
                description: None,
            };
            let may = exists(history, version)
                && other.is_none_or(|(second, _)| second != version && exists(history, second));
            let done = match history.alias(&alias) {
                None => record.create_alias(&alias, change, stamp(turn)),
                Some(_) => record.update_alias(&alias, change, None, stamp(turn)),
            };
            assert_eq!(done.is_ok(), may, "{done:?}");
            if may {
                history.events.push(Happened::Aliased { name: alias, version, other });
            }
        }
        _ => {
            let may = history.alias(&alias).is_some();
            assert_eq!(record.delete_alias(&alias).is_ok(), may);
            if may {
                history.events.push(Happened::Unaliased { name: alias });
            }
        }
    }
}

fn compare(record: &Record, history: &History) {
    assert_eq!(record.latest.code, history.latest());
    for version in 1..=130 {
        let own = record.edition(Version::Number(version)).map(|edition| edition.code);
        assert_eq!(own, history.code(version), "{version}");
        assert_eq!(record.choose(Some(&number(version)), 0.5).is_ok(), own.is_some());
    }
    for alias in NAMES {
        let lots = history.lots(alias);
        if lots.is_empty() {
            assert_eq!(record.choose(Some(&name(alias)), 0.0).unwrap_err().status(), 404);
        }
        for (lot, version) in lots.into_iter().enumerate() {
            // The middle of each lot, so that the sums of floating-point numbers do not matter.
            let draw = (lot as f64 + 0.5) / 100.0;
            assert_eq!(record.choose(Some(&name(alias)), draw), Ok(Version::Number(version)));
        }
    }
}
