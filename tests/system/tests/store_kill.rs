//! The built-in store is killed at random times while several clients write: each acknowledged
//! object is there, whole, and so is each acknowledged version.
//!
//! `UNLADE_STORE_PUTS` is the number of acknowledged PUTs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use system_tests::functions::ask_plainly;
use system_tests::unlade;
use unlade_testkit::{Random, seed, setting};

const WRITERS: u64 = 4;
/// Keys of a writer; every fourth is in the bucket with versions.
const KEYS: u64 = 24;
/// Most acknowledged PUTs between two kills.
const PUTS_OF_A_LIFE_MAX: u64 = 250;

struct Store {
    child: Child,
    address: SocketAddr,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Store {
    fn start(dir: &Path) -> Store {
        let mut command = Command::new(unlade());
        command.args(["fn", "store", "--listen", "127.0.0.1:0", "--die-with-parent", "--dir"]);
        let mut child = command.arg(dir).stdout(Stdio::piped()).spawn().expect("a store");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its address");
        let address = line.trim().trim_start_matches("http://").parse().expect("an address");
        Store { child, address }
    }

    fn must(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let answer = ask_plainly(self.address, method, path, &[], body).expect("an answer");
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        answer.body
    }
}

/// The number of a PUT of a key: the last one that was acknowledged, and the last one that was
/// sent.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
}

/// The keys of a writer, as it knows them.
#[derive(Default)]
struct Writer {
    number: u64,
    keys: BTreeMap<u64, Known>,
    /// Acknowledged versions: the key, the number, the id.
    versions: Vec<(u64, u64, String)>,
    puts: u64,
}

fn is_versioned(key: u64) -> bool {
    key.is_multiple_of(4)
}

/// The path of a key. Some keys are below others, and some are no paths.
fn path(writer: u64, key: u64) -> String {
    let bucket = if is_versioned(key) { "versions" } else { "plain" };
    match key % 3 {
        0 => format!("/{bucket}/w{writer}/k{}", key / 3),
        1 => format!("/{bucket}/w{writer}/k{}/{key}", key / 3),
        _ => format!("/{bucket}/w{writer}//{key}"),
    }
}

/// The body of a PUT: its beginning names the PUT, the rest is random bytes of this seed.
fn body(writer: u64, key: u64, number: u64) -> Vec<u8> {
    let mut random = Random::numbered(writer << 32 | key, number);
    let bytes = match random.below(16) {
        0 => 200_000 + random.below(200_000_usize),
        1..=5 => random.below(20_000),
        _ => random.below(600),
    };
    let mut body = format!("{writer} {key} {number}\n").into_bytes();
    body.extend(random.bytes(bytes));
    body
}

/// The number of a body, which must be whole.
fn number_of(writer: u64, key: u64, found: &[u8]) -> u64 {
    let line = found.split(|byte| *byte == b'\n').next().expect("a line");
    let line = String::from_utf8_lossy(line);
    let number = line.split(' ').nth(2).and_then(|number| number.parse().ok());
    let number = number.unwrap_or_else(|| panic!("{}: {line}", path(writer, key)));
    let due = body(writer, key, number);
    assert!(found == due, "{} is torn: {} of {} bytes", path(writer, key), found.len(), due.len());
    number
}

impl Writer {
    /// Writes until a request fails because the store was killed.
    fn run(
        &mut self,
        address: SocketAddr,
        random: &mut Random,
        puts: &AtomicU64,
        end: &AtomicBool,
    ) {
        while !end.load(Ordering::Acquire) {
            let key = random.below(KEYS);
            let known = self.keys.entry(key).or_default();
            known.sent += 1;
            let (number, path) = (known.sent, path(self.number, key));
            let body = body(self.number, key, number);
            match ask_plainly(address, "PUT", &path, &[], &body) {
                Ok(answer) => {
                    assert_eq!(answer.status, 200, "{path}: {answer:?}");
                    known.acknowledged = number;
                    let id = answer.headers.iter().find(|(name, _)| name == "x-amz-version-id");
                    assert_eq!(id.is_some(), is_versioned(key), "{answer:?}");
                    self.versions.extend(id.map(|(_, id)| (key, number, id.clone())));
                    self.puts += 1;
                    puts.fetch_add(1, Ordering::AcqRel);
                }
                // The store was killed: the object is the one before, or this one.
                Err(_) => return,
            }
        }
    }

    /// Compares all keys with what is known of them.
    fn check(&mut self, store: &Store) {
        for (key, known) in &mut self.keys {
            let path = path(self.number, *key);
            let answer = ask_plainly(store.address, "GET", &path, &[], b"").expect("an answer");
            let number = match answer.status {
                200 => number_of(self.number, *key, &answer.body),
                404 => 0,
                status => panic!("{path}: {status}"),
            };
            assert!(
                (known.acknowledged..=known.sent).contains(&number),
                "{path}: number {number} is there, {known:?}"
            );
            known.acknowledged = number;
        }
    }

    fn check_versions(&self, store: &Store) {
        for (key, number, id) in &self.versions {
            let path = format!("{}?versionId={id}", path(self.number, *key));
            let found = store.must("GET", &path, b"");
            assert_eq!(number_of(self.number, *key, &found), *number, "{path}");
        }
    }
}

#[test]
fn no_acknowledged_object_is_lost_or_torn_when_the_store_is_killed() {
    let due = setting("UNLADE_STORE_PUTS").unwrap_or(1500);
    let dir = tempfile::tempdir().expect("a directory");
    let seed = seed();
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer { number, ..Writer::default() }).collect();
    let mut store = Store::start(dir.path());
    store.must("PUT", "/plain", b"");
    store.must("PUT", "/versions", b"");
    let enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    store.must("PUT", "/versions?versioning", enabled.as_bytes());
    let (mut total, mut kills) = (0, 0_u64);
    while total < due {
        let (puts, end) = (AtomicU64::new(0), AtomicBool::new(false));
        let (address, life) = (store.address, random.below(PUTS_OF_A_LIFE_MAX) + 1);
        let pause_us = random.below(3000_u64);
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for writer in &mut writers {
                let mut own = Random::numbered(seed, kills << 8 | writer.number);
                let (puts, end) = (&puts, &end);
                running.push(scope.spawn(move || writer.run(address, &mut own, puts, end)));
            }
            while puts.load(Ordering::Acquire) < life {
                assert!(running.iter().all(|one| !one.is_finished()), "a PUT failed by itself");
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            // The place within a PUT is to differ.
            std::thread::sleep(std::time::Duration::from_micros(pause_us));
            store.child.kill().expect("it is killed");
            end.store(true, Ordering::Release);
        });
        kills += 1;
        store = Store::start(dir.path());
        writers.iter_mut().for_each(|writer| writer.check(&store));
        total = writers.iter().map(|writer| writer.puts).sum();
    }
    writers.iter().for_each(|writer| writer.check_versions(&store));
    let versions: usize = writers.iter().map(|writer| writer.versions.len()).sum();
    println!("{total} acknowledged PUTs, {versions} of them versions, {kills} kills");
    assert!(kills > 0 && versions > 0);
}
