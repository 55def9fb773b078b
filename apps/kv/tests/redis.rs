//! Tests against the original Redis programs; skipped, with the reason, if they are not installed.

mod common;

use common::{Client, each, pattern};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use unlade_testkit::Random;

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

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Generator of random requests.
struct Any(Random);

impl Any {
    fn of(&mut self, choices: &[&str]) -> Vec<u8> {
        choices[self.0.below(choices.len() as u64) as usize].as_bytes().to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        self.of(&["a", "b", "c", "a long key", "\r\n", ""])
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.0.below(8) {
            0 => 0,
            1 => 31_000 + self.0.below(3000),
            2 => 8_000 + self.0.below(400),
            3 => self.0.below(200_000),
            _ => self.0.below(40),
        };
        pattern(len as usize, self.0.below(256) as usize)
    }

    fn number(&mut self) -> Vec<u8> {
        self.of(&[
            "100",
            "1000",
            "0",
            "-5",
            "x",
            "",
            "9223372036854775807",
            "1.5",
            "99999999999999999",
        ])
    }

    /// Returns a request whose answer does not depend on the clock.
    fn request(&mut self) -> Vec<Vec<u8>> {
        let mut words = vec![self.of(&[
            "SET", "set", "SET", "SET", "GET", "GET", "GeT", "MGET", "DEL", "EXISTS", "EXPIRE",
            "PEXPIRE", "TTL", "PERSIST", "PING", "ECHO", "DBSIZE", "SELECT", "FLUSHALL",
            "nonsense",
        ])];
        let name = words[0].to_ascii_lowercase();
        match name.as_slice() {
            b"set" => {
                words.extend([self.key(), self.value()]);
                while self.0.below(3) == 0 {
                    words.push(self.of(&["NX", "xx", "EX", "ex"]));
                    if words.last().is_some_and(|word| word.eq_ignore_ascii_case(b"ex")) {
                        words.push(self.number());
                    }
                }
            }
            b"mget" | b"del" | b"exists" => {
                (0..self.0.below(4)).for_each(|_| words.push(self.key()));
            }
            b"expire" | b"pexpire" => {
                words.push(self.key());
                // The clocks of the two servers differ by milliseconds, so times are long enough
                // not to matter.
                words.push(if name == b"expire" {
                    self.number()
                } else {
                    self.of(&["-1", "x", "900000"])
                });
            }
            b"get" | b"ttl" | b"persist" | b"echo" => words.push(self.key()),
            b"select" => words.push(self.of(&["0", "99", "x"])),
            // Rarely, so that keys exist most of the time.
            b"flushall" if self.0.below(8) > 0 => words = vec![b"PING".to_vec()],
            _ => {}
        }
        if self.0.below(25) == 0 {
            words.push(self.key());
        }
        words
    }
}

/// Maximum difference between two clocks that were set one after the other.
const SECONDS_BETWEEN_MAX: u64 = 20;

/// Parses an answer that is a number.
fn integer(answer: &[u8]) -> Option<i64> {
    std::str::from_utf8(answer).ok()?.strip_prefix(':')?.trim().parse().ok()
}

/// Both servers give the same answers to the same random requests.
#[test]
fn it_answers_as_redis_does() {
    if !has("redis-server") {
        return;
    }
    let redis = Redis::start();
    let seed = std::env::var("KV_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("KV_SEED={seed} cargo test -p unlade-kv --test redis it_answers_as_redis_does");
    each(|server| {
        let mut theirs = Client { stream: TcpStream::connect(redis.address).unwrap() };
        let mut ours = server.client();
        assert_eq!(theirs.text("FLUSHALL"), "+OK\r\n");
        let mut random = Any(Random::new(seed));
        for number in 0..1500 {
            let words = random.request();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let (expected, got) = (theirs.ask(&words), ours.ask(&words));
            let cut = |bytes: &[u8]| bytes[..bytes.len().min(100)].escape_ascii().to_string();
            let said: Vec<String> = words.iter().map(|word| cut(word)).collect();
            // Some time passes between the two answers, more on a busy machine. Negative numbers
            // are not times.
            let is_ttl = words[0].eq_ignore_ascii_case(b"ttl");
            let is_near = || {
                let (theirs, ours) = (integer(&expected)?, integer(&got)?);
                Some(theirs > 0 && ours > 0 && theirs.abs_diff(ours) <= SECONDS_BETWEEN_MAX)
            };
            let is_same = expected == got || is_ttl && is_near() == Some(true);
            assert!(is_same, "{number} {said:?}: {}, ours {}", cut(&expected), cut(&got));
        }
    });
}
