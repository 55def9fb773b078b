//! Tests against the original Redis programs; skipped, with the reason, if they are not installed.

mod common;

use common::requests::Requests;
use common::{Client, each};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {program} is not installed (Debian: redis-tools, redis-server)");
    }
    found
}

#[test]
fn redis_cli() {
    if !has("redis-cli") {
        return;
    }
    each(|server| {
        let cli = |words: &[&str]| {
            let port = server.address.port().to_string();
            let mut command = Command::new("redis-cli");
            let output = command.args(["-p", &port]).args(words).output().unwrap();
            assert!(output.status.success(), "{words:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(cli(&["set", "a key", "a \" value"]), "OK\n");
        assert_eq!(cli(&["get", "a key"]), "a \" value\n");
        assert_eq!(cli(&["mget", "a key", "none"]), "a \" value\n\n");
        assert_eq!(cli(&["expire", "a key", "100"]), "1\n");
        assert_eq!(cli(&["dbsize"]), "1\n");
        assert_eq!(cli(&["ping"]), "PONG\n");
        assert!(cli(&["info", "server"]).contains("redis_mode:standalone"));
        assert_eq!(
            cli(&["nonsense"]).lines().next().unwrap().get(..19),
            Some("ERR unknown command")
        );
    });
}

#[test]
fn redis_benchmark() {
    if !has("redis-benchmark") {
        return;
    }
    each(|server| {
        let port = server.address.port().to_string();
        for bytes in ["3", "20000", "100000"] {
            let output = Command::new("redis-benchmark")
                .args(["-p", &port, "-t", "ping_inline,ping_mbulk,set,get", "-n", "300", "-c", "5"])
                .args(["-d", bytes, "-P", "4", "-r", "50", "--csv"])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            for command in ["PING_INLINE", "PING_MBULK", "SET", "GET"] {
                assert!(text.contains(&format!("\"{command}\"")), "{text}");
            }
        }
    });
}

/// Maximum number of attempts with another port.
const STARTS_MAX: usize = 10;
/// Message of the server when it listens.
const READY: &str = "eady to accept connections";

struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    fn start() -> Redis {
        // Another process may take the port first.
        (0..STARTS_MAX).find_map(|_| Redis::try_start()).expect("redis-server starts")
    }

    /// Starts a server; `None` if it ends instead.
    fn try_start() -> Option<Redis> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
        let redis = Redis { child, address };
        log.by_ref().map_while(Result::ok).find(|line| line.contains(READY))?;
        // Read the rest of its output, so that the server does not block.
        std::thread::spawn(move || log.for_each(drop));
        Some(redis)
    }
}

impl Redis {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Maximum difference between two clocks that were set one after the other.
const SECONDS_BETWEEN_MAX: u64 = 20;

/// Parses an answer that is a number.
fn integer(answer: &[u8]) -> Option<i64> {
    std::str::from_utf8(answer).ok()?.strip_prefix(':')?.trim().parse().ok()
}

/// Returns true if two answers are times that differ by the time between the requests. Negative
/// numbers are not times.
fn is_near(name: &[u8], theirs: &[u8], ours: &[u8]) -> bool {
    let unit_max = match name {
        b"TTL" | b"EXPIRETIME" => SECONDS_BETWEEN_MAX,
        b"PTTL" | b"PEXPIRETIME" => 1000 * SECONDS_BETWEEN_MAX,
        _ => return false,
    };
    let (Some(theirs), Some(ours)) = (integer(theirs), integer(ours)) else { return false };
    theirs > 0 && ours > 0 && theirs.abs_diff(ours) <= unit_max
}

/// Splits the lines of an array of answers without strings, such as that of `EXEC`.
fn lines(answer: &[u8]) -> Vec<&[u8]> {
    answer.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Two clients of each server.
struct Pair {
    theirs: Vec<Client>,
    ours: Vec<Client>,
}

/// Number of random requests for each build; `UNLADE_CASES` sets it.
const REQUESTS: u64 = 3000;

/// Both servers give the same answers to the same random requests of two clients, in RESP2 and
/// RESP3.
#[test]
fn it_answers_as_redis_does() {
    if !has("redis-server") {
        return;
    }
    let redis = Redis::start();
    let seed = unlade_testkit::seed();
    each(|server| {
        let mut clients = Pair {
            theirs: (0..2).map(|_| Client { stream: redis.connect() }).collect(),
            ours: (0..2).map(|_| server.client()).collect(),
        };
        assert_eq!(clients.theirs[0].text("FLUSHALL"), "+OK\r\n");
        let mut requests = Requests::new(seed);
        for number in 0..unlade_testkit::count(REQUESTS) {
            let client = requests.random.below(2usize);
            if requests.random.below(200) == 0 {
                // The answers name the server, so they are not to be in that of a transaction.
                compare(number, client, &[b"DISCARD".to_vec()], &mut clients);
                let version = requests.random.pick(&[&b"2"[..], b"3"]);
                compare(number, client, &[b"HELLO".to_vec(), version.to_vec()], &mut clients);
            }
            compare(number, client, &requests.next(), &mut clients);
        }
        compare_keys(&mut clients);
    });
}

fn compare(number: u64, client: usize, words: &[Vec<u8>], clients: &mut Pair) {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let theirs = clients.theirs[client].ask(&words);
    let ours = clients.ours[client].ask(&words);
    let is_hello = words[0] == b"HELLO" && matches!(words.get(1), Some(&b"2" | &b"3"));
    // An `EXEC` may have times in it.
    let is_exec = words[0] == b"EXEC" && lines(&theirs).len() == lines(&ours).len();
    let is_same = theirs == ours
        || is_near(words[0], &theirs, &ours)
        || is_hello && theirs[0] == ours[0]
        || is_exec
            && lines(&theirs)
                .iter()
                .zip(lines(&ours))
                .all(|(theirs, ours)| *theirs == ours || is_near(b"PTTL", theirs, ours));
    let cut = |bytes: &[u8]| bytes[..bytes.len().min(100)].escape_ascii().to_string();
    let said: Vec<String> = words.iter().map(|word| cut(word)).collect();
    let (theirs, ours) = (cut(&theirs), cut(&ours));
    assert!(is_same, "{number}, client {client}, {said:?}: {theirs}, ours {ours}");
}

/// All databases have the same keys with the same values at the end, whatever the order.
fn compare_keys(clients: &mut Pair) {
    for database in 0..16 {
        let mut found = Vec::new();
        for client in [&mut clients.theirs[0], &mut clients.ours[0]] {
            client.text("RESET");
            assert_eq!(client.text(&format!("SELECT {database}")), "+OK\r\n");
            let keys = client.ask(&[b"KEYS", b"*"]);
            let mut keys: Vec<_> = strings(&keys);
            keys.sort();
            let values: Vec<_> = keys.iter().map(|key| client.ask(&[b"GET", key])).collect();
            found.push((keys, values));
        }
        assert!(found[0] == found[1], "database {database}: {:?}, {:?}", found[0].0, found[1].0);
    }
}

/// Returns the strings of an array of strings.
fn strings(answer: &[u8]) -> Vec<Vec<u8>> {
    let line = |at: usize| answer[at..].iter().position(|byte| *byte == b'\n').unwrap() + at + 1;
    let mut at = line(0);
    let mut strings = Vec::new();
    while at < answer.len() {
        let next = line(at);
        let len: usize = std::str::from_utf8(&answer[at + 1..next - 2]).unwrap().parse().unwrap();
        strings.push(answer[next..next + len].to_vec());
        at = next + len + 2;
    }
    strings
}

/// The table of commands has the numbers of words, keys and properties that Redis has.
#[test]
fn the_table_of_commands_is_as_that_of_redis() {
    if !has("redis-server") {
        return;
    }
    let redis = Redis::start();
    each(|server| {
        let mut theirs = Client { stream: redis.connect() };
        let mut ours = server.client();
        let names = strings(&ours.text("COMMAND LIST").into_bytes());
        assert!(names.len() > 90, "{}", names.len());
        for name in names {
            let name = String::from_utf8(name).unwrap();
            let request = format!("COMMAND INFO {name}");
            let (theirs, ours) = (theirs.text(&request), ours.text(&request));
            // Redis has no table of the subcommands of `DEBUG`.
            if theirs == "*1\r\n$-1\r\n" {
                assert!(name.starts_with("debug|"), "{name}");
                continue;
            }
            // Head, name, number of words; then the flags; then the keys.
            let parts = |text: &str| -> (Vec<String>, Vec<String>, Vec<String>) {
                let mut lines = text.lines().map(str::to_owned);
                let head = lines.by_ref().take(5).collect();
                let count: usize = lines.next().unwrap()[1..].parse().unwrap();
                let flags = lines.by_ref().take(count).collect();
                (head, flags, lines.take(3).collect())
            };
            let ((head, flags, keys), (our_head, our_flags, our_keys)) =
                (parts(&theirs), parts(&ours));
            assert_eq!((head, keys), (our_head, our_keys), "{name}");
            // Redis has more flags.
            let known = ["+write", "+readonly", "+denyoom", "+admin", "+fast"];
            let mut flags: Vec<_> =
                flags.into_iter().filter(|flag| known.contains(&flag.as_str())).collect();
            flags.sort_by_key(|flag| known.iter().position(|known| known == flag));
            assert_eq!(flags, our_flags, "{name}");
        }
    });
}

/// The page of the server gives the reason of each test that is denied.
#[test]
fn the_page_lists_every_denied_test() {
    let denied = include_str!("redis-denied.txt");
    let page = include_str!("../../../docs/copy/key-value.md");
    let lines = denied.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let parts: Vec<_> = line.split(" | ").collect();
        let [_, _, name, reason] = parts[..] else { panic!("{line}: not four parts") };
        let row = page.lines().find(|row| row.starts_with(&format!("| {reason} | ")));
        let row = row.unwrap_or_else(|| panic!("the page has no row for: {reason}"));
        assert!(row.contains(&format!("`{name}`")), "the page does not name: {name}");
        count += 1;
    }
    assert!(count > 60, "{count}");
}
