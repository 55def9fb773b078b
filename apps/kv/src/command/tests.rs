//! Random commands, clocks and late values against a slow model of maps of plain bytes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use unlade_copy::ReceiveError;
use unlade_testkit::{Random, cases};

use super::execute;
use crate::arguments::Arguments;
use crate::copies::{Arrival, Copies};
use crate::output::Output;
use crate::parse::Argument;
use crate::state::{Limits, ServerState};
use crate::value::Value;

/// Copies whose values arrive when they are synced, or never.
struct Tested;

struct Late(Option<Vec<u8>>);

impl Copies for Tested {
    const NAME: &'static str = "tested";
    type Incoming = Late;

    fn receives_in_place(&self, _: usize) -> bool {
        true
    }
    fn head_bytes(&self) -> Option<usize> {
        None
    }
    fn receive(&self, _: &Arc<OwnedFd>, buffer: Vec<u8>, _: usize) -> Late {
        Late(Some(buffer))
    }
    fn offer(&self, _: &mut Late) {}
    fn sends_in_place(&self, len: usize) -> bool {
        len % 2 == 1
    }
}

impl Arrival for Late {
    fn has_arrived(&mut self) -> io::Result<bool> {
        Ok(true)
    }
    fn advance(&mut self) -> Result<bool, ReceiveError> {
        Ok(true)
    }
    fn is_in_service(&self) -> bool {
        true
    }
    fn sync(self) -> Result<Vec<u8>, ReceiveError> {
        self.0.ok_or(ReceiveError::Ended(1))
    }
}

/// A server without sockets.
struct Server {
    state: ServerState<Tested>,
    out: Output<Late>,
}

impl Server {
    fn new() -> Server {
        let state = ServerState::new(Tested, Limits::default());
        let out = Output::new(&state.pool);
        Server { state, out }
    }

    fn open(&mut self) -> usize {
        self.state.open_session(0)
    }

    /// Executes a request; the word `late`, if any, arrives when it is needed.
    fn ask(&mut self, session: usize, words: &[Vec<u8>], late: Option<usize>) -> Vec<u8> {
        let apart = late.map(|index| {
            let arriving = Late(Some([&words[index][..], b"\r\n"].concat()));
            Rc::new(Value::arriving(arriving, words[index].len(), &self.state.pool))
        });
        self.ask_with(session, words, late, apart)
    }

    fn ask_with(
        &mut self,
        session: usize,
        words: &[Vec<u8>],
        late: Option<usize>,
        apart: Option<Rc<Value<Late>>>,
    ) -> Vec<u8> {
        let word = |(index, word): (usize, &Vec<u8>)| match late == Some(index) {
            true => Argument::Apart,
            false => Argument::Quoted(word.clone()),
        };
        let parsed: Vec<Argument> = words.iter().enumerate().map(word).collect();
        let words = Arguments { parsed: &parsed, input: &[] };
        execute(&mut self.state, session, words, apart, &mut self.out);
        self.out.take()
    }

    fn text(&mut self, session: usize, line: &str) -> String {
        let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        String::from_utf8(self.ask(session, &words, None)).unwrap()
    }
}

/// An answer of the model.
#[derive(Debug)]
enum Reply {
    Ok,
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    /// Any error.
    Error,
    Queued,
    NilArray,
    Array(Vec<Reply>),
}

impl Reply {
    fn of(value: Option<&Held>) -> Reply {
        value.map_or(Reply::Nil, |held| Reply::Bulk(held.bytes.clone()))
    }

    fn render(&self, out: &mut Vec<u8>) {
        let text = match self {
            Reply::Ok => "+OK".to_owned(),
            Reply::Int(number) => format!(":{number}"),
            Reply::Bulk(bytes) => {
                out.extend(format!("${}\r\n", bytes.len()).bytes());
                out.extend(bytes);
                String::new()
            }
            Reply::Nil => "$-1".to_owned(),
            Reply::Error => "-".to_owned(),
            Reply::Queued => "+QUEUED".to_owned(),
            Reply::NilArray => "*-1".to_owned(),
            Reply::Array(replies) => {
                out.extend(format!("*{}\r\n", replies.len()).bytes());
                replies.iter().for_each(|reply| reply.render(out));
                return;
            }
        };
        out.extend(text.bytes());
        out.extend(b"\r\n");
    }
}

/// Cuts the texts of errors.
fn plain(answer: &[u8]) -> Vec<u8> {
    let lines = answer.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| if line.starts_with(b"-") { b"-\r\n" } else { line }.to_vec()).collect()
}

#[derive(Clone, Debug)]
struct Held {
    bytes: Vec<u8>,
    deadline: Option<u64>,
}

/// A key that was watched: database, key, length of the log, existence.
type Watched = (usize, Vec<u8>, usize, bool);

#[derive(Default)]
struct Client {
    db: usize,
    queue: Option<Vec<Vec<Vec<u8>>>>,
    watched: Vec<Watched>,
}

/// The slow model.
struct Model {
    now: u64,
    dbs: Vec<BTreeMap<Vec<u8>, Held>>,
    clients: Vec<Client>,
    /// All changes of keys.
    log: Vec<(usize, Vec<u8>)>,
}

fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl Model {
    fn new(now: u64, clients: usize) -> Model {
        let clients = (0..clients).map(|_| Client::default()).collect();
        Model { now, dbs: vec![BTreeMap::new(); 16], clients, log: Vec::new() }
    }

    fn put(&mut self, db: usize, key: &[u8], bytes: Vec<u8>, deadline: Option<u64>) {
        self.dbs[db].insert(key.to_vec(), Held { bytes, deadline });
        self.log.push((db, key.to_vec()));
    }

    fn take(&mut self, db: usize, key: &[u8]) -> Option<Held> {
        let held = self.dbs[db].remove(key)?;
        self.log.push((db, key.to_vec()));
        Some(held)
    }

    /// Answers a request of a client.
    fn ask(&mut self, client: usize, words: &[Vec<u8>]) -> Reply {
        for db in &mut self.dbs {
            db.retain(|_, held| held.deadline.is_none_or(|deadline| deadline > self.now));
        }
        let name = words[0].as_slice();
        match (name, self.clients[client].queue.take()) {
            (b"MULTI", None) => {
                self.clients[client].queue = Some(Vec::new());
                Reply::Ok
            }
            (b"MULTI" | b"WATCH", Some(queue)) => {
                self.clients[client].queue = Some(queue);
                Reply::Error
            }
            (b"WATCH", None) => {
                let (db, seen) = (self.clients[client].db, self.log.len());
                for key in &words[1..] {
                    let is_there = self.dbs[db].contains_key(key);
                    self.clients[client].watched.push((db, key.clone(), seen, is_there));
                }
                Reply::Ok
            }
            (b"EXEC" | b"DISCARD", None) => Reply::Error,
            (b"DISCARD", Some(_)) => {
                self.clients[client].watched.clear();
                Reply::Ok
            }
            (b"EXEC", Some(queue)) => {
                let watched = std::mem::take(&mut self.clients[client].watched);
                let is_changed = watched.iter().any(|(db, key, seen, was_there)| {
                    self.log[*seen..].contains(&(*db, key.clone()))
                        || self.dbs[*db].contains_key(key) != *was_there
                });
                if is_changed {
                    return Reply::NilArray;
                }
                let run = |words: &Vec<Vec<u8>>| self.run(client, words);
                Reply::Array(queue.iter().map(run).collect())
            }
            (_, Some(mut queue)) => {
                queue.push(words.to_vec());
                self.clients[client].queue = Some(queue);
                Reply::Queued
            }
            (_, None) => self.run(client, words),
        }
    }

    fn run(&mut self, client: usize, words: &[Vec<u8>]) -> Reply {
        let db = self.clients[client].db;
        let key = words.get(1).cloned().unwrap_or_default();
        let held = self.dbs[db].get(&key).cloned();
        let deadline = held.as_ref().and_then(|held| held.deadline);
        let bytes = held.as_ref().map_or(Vec::new(), |held| held.bytes.clone());
        let number = |index: usize| words.get(index).and_then(|word| integer(word));
        match words[0].as_slice() {
            b"GET" => Reply::of(held.as_ref()),
            b"SET" => self.set(db, words, held.as_ref()),
            b"SETEX" => match number(2).filter(|seconds| *seconds > 0) {
                Some(seconds) => {
                    let deadline = self.now + seconds as u64 * 1000;
                    self.put(db, &key, words[3].clone(), Some(deadline));
                    Reply::Ok
                }
                None => Reply::Error,
            },
            b"GETDEL" => Reply::of(self.take(db, &key).as_ref()),
            b"GETSET" => {
                self.put(db, &key, words[2].clone(), None);
                Reply::of(held.as_ref())
            }
            b"APPEND" => {
                let all = [bytes, words[2].clone()].concat();
                let len = all.len() as i64;
                self.put(db, &key, all, deadline);
                Reply::Int(len)
            }
            b"SETRANGE" => match number(2).and_then(|offset| usize::try_from(offset).ok()) {
                None => Reply::Error,
                Some(_) if words[3].is_empty() => Reply::Int(bytes.len() as i64),
                Some(offset) => {
                    let mut all = bytes;
                    for (at, byte) in words[3].iter().enumerate() {
                        while all.len() <= offset + at {
                            all.push(0);
                        }
                        all[offset + at] = *byte;
                    }
                    let len = all.len() as i64;
                    self.put(db, &key, all, deadline);
                    Reply::Int(len)
                }
            },
            b"STRLEN" => Reply::Int(bytes.len() as i64),
            b"INCRBY" => {
                let before = if held.is_some() { integer(&bytes) } else { Some(0) };
                let sum = before.zip(number(2)).and_then(|(one, other)| one.checked_add(other));
                match sum {
                    Some(sum) => {
                        self.put(db, &key, sum.to_string().into_bytes(), deadline);
                        Reply::Int(sum)
                    }
                    None => Reply::Error,
                }
            }
            b"DEL" => {
                let count = words[1..].iter().filter(|key| self.take(db, key).is_some()).count();
                Reply::Int(count as i64)
            }
            b"EXISTS" => Reply::Int(i64::from(held.is_some())),
            b"PEXPIRE" => self.expire(db, words, held),
            b"PEXPIRETIME" => match held {
                None => Reply::Int(-2),
                Some(held) => Reply::Int(held.deadline.map_or(-1, |deadline| deadline as i64)),
            },
            b"PTTL" => match held {
                None => Reply::Int(-2),
                Some(held) => {
                    Reply::Int(held.deadline.map_or(-1, |deadline| (deadline - self.now) as i64))
                }
            },
            b"PERSIST" => match held.filter(|held| held.deadline.is_some()) {
                None => Reply::Int(0),
                Some(held) => {
                    self.put(db, &key, held.bytes, None);
                    Reply::Int(1)
                }
            },
            b"SELECT" => match number(1).and_then(|number| usize::try_from(number).ok()) {
                Some(number) if number < 16 => {
                    self.clients[client].db = number;
                    Reply::Ok
                }
                _ => Reply::Error,
            },
            b"DBSIZE" => Reply::Int(self.dbs[db].len() as i64),
            _ => self.run_more(db, words, held),
        }
    }

    /// Commands with a second key or database.
    fn run_more(&mut self, db: usize, words: &[Vec<u8>], held: Option<Held>) -> Reply {
        let (key, other) = (&words[1], words.get(2).cloned().unwrap_or_default());
        match words[0].as_slice() {
            b"RENAME" | b"RENAMENX" => {
                let Some(held) = held else { return Reply::Error };
                let is_nx = words[0] == b"RENAMENX";
                if *key == other || is_nx && self.dbs[db].contains_key(&other) {
                    return if is_nx { Reply::Int(0) } else { Reply::Ok };
                }
                self.take(db, key);
                self.put(db, &other, held.bytes, held.deadline);
                if is_nx { Reply::Int(1) } else { Reply::Ok }
            }
            b"COPY" => {
                let replaces = words.len() > 3;
                if *key == other {
                    return Reply::Error;
                }
                let Some(held) = held.filter(|_| replaces || !self.dbs[db].contains_key(&other))
                else {
                    return Reply::Int(0);
                };
                self.put(db, &other, held.bytes, held.deadline);
                Reply::Int(1)
            }
            b"MOVE" => {
                let to = integer(&other).unwrap() as usize;
                if to == db {
                    return Reply::Error;
                }
                let Some(held) = held.filter(|_| !self.dbs[to].contains_key(key)) else {
                    return Reply::Int(0);
                };
                self.put(to, key, held.bytes, held.deadline);
                self.take(db, key);
                Reply::Int(1)
            }
            b"SWAPDB" => {
                let (one, other) = (integer(key).unwrap(), integer(&other).unwrap());
                let (one, other) = (one as usize, other as usize);
                if one != other {
                    let keys: Vec<_> =
                        self.dbs[one].keys().chain(self.dbs[other].keys()).cloned().collect();
                    self.log.extend(keys.iter().cloned().map(|key| (one, key)));
                    self.log.extend(keys.into_iter().map(|key| (other, key)));
                    self.dbs.swap(one, other);
                }
                Reply::Ok
            }
            b"FLUSHDB" => {
                let all: Vec<_> = self.dbs[db].keys().cloned().collect();
                all.iter().for_each(|key| drop(self.take(db, key)));
                Reply::Ok
            }
            other => panic!("{}", other.escape_ascii()),
        }
    }

    fn set(&mut self, db: usize, words: &[Vec<u8>], held: Option<&Held>) -> Reply {
        let options = &words[3..];
        let has = |name: &[u8]| options.iter().any(|word| word == name);
        let px = options.iter().position(|word| word == b"PX");
        let deadline = match px.map(|at| integer(&options[at + 1])) {
            None => held.and_then(|held| held.deadline).filter(|_| has(b"KEEPTTL")),
            Some(Some(ms)) if ms > 0 && !has(b"KEEPTTL") => Some(self.now + ms as u64),
            Some(_) => return Reply::Error,
        };
        if has(b"NX") && has(b"XX") {
            return Reply::Error;
        }
        let is_set = !(has(b"NX") && held.is_some() || has(b"XX") && held.is_none());
        if is_set {
            self.put(db, &words[1], words[2].clone(), deadline);
        }
        match (has(b"GET"), is_set) {
            (true, _) => Reply::of(held),
            (false, true) => Reply::Ok,
            (false, false) => Reply::Nil,
        }
    }

    fn expire(&mut self, db: usize, words: &[Vec<u8>], held: Option<Held>) -> Reply {
        let Some(ms) = integer(&words[2]) else { return Reply::Error };
        let Some(held) = held else { return Reply::Int(0) };
        let at = self.now as i64 + ms;
        let before = held.deadline.map(|deadline| deadline as i64);
        let is_allowed = words[3..].iter().all(|word| match word.as_slice() {
            b"NX" => before.is_none(),
            b"XX" => before.is_some(),
            b"GT" => before.is_some_and(|before| at > before),
            _ => before.is_none_or(|before| at < before),
        });
        if !is_allowed {
            return Reply::Int(0);
        }
        self.put(db, &words[1], held.bytes, Some(at.max(0) as u64));
        if at <= self.now as i64 {
            self.dbs[db].remove(&words[1]);
        }
        Reply::Int(1)
    }
}

fn of(random: &mut Random, choices: &[&str]) -> Vec<u8> {
    random.pick(choices).as_bytes().to_vec()
}

/// Returns a random request; and the index of a word that may arrive late.
fn request(random: &mut Random) -> (Vec<Vec<u8>>, Option<usize>) {
    let keys = ["a", "b", "c", ""];
    let name = of(
        random,
        &[
            "GET",
            "GET",
            "SET",
            "SET",
            "SETEX",
            "GETDEL",
            "GETSET",
            "APPEND",
            "APPEND",
            "SETRANGE",
            "STRLEN",
            "INCRBY",
            "INCRBY",
            "DEL",
            "EXISTS",
            "PEXPIRE",
            "PEXPIRETIME",
            "PTTL",
            "PERSIST",
            "SELECT",
            "DBSIZE",
            "RENAME",
            "RENAMENX",
            "COPY",
            "MOVE",
            "SWAPDB",
            "FLUSHDB",
            "MULTI",
            "EXEC",
            "DISCARD",
            "WATCH",
        ],
    );
    let value = ["", "7", "-12", "x", "9223372036854775807", "0123456789abcdefghij", "\r\n"];
    let mut words = vec![name.clone()];
    let mut late = None;
    match name.as_slice() {
        b"SET" => {
            words.extend([of(random, &keys), of(random, &value)]);
            late = Some(2);
            for _ in 0..random.below(3u64) {
                let option = random.pick(&["NX", "XX", "GET", "KEEPTTL", "PX"]);
                words.push(option.as_bytes().to_vec());
                if option == "PX" {
                    words.push(random.pick(&["5", "0", "x", "50"]).as_bytes().to_vec());
                    break;
                }
            }
        }
        b"GETSET" | b"APPEND" => {
            words.extend([of(random, &keys), of(random, &value)]);
            late = Some(2).filter(|_| name == b"GETSET");
        }
        b"SETEX" => {
            words.extend([
                of(random, &keys),
                of(random, &["1", "0", "-1", "y"]),
                of(random, &value),
            ]);
            late = Some(3);
        }
        b"SETRANGE" => words.extend([
            of(random, &keys),
            of(random, &["0", "3", "-1", "90"]),
            of(random, &value),
        ]),
        b"INCRBY" => {
            words.extend([of(random, &keys), of(random, &["1", "-9223372036854775808", "z", "40"])])
        }
        b"PEXPIRE" => {
            words.extend([of(random, &keys), of(random, &["10", "-1", "w", "40"])]);
            let option = of(random, &["", "NX", "XX", "GT", "LT"]);
            words.extend(Some(option).filter(|option| !option.is_empty()));
        }
        b"SELECT" => words.push(of(random, &["0", "0", "1", "16"])),
        b"RENAME" | b"RENAMENX" => words.extend([of(random, &keys), of(random, &keys)]),
        b"COPY" => {
            words.extend([of(random, &keys), of(random, &keys)]);
            words.extend(Some(b"REPLACE".to_vec()).filter(|_| random.chance(1, 2)));
        }
        b"MOVE" => words.extend([of(random, &keys), of(random, &["0", "1"])]),
        b"SWAPDB" => words.extend([of(random, &["0", "1"]), of(random, &["0", "1"])]),
        b"DBSIZE" | b"MULTI" | b"EXEC" | b"DISCARD" => {}
        // Seldom, so that there are keys most of the time.
        b"FLUSHDB" if random.below(8u64) > 0 => words = vec![b"DBSIZE".to_vec()],
        b"FLUSHDB" => {}
        b"DEL" | b"WATCH" => words.extend([of(random, &keys), of(random, &keys)]),
        _ => words.push(of(random, &keys)),
    }
    (words, late)
}

#[test]
fn they_agree_with_a_slow_model() {
    cases(400, |random| {
        let mut server = Server::new();
        let sessions = [server.open(), server.open()];
        let mut model = Model::new(server.state.now_ms, sessions.len());
        for number in 0..120 {
            if random.chance(1, 4) {
                model.now += random.below(30u64);
                server.state.now_ms = model.now;
                if random.chance(1, 2) {
                    server.state.sweep();
                }
            }
            let client = random.below(sessions.len());
            let (words, late) = request(random);
            let late = late.filter(|_| random.chance(1, 2));
            // The model removes expired keys at once.
            if words[0] == b"DBSIZE" {
                server.state.sweep();
            }
            let mut expected = Vec::new();
            let mut padded = words.clone();
            padded.resize(padded.len().max(2), Vec::new());
            let asked = if words[0] == b"FLUSHDB" { &padded } else { &words };
            model.ask(client, asked).render(&mut expected);
            let got = server.ask(sessions[client], &words, late);
            let said: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
            let (got, expected) = (plain(&got), plain(&expected));
            let (shown, due) = (got.escape_ascii(), expected.escape_ascii());
            assert!(got == expected, "{number}, client {client}: {said:?}: {shown}, not {due}");
        }
        check_memory(&mut server, sessions[0]);
    });
}

/// The memory of a server without keys is counted as zero, whatever happened before.
fn check_memory(server: &mut Server, session: usize) {
    server.text(session, "RESET");
    assert_eq!(server.text(session, "FLUSHALL"), "+OK\r\n");
    assert_eq!(server.state.databases.bytes(), 0);
}

#[test]
fn a_lost_value_is_an_error_once() {
    let mut server = Server::new();
    let session = server.open();
    let requests: [&[&str]; 5] = [
        &["GET", "k"],
        &["APPEND", "k", "x"],
        &["SETRANGE", "k", "1", "x"],
        &["MGET", "k", "k"],
        &["GETDEL", "k"],
    ];
    for request in requests {
        let lost = Rc::new(Value::arriving(Late(None), 5, &server.state.pool));
        let set = [&b"SET"[..], b"k", b""].map(<[u8]>::to_vec);
        assert_eq!(server.ask_with(session, &set, Some(2), Some(lost)), b"+OK\r\n");
        let words: Vec<_> = request.iter().map(|word| word.as_bytes().to_vec()).collect();
        let said = String::from_utf8(server.ask(session, &words, None)).unwrap();
        assert!(said.contains("-ERR the value was lost"), "{request:?}: {said}");
        assert_eq!(server.text(session, "EXISTS k"), ":0\r\n");
        assert_eq!(server.state.databases.bytes(), 0);
    }
}

/// An edit of a value that somebody else holds, such as an answer that is being sent, leaves theirs
/// as it was.
#[test]
fn an_edit_leaves_the_values_of_others() {
    let mut server = Server::new();
    let session = server.open();
    let set = [&b"SET"[..], b"k", b"value"].map(<[u8]>::to_vec);
    assert_eq!(server.ask(session, &set, Some(2)), b"+OK\r\n");
    let now_ms = server.state.now_ms;
    let held = server.state.databases.get(0).get(b"k", now_ms).cloned().unwrap();
    assert_eq!(server.text(session, "APPEND k +1"), ":7\r\n");
    assert_eq!(held.bytes(), Ok(&b"value"[..]));
    assert_eq!(server.text(session, "GET k"), "$7\r\nvalue+1\r\n");
    let place = |server: &mut Server| {
        let value = server.state.databases.get(0).get(b"k", now_ms).cloned().unwrap();
        value.bytes().unwrap().as_ptr()
    };
    // Without another owner, the bytes change in place.
    let before = place(&mut server);
    assert_eq!(server.text(session, "SETRANGE k 0 V"), ":7\r\n");
    assert_eq!(place(&mut server), before);
    assert_eq!(server.text(session, "GET k"), "$7\r\nValue+1\r\n");
}

#[test]
fn a_refused_command_fails_its_transaction() {
    let mut server = Server::new();
    let session = server.open();
    for refused in ["NO a", "GET", "CONFIG NO", "COMMAND NO"] {
        assert_eq!(server.text(session, "MULTI"), "+OK\r\n");
        assert_eq!(server.text(session, "SET a 1"), "+QUEUED\r\n");
        assert!(server.text(session, refused).starts_with("-ERR "));
        assert!(server.text(session, "EXEC").starts_with("-EXECABORT "));
        assert_eq!(server.text(session, "EXISTS a"), ":0\r\n");
    }
    // A failure of a queued command is its answer.
    assert_eq!(server.text(session, "MULTI"), "+OK\r\n");
    assert_eq!(server.text(session, "SET a x"), "+QUEUED\r\n");
    assert_eq!(server.text(session, "INCR a"), "+QUEUED\r\n");
    let said = server.text(session, "EXEC");
    assert_eq!(said, "*2\r\n+OK\r\n-ERR value is not an integer or out of range\r\n");
}

#[test]
fn queues_and_watches_have_limits() {
    let mut server = Server::new();
    let session = server.open();
    server.state.limits.input_bytes_max = 500;
    assert_eq!(server.text(session, "MULTI"), "+OK\r\n");
    let said: Vec<String> = (0..9).map(|_| server.text(session, "SET a 1")).collect();
    assert_eq!(said.iter().filter(|text| *text == "+QUEUED\r\n").count(), 4);
    assert!(said[8].starts_with("-ERR the transaction has more than 500 bytes"), "{}", said[8]);
    assert!(server.text(session, "EXEC").starts_with("-EXECABORT "));
    let many = vec![b"k".to_vec(); 65_536];
    let watch = [&[b"WATCH".to_vec()][..], &many].concat();
    assert_eq!(server.ask(session, &watch, None), b"+OK\r\n");
    assert!(server.text(session, "WATCH k").starts_with("-ERR 65537 watched keys"));
    assert_eq!(server.text(session, "UNWATCH"), "+OK\r\n");
    assert_eq!(server.text(session, "WATCH k"), "+OK\r\n");
    server.state.close_session(session);
    let seen = server.state.databases.get(0).watch(&b"k"[..].into(), 0);
    assert!(server.state.databases.get(0).is_as_seen(b"k", seen, 0));
}
