//! A file system in memory with simulated power failures, and tests of the store's state after
//! them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use s3s::dto::*;
use s3s::{Body, S3, S3Request, S3Result};

use crate::disk::{Disk, DiskFile, Kind, Stat};
use crate::objects::Objects;
use crate::vault::Vault;

/// The data that survives a power failure in addition to synced data.
#[derive(Clone, Copy, Debug)]
enum Left {
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
    Directory { names: BTreeMap<OsString, Id>, synced: BTreeMap<OsString, Id> },
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
struct Memory(Arc<Mutex<State>>);

#[derive(Debug)]
struct Open {
    disk: Memory,
    id: Id,
}

fn directory() -> Node {
    Node::Directory { names: BTreeMap::new(), synced: BTreeMap::new() }
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
            Node::Directory { names, .. } => Ok(names),
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
            Node::Directory { .. } => Stat { kind: Kind::Directory, bytes: 0, modified_ns: 0 },
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
    fn fail_after(&self, changes: usize) {
        self.with(|state| (state.left, state.made) = (changes, 0));
    }

    /// The file system after the power failure.
    fn after_failure(&self, left: Left) -> Memory {
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
                Node::Directory { names, synced } => {
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

    fn read_dir(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        self.with(|state| {
            let names = state.names(path)?.clone();
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
                Node::Directory { names, synced } => synced.clone_from(names),
                Node::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
            }
            Ok(())
        })
    }
}

const ROOT: &str = "/store";

fn start(disk: &Memory) -> Objects<Memory> {
    Objects::new(Vault::open(disk.clone(), Path::new(ROOT)).expect("a store"))
}

fn request<T>(input: T) -> S3Request<T> {
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
    Step::Copy("a", "a/b"),
    Step::Parts("a", "six"),
    Step::Put("a", "7"),
    Step::Delete(&["a", "d/e"]),
    Step::Copy("../box/k", "a"),
    Step::Delete(&["../box/k", "a/b", "a"]),
    Step::NoBucket(BUCKET),
    Step::Bucket("again"),
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
    }
}

/// The expected state of a store: buckets, and the objects of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Due {
    buckets: Vec<String>,
    objects: BTreeMap<String, Seen>,
}

impl Due {
    fn after(&self, step: &Step) -> Due {
        let mut due = self.clone();
        match step {
            Step::Bucket(name) => due.buckets.push((*name).to_owned()),
            Step::NoBucket(name) => due.buckets.retain(|bucket| bucket != name),
            Step::Put(key, body) | Step::Parts(key, body) => {
                due.objects.insert((*key).to_owned(), (body.as_bytes().to_vec(), said(body)));
            }
            Step::Copy(from, to) => {
                let seen = due.objects[*from].clone();
                due.objects.insert((*to).to_owned(), seen);
            }
            Step::Delete(keys) => due.objects.retain(|key, _| !keys.contains(&key.as_str())),
        }
        due
    }
}

async fn seen(objects: &Objects<Memory>) -> Due {
    let input = ListBucketsInput::default();
    let buckets = objects.list_buckets(request(input)).await.expect("buckets").output;
    let buckets = buckets.buckets.unwrap_or_default().into_iter().filter_map(|b| b.name).collect();
    let input = ListObjectsV2Input { bucket: BUCKET.to_owned(), ..Default::default() };
    let mut due = Due { buckets, objects: BTreeMap::new() };
    let Ok(listed) = objects.list_objects_v2(request(input)).await else { return due };
    for object in listed.output.contents.unwrap_or_default() {
        let key = object.key.expect("a key");
        let (bucket, own) = (BUCKET.to_owned(), key.clone());
        let input = GetObjectInput { bucket, key: own, ..GetObjectInput::default() };
        let found = objects.get_object(request(input)).await.expect("an object").output;
        let mut body = Body::from(found.body.expect("a body"));
        let body = body.store_all_limited(1 << 20).await.expect("a body").to_vec();
        due.objects.insert(key, (body, found.content_type.unwrap_or_default()));
    }
    due
}

/// Returns true if each object that a step changes is old or new, and everything else is
/// unchanged.
fn is_between(found: &Due, before: &Due, after: &Due) -> bool {
    let keys = before.objects.keys().chain(after.objects.keys()).chain(found.objects.keys());
    let is_either = |key: &String| {
        let [found, before, after] = [found, before, after].map(|due| due.objects.get(key));
        found == before || found == after
    };
    let is_known = found.buckets == before.buckets || found.buckets == after.buckets;
    is_known && keys.into_iter().all(is_either)
}

fn empty() -> Memory {
    let disk = Memory::new();
    disk.make_dir(Path::new(ROOT)).expect("a root");
    disk.sync_dir(Path::new("/")).expect("a root");
    disk
}

/// Runs the steps until the power failure; returns true if it occurred, and the acknowledged
/// states.
async fn run(disk: &Memory) -> (bool, Due, Option<Due>) {
    let mut due = Due::default();
    let Ok(vault) = Vault::open(disk.clone(), Path::new(ROOT)) else { return (true, due, None) };
    let objects = Objects::new(vault);
    for step in STEPS {
        let after = due.after(step);
        if make(&objects, step).await.is_err() {
            return (true, due, Some(after));
        }
        due = after;
    }
    (false, due, None)
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_power_failure() {
    let disk = empty();
    disk.fail_after(usize::MAX);
    let (has_failed, due, _) = run(&disk).await;
    assert!(!has_failed && seen(&start(&disk)).await == due, "{due:?}");
    let changes = disk.with(|state| state.made);
    let seeds = (0..8).map(|seed| Left::Some(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1)));
    let all = [Left::Synced, Left::Names, Left::Bytes].into_iter().chain(seeds);
    for left in all {
        for at in 0..=changes {
            let disk = empty();
            disk.fail_after(at);
            let (has_failed, before, after) = run(&disk).await;
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
