//! A file system in memory with simulated power failures, and tests of the store's state after
//! them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use s3s::dto::*;
use s3s::{Body, S3, S3Request, S3Result};

use crate::disk::{Disk, DiskFile, Kind, Stamp, Stat};
use crate::objects::Objects;
use crate::vault::Vault;

/// The data that survives a power failure in addition to synced data.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// Nothing.
    Synced,
    /// All names, and no bytes: a rename that is durable before the bytes of its file.
    Names,
    /// All bytes, and no names.
    Bytes,
    /// A pseudorandom choice for each name and each file.
    Some(u64),
}

type Id = usize;

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    modified_ns: i64,
    synced: (Vec<u8>, i64),
}

#[derive(Clone, Debug)]
enum Node {
    File(File),
    /// With the number of its changes, which is its time.
    Directory {
        names: BTreeMap<OsString, Id>,
        synced: BTreeMap<OsString, Id>,
        changes: i64,
    },
}

#[derive(Debug)]
struct State {
    nodes: Vec<Node>,
    /// Number of changes before the power failure.
    left: usize,
    made: usize,
}

/// The simulated file system.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<State>>);

/// A file in it.
#[derive(Debug)]
pub struct Open {
    disk: Memory,
    id: Id,
}

fn directory() -> Node {
    Node::Directory { names: BTreeMap::new(), synced: BTreeMap::new(), changes: 0 }
}

impl State {
    fn find(&self, path: &Path) -> io::Result<Id> {
        let mut at = 0;
        for name in path.iter().filter(|name| *name != OsStr::new("/")) {
            let Node::Directory { names, .. } = &self.nodes[at] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            at = *names.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    fn names(&mut self, path: &Path) -> io::Result<&mut BTreeMap<OsString, Id>> {
        let at = self.find(path)?;
        match &mut self.nodes[at] {
            Node::Directory { names, changes, .. } => {
                *changes += 1;
                Ok(names)
            }
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn change(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("no power"))?;
        self.made += 1;
        Ok(())
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<Id> {
        self.change()?;
        let id = self.nodes.len();
        let (dir, name) = split(path);
        let names = self.names(dir)?;
        if names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name.to_owned(), id);
        self.nodes.push(node);
        Ok(id)
    }

    fn stat(&self, id: Id) -> Stat {
        match &self.nodes[id] {
            Node::File(file) => Stat {
                kind: Kind::File,
                bytes: file.bytes.len() as u64,
                modified_ns: file.modified_ns,
            },
            Node::Directory { changes, .. } => {
                Stat { kind: Kind::Directory, bytes: 0, modified_ns: *changes }
            }
        }
    }
}

fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().expect("a name"), path.file_name().expect("a name"))
}

impl Memory {
    fn new() -> Memory {
        let state = State { nodes: vec![directory()], left: usize::MAX, made: 0 };
        Memory(Arc::new(Mutex::new(state)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Schedules the power failure after this number of changes.
    pub fn fail_after(&self, changes: usize) {
        self.with(|state| (state.left, state.made) = (changes, 0));
    }

    /// Returns true if no change is possible any more.
    pub fn has_failed(&self) -> bool {
        self.with(|state| state.left == 0)
    }

    /// The file system after the power failure.
    pub fn after_failure(&self, left: Left) -> Memory {
        let mut random = match left {
            Left::Some(seed) => seed | 1,
            _ => 1,
        };
        let mut is_kept = |of_names: bool| match left {
            Left::Synced => false,
            Left::Names => of_names,
            Left::Bytes => !of_names,
            Left::Some(_) => {
                // Marsaglia's xorshift.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random >> 33 & 1 == 1
            }
        };
        let mut nodes = self.with(|state| state.nodes.clone());
        for node in &mut nodes {
            match node {
                Node::File(file) => {
                    if is_kept(false) {
                        file.synced = (file.bytes.clone(), file.modified_ns);
                    }
                    (file.bytes, file.modified_ns) = file.synced.clone();
                }
                Node::Directory { names, synced, .. } => {
                    let all: Vec<OsString> = names.keys().chain(synced.keys()).cloned().collect();
                    for name in all {
                        if !is_kept(true) {
                            continue;
                        }
                        match names.get(&name) {
                            Some(id) => synced.insert(name, *id),
                            None => synced.remove(&name),
                        };
                    }
                    names.clone_from(synced);
                }
            }
        }
        let state = State { nodes, left: usize::MAX, made: 0 };
        Memory(Arc::new(Mutex::new(state)))
    }
}

impl DiskFile for Open {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.with(|state| {
            state.change()?;
            let Node::File(file) = &mut state.nodes[self.id] else { unreachable!() };
            file.bytes.extend_from_slice(bytes);
            Ok(())
        })
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.with(|state| {
            let Node::File(file) = &state.nodes[self.id] else { unreachable!() };
            let rest = file.bytes.get(at as usize..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(self.disk.with(|state| state.stat(self.id)))
    }

    fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        self.disk.with(|state| {
            state.change()?;
            let Node::File(file) = &mut state.nodes[self.id] else { unreachable!() };
            file.modified_ns = modified_ns;
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.with(|state| {
            state.change()?;
            let Node::File(file) = &mut state.nodes[self.id] else { unreachable!() };
            file.synced = (file.bytes.clone(), file.modified_ns);
            Ok(())
        })
    }
}

impl Disk for Memory {
    type File = Open;

    fn create(&self, path: &Path) -> io::Result<Open> {
        let id = self.with(|state| state.add(path, Node::File(File::default())))?;
        Ok(Open { disk: self.clone(), id })
    }

    fn open(&self, path: &Path) -> io::Result<Open> {
        let id = self.with(|state| state.find(path))?;
        Ok(Open { disk: self.clone(), id })
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.with(|state| state.find(path).map(|id| state.stat(id)))
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        let stamp =
            |(id, stat): (Id, Stat)| Stamp { inode: id as u64, changed_ns: stat.modified_ns };
        self.with(|state| state.find(path).map(|id| stamp((id, state.stat(id)))))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        self.with(|state| {
            let at = state.find(path)?;
            let Node::Directory { names, .. } = &state.nodes[at] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            let names = names.clone();
            Ok(names.into_iter().map(|(name, id)| (name, state.stat(id).kind)).collect())
        })
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.with(|state| state.add(path, directory()).map(drop))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            state.change()?;
            let (dir, name) = split(path);
            state.names(dir)?.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            if !state.names(path)?.is_empty() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            state.change()?;
            let (dir, name) = split(path);
            state.names(dir)?.remove(name);
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with(|state| {
            let id = state.find(from)?;
            let is_dir = |id: &Id| matches!(state.nodes[*id], Node::Directory { .. });
            if state.find(to).is_ok_and(|there| is_dir(&there) && !is_dir(&id)) {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let (dir, name) = split(to);
            state.names(dir)?;
            state.change()?;
            state.names(dir)?.insert(name.to_owned(), id);
            let (dir, name) = split(from);
            state.names(dir)?.remove(name);
            Ok(())
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.with(|state| {
            let at = state.find(path)?;
            state.change()?;
            match &mut state.nodes[at] {
                Node::Directory { names, synced, .. } => synced.clone_from(names),
                Node::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
            }
            Ok(())
        })
    }
}

pub const ROOT: &str = "/store";

/// A store on it.
pub fn start(disk: &Memory) -> Objects<Memory> {
    Objects::new(Vault::open(disk.clone(), Path::new(ROOT)).expect("a store"))
}

/// A request without its HTTP.
pub fn request<T>(input: T) -> S3Request<T> {
    S3Request {
        input,
        method: hyper::Method::GET,
        uri: hyper::Uri::default(),
        headers: hyper::HeaderMap::new(),
        extensions: Default::default(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

/// An object: its bytes and its metadata.
type Seen = (Vec<u8>, String);

#[derive(Clone, Debug)]
enum Step {
    Bucket(&'static str),
    NoBucket(&'static str),
    Put(&'static str, &'static str),
    Copy(&'static str, &'static str),
    Parts(&'static str, &'static str),
    Delete(&'static [&'static str]),
    /// Replaces the tags of the newest version.
    Tag(&'static str, &'static str),
    /// Enables versions, or suspends them.
    Versions(bool),
    /// Removes a version of a key, by its place among them, the newest first.
    Remove(&'static str, usize),
}

const BUCKET: &str = "box";

/// Keys that conflict as paths, or are not valid paths; each is replaced by a value of another
/// length.
const STEPS: &[Step] = &[
    Step::Bucket(BUCKET),
    Step::Put("a", "one"),
    Step::Put("a/b", "two"),
    Step::Put("../box/k", "three"),
    Step::Put("a", "one again"),
    Step::Put("d/e/f", "four"),
    Step::Delete(&["d/e/f"]),
    Step::Put("d/e", "five"),
    Step::Tag("a", "1"),
    Step::Tag("../box/k", "2"),
    Step::Copy("a", "a/b"),
    Step::Tag("a", "3"),
    Step::Parts("a", "six"),
    Step::Put("a", "7"),
    Step::Delete(&["a", "d/e"]),
    Step::Copy("../box/k", "a"),
    Step::Delete(&["../box/k", "a/b", "a"]),
    Step::NoBucket(BUCKET),
    Step::Bucket("again"),
];

/// Changes of versions: each one is an old or a new state of its key, too.
const VERSIONED: &[Step] = &[
    Step::Bucket(BUCKET),
    Step::Put("a", "first"),
    Step::Put("../k", "odd"),
    Step::Versions(true),
    Step::Tag("a", "1"),
    Step::Put("a", "second"),
    Step::Tag("a", "2"),
    Step::Delete(&["../k"]),
    Step::Put("a/b", "below"),
    Step::Copy("a", "../k"),
    Step::Remove("../k", 1),
    Step::Remove("a", 1),
    Step::Versions(false),
    Step::Put("a", "no version"),
    Step::Put("a", "no version again"),
    Step::Delete(&["a", "a/b"]),
    Step::Parts("../k", "parts"),
    Step::Remove("a", 0),
    Step::Remove("a/b", 1),
    Step::Versions(true),
    Step::Delete(&["../k"]),
    Step::Remove("a", 0),
];

fn said(body: &str) -> String {
    format!("text/{}", body.replace(' ', "-"))
}

async fn put(objects: &Objects<Memory>, key: &str, body: &'static str) -> S3Result<()> {
    let input = PutObjectInput {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        content_type: Some(said(body)),
        body: Some(StreamingBlob::from(Body::from(body.to_owned()))),
        ..PutObjectInput::default()
    };
    objects.put_object(request(input)).await.map(drop)
}

async fn upload(objects: &Objects<Memory>, key: &str, body: &'static str) -> S3Result<()> {
    let input = CreateMultipartUploadInput {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        content_type: Some(said(body)),
        ..CreateMultipartUploadInput::default()
    };
    let begun = objects.create_multipart_upload(request(input)).await?.output;
    let upload_id = begun.upload_id.expect("an upload");
    let input = UploadPartInput {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        upload_id: upload_id.clone(),
        part_number: 3,
        body: Some(StreamingBlob::from(Body::from(body.to_owned()))),
        ..UploadPartInput::default()
    };
    let e_tag = objects.upload_part(request(input)).await?.output.e_tag;
    let part = CompletedPart { part_number: Some(3), e_tag, ..CompletedPart::default() };
    let input = CompleteMultipartUploadInput {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        upload_id,
        multipart_upload: Some(CompletedMultipartUpload { parts: Some(vec![part]) }),
        ..CompleteMultipartUploadInput::default()
    };
    objects.complete_multipart_upload(request(input)).await.map(drop)
}

async fn make(objects: &Objects<Memory>, step: &Step) -> S3Result<()> {
    match step {
        Step::Bucket(name) => {
            let input = CreateBucketInput { bucket: (*name).to_owned(), ..Default::default() };
            objects.create_bucket(request(input)).await.map(drop)
        }
        Step::NoBucket(name) => {
            let input = DeleteBucketInput { bucket: (*name).to_owned(), ..Default::default() };
            objects.delete_bucket(request(input)).await.map(drop)
        }
        Step::Put(key, body) => put(objects, key, body).await,
        Step::Copy(from, to) => {
            let (bucket, key) = (BUCKET.into(), (*from).into());
            let input = CopyObjectInput::builder()
                .bucket(BUCKET.to_owned())
                .key((*to).to_owned())
                .copy_source(CopySource::Bucket { bucket, key, version_id: None })
                .build()
                .expect("a copy");
            objects.copy_object(request(input)).await.map(drop)
        }
        Step::Tag(key, value) => {
            let tag = Tag { key: Some("n".to_owned()), value: Some((*value).to_owned()) };
            let input = PutObjectTaggingInput::builder()
                .bucket(BUCKET.to_owned())
                .key((*key).to_owned())
                .tagging(Tagging { tag_set: vec![tag] })
                .build()
                .expect("tags");
            objects.put_object_tagging(request(input)).await.map(drop)
        }
        Step::Parts(key, body) => upload(objects, key, body).await,
        Step::Delete(keys) => {
            let identifier = |key: &&str| ObjectIdentifier {
                key: (**key).to_owned(),
                ..ObjectIdentifier::default()
            };
            let objects_of = keys.iter().map(identifier).collect();
            let input = DeleteObjectsInput::builder()
                .bucket(BUCKET.to_owned())
                .delete(Delete { objects: objects_of, quiet: None })
                .build()
                .expect("keys");
            let deleted = objects.delete_objects(request(input)).await?.output;
            match deleted.errors {
                None => Ok(()),
                Some(_) => Err(s3s::s3_error!(InternalError)),
            }
        }
        Step::Versions(is_enabled) => {
            let status = match is_enabled {
                true => BucketVersioningStatus::ENABLED,
                false => BucketVersioningStatus::SUSPENDED,
            };
            let status = Some(BucketVersioningStatus::from_static(status));
            let input = PutBucketVersioningInput::builder()
                .bucket(BUCKET.to_owned())
                .versioning_configuration(VersioningConfiguration { mfa_delete: None, status })
                .build()
                .expect("a state");
            objects.put_bucket_versioning(request(input)).await.map(drop)
        }
        Step::Remove(key, at) => {
            let ids = versions(objects).await;
            let id = ids.get(*key).and_then(|own| Some(own.get(*at)?.0.clone()));
            let version_id = Some(id.ok_or_else(|| s3s::s3_error!(InternalError))?);
            let (bucket, key) = (BUCKET.to_owned(), (*key).to_owned());
            let input = DeleteObjectInput { bucket, key, version_id, ..Default::default() };
            objects.delete_object(request(input)).await.map(drop)
        }
    }
}

/// A version of a key: if it has no id of its own, and its object; `None` for a delete marker.
type Listed = (bool, Option<Seen>);

/// The ids of the versions of each key, the newest first.
async fn versions(objects: &Objects<Memory>) -> BTreeMap<String, Vec<(String, bool)>> {
    let input = ListObjectVersionsInput { bucket: BUCKET.to_owned(), ..Default::default() };
    let Ok(listed) = objects.list_object_versions(request(input)).await else {
        return BTreeMap::new();
    };
    let versions = listed.output.versions.unwrap_or_default().into_iter();
    let markers = listed.output.delete_markers.unwrap_or_default().into_iter();
    let versions = versions.map(|one| (one.key, one.last_modified, one.version_id, false));
    let markers = markers.map(|one| (one.key, one.last_modified, one.version_id, true));
    let mut found: Vec<_> = versions.chain(markers).collect();
    // The time of a version is unique in its key.
    found.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("times"));
    let mut sorted: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for (key, _, id, is_marker) in found {
        sorted.entry(key.expect("a key")).or_default().push((id.expect("an id"), is_marker));
    }
    sorted
}

/// The expected state of a store: buckets, and the versions of one, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Due {
    buckets: Vec<String>,
    versions: BTreeMap<String, Vec<Listed>>,
    /// `None` if versions were never enabled.
    is_enabled: Option<bool>,
}

impl Due {
    fn after(&self, step: &Step) -> Due {
        let mut due = self.clone();
        match step {
            Step::Bucket(name) => due.buckets.push((*name).to_owned()),
            Step::NoBucket(name) => due.buckets.retain(|bucket| bucket != name),
            Step::Put(key, body) | Step::Parts(key, body) => {
                due.add(key, Some((body.as_bytes().to_vec(), said(body))));
            }
            Step::Copy(from, to) => {
                let newest = due.versions[*from][0].1.clone();
                due.add(to, newest);
            }
            Step::Tag(key, value) => {
                let newest = due.versions.get_mut(*key).expect("versions");
                let (_, said) = newest[0].1.as_mut().expect("an object");
                *said = format!("{} n={value}", said.split(' ').next().unwrap_or_default());
            }
            Step::Delete(keys) => keys.iter().for_each(|key| match due.is_enabled {
                None => drop(due.versions.remove(*key)),
                Some(_) => due.add(key, None),
            }),
            Step::Versions(is_enabled) => due.is_enabled = Some(*is_enabled),
            Step::Remove(key, at) => {
                let own = due.versions.get_mut(*key).expect("versions");
                own.remove(*at);
                if own.is_empty() {
                    due.versions.remove(*key);
                }
            }
        }
        due
    }

    fn add(&mut self, key: &str, seen: Option<Seen>) {
        let own = self.versions.entry(key.to_owned()).or_default();
        let has_id = self.is_enabled == Some(true);
        own.retain(|(is_null, _)| has_id || !is_null);
        own.insert(0, (!has_id, seen));
    }
}

async fn get(objects: &Objects<Memory>, key: &str, version: Option<&str>) -> S3Result<Seen> {
    let input = GetObjectInput {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        version_id: version.map(str::to_owned),
        ..GetObjectInput::default()
    };
    let found = objects.get_object(request(input)).await?.output;
    let mut body = Body::from(found.body.expect("a body"));
    let body = body.store_all_limited(1 << 20).await.expect("a body").to_vec();
    let input = GetObjectTaggingInput::builder()
        .bucket(BUCKET.to_owned())
        .key(key.to_owned())
        .version_id(version.map(str::to_owned))
        .build()
        .expect("an object");
    let tags = objects.get_object_tagging(request(input)).await?.output.tag_set;
    assert_eq!(found.tag_count.unwrap_or(0), i32::try_from(tags.len()).expect("few"));
    let text = |tag: Tag| format!(" {}={}", tag.key.expect("a name"), tag.value.expect("a value"));
    let tags: String = tags.into_iter().map(text).collect();
    Ok((body, found.content_type.unwrap_or_default() + &tags))
}

/// The state of a store. Lists and reads of the newest versions agree with those of all versions.
async fn seen(objects: &Objects<Memory>) -> Due {
    let input = ListBucketsInput::default();
    let buckets = objects.list_buckets(request(input)).await.expect("buckets").output;
    let buckets = buckets.buckets.unwrap_or_default().into_iter().filter_map(|b| b.name).collect();
    let mut due = Due { buckets, ..Due::default() };
    let input = ListObjectsV2Input { bucket: BUCKET.to_owned(), ..Default::default() };
    let Ok(listed) = objects.list_objects_v2(request(input)).await else { return due };
    let input = GetBucketVersioningInput { bucket: BUCKET.to_owned(), ..Default::default() };
    let state = objects.get_bucket_versioning(request(input)).await.expect("a state").output;
    due.is_enabled = state.status.map(|s| s.as_str() == BucketVersioningStatus::ENABLED);
    let mut newest = Vec::new();
    for (key, own) in versions(objects).await {
        let mut found = Vec::new();
        for (id, is_marker) in own {
            let seen = match is_marker {
                true => None,
                false => Some(get(objects, &key, Some(&id)).await.expect("a version")),
            };
            found.push((id == "null", seen));
        }
        match (&found[0].1, get(objects, &key, None).await) {
            (Some(seen), Ok(now)) if *seen == now => newest.push(key.clone()),
            (None, Err(error)) if error.code().as_str() == "NoSuchKey" => {}
            (due, now) => panic!("{key}: {due:?} is not {now:?}"),
        }
        due.versions.insert(key, found);
    }
    let keys = listed.output.contents.unwrap_or_default().into_iter().filter_map(|one| one.key);
    assert_eq!(keys.collect::<Vec<_>>(), newest);
    due
}

/// Returns true if each key that a step changes is old or new, and everything else is unchanged.
fn is_between(found: &Due, before: &Due, after: &Due) -> bool {
    let keys = before.versions.keys().chain(after.versions.keys()).chain(found.versions.keys());
    let is_either = |key: &String| {
        let [found, before, after] = [found, before, after].map(|due| due.versions.get(key));
        found == before || found == after
    };
    let is_known = found.buckets == before.buckets || found.buckets == after.buckets;
    // A bucket that is gone has no state.
    let is_state = found.is_enabled == before.is_enabled
        || found.is_enabled == after.is_enabled
        || found.buckets.is_empty();
    is_known && is_state && keys.into_iter().all(is_either)
}

/// A file system with an empty directory for a store.
pub fn empty() -> Memory {
    let disk = Memory::new();
    disk.make_dir(Path::new(ROOT)).expect("a root");
    disk.sync_dir(Path::new("/")).expect("a root");
    disk
}

/// Runs the steps until the power failure; returns true if it occurred, and the acknowledged
/// states.
async fn run(disk: &Memory, steps: &[Step]) -> (bool, Due, Option<Due>) {
    let mut due = Due::default();
    let Ok(vault) = Vault::open(disk.clone(), Path::new(ROOT)) else { return (true, due, None) };
    let objects = Objects::new(vault);
    for step in steps {
        let after = due.after(step);
        if make(&objects, step).await.is_err() {
            return (true, due, Some(after));
        }
        due = after;
    }
    (false, due, None)
}

/// Lets the power fail after each change that a store makes of its file system.
async fn fails_everywhere(steps: &[Step]) {
    let disk = empty();
    disk.fail_after(usize::MAX);
    let (has_failed, due, _) = run(&disk, steps).await;
    let found = seen(&start(&disk)).await;
    assert!(!has_failed && found == due, "{due:?}\n{found:?}");
    let changes = disk.with(|state| state.made);
    let seeds = (0..8).map(|seed| Left::Some(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1)));
    let all = [Left::Synced, Left::Names, Left::Bytes].into_iter().chain(seeds);
    for left in all {
        for at in 0..=changes {
            let disk = empty();
            disk.fail_after(at);
            let (has_failed, before, after) = run(&disk, steps).await;
            // A failure during cleanup is not reported.
            assert!(!has_failed || at < changes, "{left:?} {at}");
            let found = seen(&start(&disk.after_failure(left))).await;
            let after = after.as_ref().unwrap_or(&before);
            assert!(
                is_between(&found, &before, after),
                "{left:?}, the power failed after {at} changes: {found:?}\nis neither {before:?}\n\
                 nor {after:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_power_failure() {
    fails_everywhere(STEPS).await;
}

#[tokio::test]
async fn versions_outlive_a_power_failure() {
    fails_everywhere(VERSIONED).await;
}

/// Shows that the model can lose data: without it the other test proves nothing.
#[tokio::test]
async fn a_store_that_does_not_sync_loses_what_it_acknowledged() {
    let disk = empty();
    let file = Path::new("/store/file");
    disk.create(file).expect("a file").append(b"x").expect("a byte");
    assert!(disk.after_failure(Left::Synced).stat(file).is_err());
    assert_eq!(disk.after_failure(Left::Names).stat(file).expect("a name").bytes, 0);
    let (mut kept, mut lost) = (0, 0);
    for seed in 1..64_u64 {
        match disk.after_failure(Left::Some(seed << 32 | seed)).stat(file) {
            Ok(_) => kept += 1,
            Err(_) => lost += 1,
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}
