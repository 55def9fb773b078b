//! Versions and lists, compared with a slow oracle: a list of versions for each key.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::{Body, S3, S3Result};
use unlade_testkit::{Random, cases};

use super::{NULL, Versioning};
use crate::crash::{Memory, ROOT, empty, request, start};
use crate::disk::Disk;
use crate::objects::Objects;

const BUCKET: &str = "box";
/// Keys that are paths, keys that are none, and keys in the way of others.
const KEYS: &[&str] = &["a", "a/b", "a/b/c", "a//", "a!", "b", "../x", "c/d", "c/e", "é/", "\u{1}"];

/// A version: its id, and its body unless it is a delete marker.
type One = (String, Option<String>);

struct Oracle {
    state: Versioning,
    /// The newest version of a key is the first one.
    keys: BTreeMap<String, Vec<One>>,
}

impl Oracle {
    fn add(&mut self, key: &str, id: Option<&str>, body: Option<String>) {
        let own = self.keys.entry(key.to_owned()).or_default();
        let id = match self.state {
            Versioning::Enabled => id.expect("an id").to_owned(),
            Versioning::Off | Versioning::Suspended => {
                own.retain(|one| one.0 != NULL);
                NULL.to_owned()
            }
        };
        assert!(own.iter().all(|one| one.0 != id), "{id} is there twice");
        own.insert(0, (id, body));
    }

    fn remove(&mut self, key: &str, id: &str) {
        if let Some(own) = self.keys.get_mut(key) {
            own.retain(|one| one.0 != id);
        }
        self.keys.retain(|_, own| !own.is_empty());
    }

    fn read(&self, key: &str, id: Option<&str>) -> Result<String, &'static str> {
        let own = self.keys.get(key).map_or(&[][..], |own| own);
        let found = match id {
            None => own.first(),
            Some(id) => own.iter().find(|one| one.0 == id),
        };
        match (found, id) {
            (Some((_, Some(body))), _) => Ok(body.clone()),
            (Some((_, None)), Some(_)) => Err("MethodNotAllowed"),
            (None, Some(_)) => Err("NoSuchVersion"),
            (_, None) => Err("NoSuchKey"),
        }
    }

    /// The names of a list, by the definition of S3: keys or common prefixes, sorted, each once.
    fn names(&self, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
        let newest = self.keys.iter().filter(|(_, own)| own[0].1.is_some());
        let name = |key: &String| {
            let rest = key.strip_prefix(prefix)?;
            let end = delimiter.and_then(|d| Some(rest.find(d)? + d.len())).unwrap_or(rest.len());
            Some(format!("{prefix}{}", &rest[..end]))
        };
        let mut names: Vec<String> = newest.filter_map(|(key, _)| name(key)).collect();
        names.sort();
        names.dedup();
        names
    }
}

struct Bed {
    objects: Objects<Memory>,
    oracle: Oracle,
    count: usize,
}

fn code<T>(done: S3Result<T>) -> Result<T, String> {
    done.map_err(|error| error.code().as_str().to_owned())
}

impl Bed {
    async fn get(&self, key: &str, id: Option<&str>) -> Result<String, String> {
        let input = GetObjectInput {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            version_id: id.map(str::to_owned),
            ..GetObjectInput::default()
        };
        let output = code(self.objects.get_object(request(input)).await)?.output;
        let of = output.version_id.as_deref();
        assert_eq!(of.is_none(), self.oracle.state == Versioning::Off);
        assert!(id.is_none() || of.is_none() || id == of, "{id:?} {of:?}");
        let mut body = Body::from(output.body.expect("a body"));
        let body = body.store_all_limited(1 << 20).await.expect("a body");
        Ok(String::from_utf8(body.to_vec()).expect("text"))
    }

    async fn put(&mut self, key: &str) {
        self.count += 1;
        let body = format!("{key} {}", self.count);
        let input = PutObjectInput {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            body: Some(StreamingBlob::from(Body::from(body.clone()))),
            ..PutObjectInput::default()
        };
        let output = self.objects.put_object(request(input)).await.expect("it is put").output;
        self.oracle.add(key, output.version_id.as_deref(), Some(body));
    }

    async fn delete(&mut self, key: &str) {
        let (bucket, own) = (BUCKET.to_owned(), key.to_owned());
        let input = DeleteObjectInput { bucket, key: own, ..DeleteObjectInput::default() };
        let output = self.objects.delete_object(request(input)).await.expect("deleted").output;
        match self.oracle.state {
            Versioning::Off => self.oracle.remove(key, NULL),
            _ => {
                assert_eq!(output.delete_marker, Some(true));
                self.oracle.add(key, output.version_id.as_deref(), None);
            }
        }
    }

    async fn delete_version(&mut self, key: &str, id: &str) {
        let input = DeleteObjectInput {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            version_id: Some(id.to_owned()),
            ..DeleteObjectInput::default()
        };
        let output = self.objects.delete_object(request(input)).await.expect("deleted").output;
        let own = self.oracle.keys.get(key).map_or(&[][..], |own| own);
        let is_marker = own.iter().any(|one| one.0 == id && one.1.is_none());
        assert_eq!(output.delete_marker.unwrap_or(false), is_marker);
        self.oracle.remove(key, id);
    }

    async fn set(&mut self, state: Versioning) {
        let status = match state {
            Versioning::Enabled => BucketVersioningStatus::ENABLED,
            _ => BucketVersioningStatus::SUSPENDED,
        };
        let status = Some(BucketVersioningStatus::from_static(status));
        let input = PutBucketVersioningInput::builder()
            .bucket(BUCKET.to_owned())
            .versioning_configuration(VersioningConfiguration { mfa_delete: None, status })
            .build()
            .expect("a state");
        self.objects.put_bucket_versioning(request(input)).await.expect("it is set");
        self.oracle.state = state;
    }

    async fn check_list(&self, random: &mut Random) {
        let prefix = random.pick(&["", "", "a", "a/", "c/", "é"]);
        let delimiter = random.pick(&[None, Some("/"), Some("//"), Some("!")]);
        let (due, page) = (self.oracle.names(prefix, delimiter), random.below(5) + 1);
        let (mut found, mut token) = (Vec::new(), None);
        // A page has one name at least.
        for _ in 0..=due.len() {
            let input = ListObjectsV2Input {
                bucket: BUCKET.to_owned(),
                prefix: Some(prefix.to_owned()),
                delimiter: delimiter.map(str::to_owned),
                max_keys: Some(page),
                continuation_token: token.take(),
                ..ListObjectsV2Input::default()
            };
            let output = self.objects.list_objects_v2(request(input)).await.expect("a list").output;
            let keys = output.contents.unwrap_or_default().into_iter().filter_map(|o| o.key);
            let prefixes = output.common_prefixes.unwrap_or_default().into_iter();
            found.extend(keys.chain(prefixes.filter_map(|p| p.prefix)));
            token = output.next_continuation_token;
            if token.is_none() {
                break;
            }
        }
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, due, "{prefix:?} {delimiter:?} {page}");
    }

    async fn check_versions(&self, random: &mut Random) {
        let page = random.below(5) + 1;
        let mut found: BTreeMap<String, Vec<(String, bool, bool)>> = BTreeMap::new();
        let (mut key_marker, mut version_id_marker) = (None, None);
        let total: usize = self.oracle.keys.values().map(Vec::len).sum();
        let mut times = Vec::new();
        for _ in 0..=total {
            let input = ListObjectVersionsInput {
                bucket: BUCKET.to_owned(),
                max_keys: Some(page),
                key_marker: key_marker.take(),
                version_id_marker: version_id_marker.take(),
                ..ListObjectVersionsInput::default()
            };
            let listed = self.objects.list_object_versions(request(input)).await.expect("a list");
            let output = listed.output;
            let versions = output.versions.unwrap_or_default().into_iter();
            let markers = output.delete_markers.unwrap_or_default().into_iter();
            let versions =
                versions.map(|o| (o.key, o.version_id, o.last_modified, o.is_latest, false));
            let markers =
                markers.map(|o| (o.key, o.version_id, o.last_modified, o.is_latest, true));
            for (key, id, time, is_latest, is_marker) in versions.chain(markers) {
                times.push((key, time, id, is_latest, is_marker));
            }
            (key_marker, version_id_marker) =
                (output.next_key_marker, output.next_version_id_marker);
            if key_marker.is_none() {
                break;
            }
        }
        times.sort_by(|a, b| (&a.0, &b.1).partial_cmp(&(&b.0, &a.1)).expect("an order"));
        for (key, _, id, is_latest, is_marker) in times {
            let one = (id.expect("an id"), is_latest.expect("said"), is_marker);
            found.entry(key.expect("a key")).or_default().push(one);
        }
        let due = self.oracle.keys.iter().map(|(key, own)| {
            let one = |(at, one): (usize, &One)| (one.0.clone(), at == 0, one.1.is_none());
            (key.clone(), own.iter().enumerate().map(one).collect())
        });
        assert_eq!(found, due.collect(), "{page}");
    }
}

async fn step(bed: &mut Bed, random: &mut Random) {
    let key = random.pick(KEYS);
    match random.below(20) {
        0 if random.percent(30) => bed.set(Versioning::Enabled).await,
        1 if random.percent(30) => bed.set(Versioning::Suspended).await,
        0..=7 => bed.put(key).await,
        8..=11 => bed.delete(key).await,
        12..=15 => {
            let known = bed.oracle.keys.get(key).map_or(&[][..], |own| own);
            let mut ids: Vec<String> = known.iter().map(|one| one.0.clone()).collect();
            ids.extend([NULL.to_owned(), "../../x".to_owned(), "0".repeat(24)]);
            let id = random.pick(&ids);
            bed.delete_version(key, &id).await;
        }
        16 => bed.check_versions(random).await,
        _ => bed.check_list(random).await,
    }
    let ids = bed.oracle.keys.get(key).map_or(&[][..], |own| own).iter().map(|one| Some(&*one.0));
    for id in [None, Some(NULL), Some("f")].into_iter().chain(ids) {
        let due = bed.oracle.read(key, id).map_err(str::to_owned);
        assert_eq!(bed.get(key, id).await, due, "{key:?} {id:?}");
    }
}

#[test]
fn versions_and_lists_are_those_of_a_slow_oracle() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    cases(40, |random| {
        runtime.block_on(async {
            let objects = start(&empty());
            let input = CreateBucketInput { bucket: BUCKET.to_owned(), ..Default::default() };
            objects.create_bucket(request(input)).await.expect("a bucket");
            let oracle = Oracle { state: Versioning::Off, keys: BTreeMap::new() };
            let mut bed = Bed { objects, oracle, count: 0 };
            for _ in 0..60 {
                step(&mut bed, random).await;
            }
            bed.check_versions(random).await;
        });
    });
}

#[test]
fn a_bucket_whose_directory_is_lost_keeps_its_versions() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let disk = empty();
        let objects = start(&disk);
        let create = || CreateBucketInput { bucket: BUCKET.to_owned(), ..Default::default() };
        objects.create_bucket(request(create())).await.expect("a bucket");
        let oracle = Oracle { state: Versioning::Off, keys: BTreeMap::new() };
        let mut bed = Bed { objects, oracle, count: 0 };
        bed.set(Versioning::Enabled).await;
        for key in ["a", "a", "b/c"] {
            bed.put(key).await;
        }
        // As after a restore without empty directories.
        disk.remove_dir(&std::path::Path::new(ROOT).join(BUCKET)).expect("it is empty");
        bed.objects.create_bucket(request(create())).await.expect("the bucket again");
        bed.check_versions(&mut Random::new(1)).await;
        for key in ["a", "b/c"] {
            assert_eq!(bed.get(key, None).await, bed.oracle.read(key, None).map_err(str::to_owned));
        }
    });
}

#[test]
fn a_list_goes_on_behind_a_version_that_is_removed_between_its_pages() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let objects = start(&empty());
        let create = CreateBucketInput { bucket: BUCKET.to_owned(), ..Default::default() };
        objects.create_bucket(request(create)).await.expect("a bucket");
        let oracle = Oracle { state: Versioning::Off, keys: BTreeMap::new() };
        let mut bed = Bed { objects, oracle, count: 0 };
        for key in ["a", "b"] {
            bed.put(key).await;
        }
        bed.set(Versioning::Enabled).await;
        for key in ["a", "a", "b", "c", "a"] {
            bed.put(key).await;
        }
        bed.delete("a").await;
        bed.set(Versioning::Suspended).await;
        bed.put("c").await;
        bed.set(Versioning::Enabled).await;
        bed.put("c").await;
        let newest_first = |(key, own): (&String, &Vec<One>)| {
            own.iter().map(|one| (key.clone(), one.0.clone())).collect::<Vec<_>>()
        };
        let mut due: Vec<_> = bed.oracle.keys.iter().flat_map(newest_first).collect();
        let (mut found, mut marker) = (Vec::new(), (None, None));
        for _ in 0..=due.len() {
            let input = ListObjectVersionsInput {
                bucket: BUCKET.to_owned(),
                max_keys: Some(2),
                key_marker: marker.0.take(),
                version_id_marker: marker.1.take(),
                ..ListObjectVersionsInput::default()
            };
            let listed = bed.objects.list_object_versions(request(input)).await.expect("a list");
            let output = listed.output;
            let versions = output.versions.unwrap_or_default().into_iter();
            let markers = output.delete_markers.unwrap_or_default().into_iter();
            let names = versions.map(|one| (one.key, one.version_id));
            let names = names.chain(markers.map(|one| (one.key, one.version_id)));
            found.extend(names.map(|(key, id)| (key.expect("a key"), id.expect("an id"))));
            marker = (output.next_key_marker, output.next_version_id_marker);
            match &marker {
                (None, _) => break,
                // The place of a version without an id of its own is not known once it is gone.
                (Some(key), Some(id)) if id != NULL => {
                    let (key, id) = (key.clone(), id.clone());
                    bed.delete_version(&key, &id).await;
                }
                _ => {}
            }
        }
        // A page has its versions before its delete markers.
        found.sort();
        due.sort();
        assert_eq!(found, due);
    });
}
