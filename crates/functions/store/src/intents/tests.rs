//! Events of random changes, with kills and power failures at any change of the file system, compared with
//! a slow oracle: a list of all changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use s3s::dto::*;
use s3s::{Body, S3, S3Error, S3Response};
use tokio::sync::mpsc;
use unlade_testkit::{Random, cases};

use crate::about::Versioning;
use crate::crash::{Left, Memory, ROOT, empty, request};
use crate::disk::Disk as _;
use crate::notifications::Rule;
use crate::objects::Objects;
use crate::outbox::Question;
use crate::vault::Vault;

const BUCKET: &str = "box";
/// Keys that are paths, keys that are none, and one in the way of another.
const KEYS: &[&str] = &["in/a.jpg", "in/b.txt", "in", "out/a.jpg", "../x.jpg", "in//c.jpg"];
/// Most changes of the file system between two failures.
const CHANGES_MAX: usize = 120;

/// A request that changes an object.
#[derive(Clone, Debug)]
struct Change {
    request: String,
    key: String,
    /// Without `s3:`.
    event: &'static str,
    is_acknowledged: bool,
}

/// An event that the reader has.
#[derive(Clone, Debug, PartialEq)]
struct Delivered {
    request: String,
    key: String,
    event: String,
    sequencer: String,
    size: Option<u64>,
}

fn random_rules(random: &mut Random) -> Vec<Rule> {
    let rule = |id: &str, events: &[&str], prefix: Option<&str>, suffix: Option<&str>| Rule {
        id: id.to_owned(),
        function: "arn:aws:lambda:us-east-1:000000000000:function:f".to_owned(),
        events: events.iter().map(|event| format!("s3:{event}")).collect(),
        prefix: prefix.map(str::to_owned),
        suffix: suffix.map(str::to_owned),
    };
    match random.below(5) {
        0 => vec![rule("all", &["ObjectCreated:*", "ObjectRemoved:*"], None, None)],
        1 => vec![rule("jpg", &["ObjectCreated:*"], Some("in"), Some(".jpg"))],
        2 => vec![
            rule("put", &["ObjectCreated:Put"], Some("in/"), None),
            rule("removed", &["ObjectRemoved:Delete"], None, None),
        ],
        3 => vec![rule("marked", &["ObjectRemoved:DeleteMarkerCreated"], None, None)],
        _ => vec![rule("copied", &["ObjectCreated:Copy", "ObjectCreated:Put"], None, Some("g"))],
    }
}

/// One store after the other on a file system that fails.
struct Bed {
    disk: Memory,
    objects: Objects<Memory>,
    /// The gateway's end: without it the store makes no events.
    _questions: mpsc::Receiver<Question>,
    rules: Vec<Rule>,
    changes: Vec<Change>,
    delivered: Vec<Delivered>,
    count: usize,
}

fn open(disk: &Memory) -> Option<(Objects<Memory>, mpsc::Receiver<Question>)> {
    let vault = Vault::open(disk.clone(), Path::new(ROOT)).ok()?;
    let (sender, questions) = mpsc::channel(1);
    vault.outbox.connect(sender);
    Some((Objects::new(vault), questions))
}

fn id_of<T>(done: &Result<S3Response<T>, S3Error>) -> String {
    let fields = match done {
        Ok(response) => Some(&response.headers),
        Err(error) => error.headers(),
    };
    let id = fields.and_then(|fields| fields.get("x-amz-request-id"));
    id.expect("an id").to_str().expect("text").to_owned()
}

impl Bed {
    fn new(random: &mut Random) -> Bed {
        let disk = empty();
        let (objects, questions) = open(&disk).expect("a store");
        objects.vault.create_bucket(BUCKET, None).expect("a bucket");
        let rules = random_rules(random);
        objects.vault.set_notifications(BUCKET, &rules).expect("rules");
        Bed {
            disk,
            objects,
            _questions: questions,
            rules,
            changes: Vec::new(),
            delivered: Vec::new(),
            count: 0,
        }
    }

    fn note<T>(&mut self, key: &str, event: &'static str, done: &Result<S3Response<T>, S3Error>) {
        let (request, key, is_acknowledged) = (id_of(done), key.to_owned(), done.is_ok());
        self.changes.push(Change { request, key, event, is_acknowledged });
    }

    async fn has(&self, key: &str, version: Option<&str>) -> bool {
        let (key, version) = (key.to_owned(), version.map(str::to_owned));
        let found = self
            .objects
            .with(move |vault| Ok(vault.open_object(BUCKET, &key, version.as_deref()).is_ok()));
        found.await.expect("it is looked up")
    }

    /// Makes a random request.
    async fn change(&mut self, random: &mut Random) {
        let key = KEYS[random.below(KEYS.len())];
        let bucket = BUCKET.to_owned();
        match random.below(12) {
            0..=5 => {
                self.count += 1;
                let body = "x".repeat(self.count);
                let input = PutObjectInput {
                    bucket,
                    key: key.to_owned(),
                    body: Some(StreamingBlob::from(Body::from(body))),
                    ..PutObjectInput::default()
                };
                let done = self.objects.put_object(request(input)).await;
                self.note(key, "ObjectCreated:Put", &done);
            }
            6 => {
                let from = KEYS[random.below(KEYS.len())];
                if from == key || !self.has(from, None).await {
                    return;
                }
                let (from_bucket, from) = (BUCKET.into(), from.into());
                let input = CopyObjectInput::builder()
                    .bucket(bucket)
                    .key(key.to_owned())
                    .copy_source(CopySource::Bucket {
                        bucket: from_bucket,
                        key: from,
                        version_id: None,
                    })
                    .build()
                    .expect("a copy");
                let done = self.objects.copy_object(request(input)).await;
                self.note(key, "ObjectCreated:Copy", &done);
            }
            7..=8 => {
                let state = self.objects.vault.versioning(BUCKET).expect("a state");
                if state == Versioning::Off && !self.has(key, None).await {
                    return;
                }
                let event = match state {
                    Versioning::Off => "ObjectRemoved:Delete",
                    _ => "ObjectRemoved:DeleteMarkerCreated",
                };
                let input = DeleteObjectInput { bucket, key: key.to_owned(), ..Default::default() };
                let done = self.objects.delete_object(request(input)).await;
                self.note(key, event, &done);
            }
            9 => {
                let state = self.objects.vault.versioning(BUCKET).expect("a state");
                let slots = self.objects.vault.slots(BUCKET, key, state).expect("versions");
                if slots.is_empty() {
                    return;
                }
                let version_id = Some(slots[random.below(slots.len())].id.clone());
                let input = DeleteObjectInput {
                    bucket,
                    key: key.to_owned(),
                    version_id,
                    ..Default::default()
                };
                let done = self.objects.delete_object(request(input)).await;
                self.note(key, "ObjectRemoved:Delete", &done);
            }
            10 => {
                let all: Vec<Rule> = random_rules(random);
                // A failure leaves one of both, so the state is read again.
                let _ = self.objects.vault.set_notifications(BUCKET, &all);
            }
            _ => {
                let state = match random.below(3) {
                    0 => Versioning::Suspended,
                    _ => Versioning::Enabled,
                };
                let _ = self.objects.vault.set_versioning(BUCKET, state);
            }
        }
    }

    /// Reads the oldest events, as the gateway does.
    fn deliver(&mut self, count_max: usize) {
        let vault = &self.objects.vault;
        for _ in 0..count_max {
            let Some(number) = vault.outbox.next(&BTreeSet::new()) else { return };
            let record = vault.record(number).expect("an event");
            let own = &record.event["Records"][0];
            let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
            let object = &own["s3"]["object"];
            self.delivered.push(Delivered {
                request: text(&own["responseElements"]["x-amz-request-id"]),
                key: record.key.clone(),
                event: text(&own["eventName"]),
                sequencer: text(&object["sequencer"]),
                size: object["size"].as_u64(),
            });
            vault.remove_event(number);
        }
    }

    /// Starts the next store after a kill, or a power failure.
    fn restart(&mut self, left: Option<Left>) {
        self.disk.fail_after(usize::MAX);
        if let Some(left) = left {
            self.disk = self.disk.after_failure(left);
        }
        (self.objects, self._questions) = open(&self.disk).expect("a store");
    }

    fn matching(&self, change: &Change) -> bool {
        self.rules.iter().any(|rule| rule.matches(change.event, &change.key))
    }
}

/// The changes that matched the rules of their time, by request and key: true if acknowledged.
type Due = BTreeMap<(String, String), bool>;

async fn run(random: &mut Random) {
    let mut bed = Bed::new(random);
    let (mut due, mut never) = (Due::new(), BTreeSet::new());
    for _ in 0..1 + random.below(4) {
        let fails = random.below(4) > 0;
        bed.disk.fail_after(if fails { random.below(CHANGES_MAX) } else { usize::MAX });
        for _ in 0..random.below(30) {
            let before = bed.changes.len();
            bed.change(random).await;
            for change in &bed.changes[before..] {
                let name = (change.request.clone(), change.key.clone());
                match bed.matching(change) {
                    true => drop(due.insert(name, change.is_acknowledged)),
                    false => drop(never.insert(name)),
                }
            }
            if bed.disk.has_failed() {
                break;
            }
            bed.rules = bed.objects.vault.notifications(BUCKET).expect("rules");
            if random.below(6) == 0 {
                bed.deliver(random.below(4));
            }
        }
        let left = match random.below(6) {
            0..=1 => None,
            2 => Some(Left::Synced),
            3 => Some(Left::Names),
            4 => Some(Left::Bytes),
            _ => Some(Left::Some(random.next())),
        };
        bed.restart(left);
        bed.rules = bed.objects.vault.notifications(BUCKET).expect("rules");
        is_visible_exactly_if_told(&mut bed, &due).await;
    }
    bed.deliver(usize::MAX);
    let told: BTreeSet<(String, String)> =
        bed.delivered.iter().map(|one| (one.request.clone(), one.key.clone())).collect();
    for (name, is_acknowledged) in &due {
        assert!(!is_acknowledged || told.contains(name), "{name:?} is lost: {:?}", bed.changes);
    }
    for one in &bed.delivered {
        let name = (one.request.clone(), one.key.clone());
        assert!(due.contains_key(&name) && !never.contains(&name), "{one:?} was not to be told");
        let change = bed.changes.iter().find(|change| change.request == one.request);
        assert_eq!(change.expect("a change").event, one.event);
        assert_eq!(one.size.is_some(), one.event.starts_with("ObjectCreated"));
    }
    // Sequencers of a key increase in the order of its changes.
    let sequencers: BTreeMap<&str, &str> =
        bed.delivered.iter().map(|one| (one.request.as_str(), one.sequencer.as_str())).collect();
    for key in KEYS {
        let of_key = bed.changes.iter().filter(|change| change.key == *key);
        let own: Vec<&str> =
            of_key.filter_map(|change| sequencers.get(change.request.as_str()).copied()).collect();
        assert!(own.is_sorted_by(|a, b| a < b), "{key}: {own:?}");
    }
    let outbox = bed.disk.read_dir(Path::new("/store/.unlade/outbox")).unwrap_or_default();
    assert!(outbox.is_empty(), "{outbox:?}");
}

/// A change that failed is told exactly if it was made: for a PUT, its length says so.
async fn is_visible_exactly_if_told(bed: &mut Bed, due: &Due) {
    let Some(last) = bed.changes.last().cloned().filter(|last| !last.is_acknowledged) else {
        return;
    };
    if last.event != "ObjectCreated:Put"
        || !due.contains_key(&(last.request.clone(), last.key.clone()))
    {
        return;
    }
    bed.deliver(usize::MAX);
    let bytes = bed.count as u64;
    let opened = bed.objects.vault.open_object(BUCKET, &last.key, None);
    let is_made = opened.is_ok_and(|opened| opened.stat.bytes == bytes);
    let is_told = bed.delivered.iter().any(|one| one.request == last.request);
    assert_eq!(is_told, is_made, "{last:?}");
}

#[test]
fn each_acknowledged_change_that_matches_is_told_and_no_other() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    cases(400, |random| runtime.block_on(run(random)));
}

/// The store keeps at most so many events; a change beyond is refused, and counted.
#[test]
fn a_change_whose_event_has_no_place_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut bed = Bed::new(&mut Random::new(1));
        bed.rules = vec![Rule {
            id: "all".to_owned(),
            function: "arn:aws:lambda:us-east-1:000000000000:function:f".to_owned(),
            events: vec!["s3:ObjectCreated:*".to_owned()],
            prefix: Some("in".to_owned()),
            suffix: None,
        }];
        bed.objects.vault.set_notifications(BUCKET, &bed.rules).expect("rules");
        bed.objects.vault.outbox.events_max.store(1, std::sync::atomic::Ordering::Relaxed);
        let put = |key: &str| PutObjectInput {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            body: Some(StreamingBlob::from(Body::from("x".to_owned()))),
            ..PutObjectInput::default()
        };
        bed.objects.put_object(request(put("in/1"))).await.expect("it is put");
        let refused = bed.objects.put_object(request(put("in/2"))).await.unwrap_err();
        assert_eq!(refused.code().as_str(), "SlowDown");
        assert!(!bed.has("in/2", None).await);
        bed.objects.put_object(request(put("out"))).await.expect("it makes no event");
        assert_eq!(bed.objects.vault.outbox.take_refused(), 1);
        bed.deliver(1);
        bed.objects.put_object(request(put("in/2"))).await.expect("there is a place");
    });
}
