//! Execution of commands.

use std::rc::Rc;

use crate::copies::{Arrival, Copies};
use crate::info;
use crate::output::Output;
use crate::parse::{Argument, number};
use crate::server::ServerState;
use crate::store::Ttl;
use crate::value::Value;

/// Maximum number of bytes of a request that an error repeats.
const QUOTED_BYTES_MAX: usize = 128;
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

/// A command: its name, its number of words (negative: the minimum), and the positions of its keys
/// (first, last, negative from the end; 0 for none).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub name: &'static str,
    pub arity: i32,
    pub is_write: bool,
    pub keys: (i32, i32),
    id: Id,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Get,
    Set,
    Mget,
    Del,
    Exists,
    Expire(u64),
    Ttl(u64),
    Persist,
    Ping,
    Echo,
    Select,
    Dbsize,
    Flush,
    Info,
    Config,
    Commands,
    Quit,
}

const fn command(name: &'static str, arity: i32, keys: (i32, i32), id: Id) -> Command {
    let is_write = matches!(id, Id::Set | Id::Del | Id::Expire(_) | Id::Persist | Id::Flush);
    Command { name, arity, is_write, keys, id }
}

/// All commands.
pub(crate) const COMMANDS: [Command; 22] = [
    command("get", 2, (1, 1), Id::Get),
    command("set", -3, (1, 1), Id::Set),
    command("mget", -2, (1, -1), Id::Mget),
    command("del", -2, (1, -1), Id::Del),
    command("unlink", -2, (1, -1), Id::Del),
    command("exists", -2, (1, -1), Id::Exists),
    command("expire", -3, (1, 1), Id::Expire(1000)),
    command("pexpire", -3, (1, 1), Id::Expire(1)),
    command("ttl", 2, (1, 1), Id::Ttl(1000)),
    command("pttl", 2, (1, 1), Id::Ttl(1)),
    command("persist", 2, (1, 1), Id::Persist),
    command("ping", -1, (0, 0), Id::Ping),
    command("echo", 2, (0, 0), Id::Echo),
    command("select", 2, (0, 0), Id::Select),
    command("dbsize", 1, (0, 0), Id::Dbsize),
    command("flushall", -1, (0, 0), Id::Flush),
    command("flushdb", -1, (0, 0), Id::Flush),
    command("info", -1, (0, 0), Id::Info),
    command("config", -2, (0, 0), Id::Config),
    command("command", -1, (0, 0), Id::Commands),
    command("quit", -1, (0, 0), Id::Quit),
    command("reset", 1, (0, 0), Id::Quit),
];

/// Words of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    pub parsed: &'a [Argument],
    /// The bytes that the words refer to.
    pub input: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub fn len(self) -> usize {
        self.parsed.len()
    }

    /// Returns a word; empty if the word is still arriving.
    pub fn get(self, index: usize) -> &'a [u8] {
        match self.parsed.get(index) {
            Some(Argument::Here(range)) => self.input.get(range.clone()).unwrap_or_default(),
            Some(Argument::Quoted(word)) => word,
            Some(Argument::Apart) | None => &[],
        }
    }

    fn from(self, first: usize) -> impl Iterator<Item = &'a [u8]> {
        (first..self.len()).map(move |index| self.get(index))
    }

    /// Returns true if a value that arrives as the word `index` will be stored.
    pub fn keeps(self, index: usize) -> bool {
        index == 2 && self.get(0).eq_ignore_ascii_case(b"set")
    }
}

/// Tells if the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    GoOn,
    /// The connection ends when the pending answers have been sent.
    Quit,
}

type Out<C> = Output<<C as Copies>::Incoming>;
type Apart<C> = Option<Rc<Value<<C as Copies>::Incoming>>>;

/// Executes and answers a request. `apart` is the value that is still arriving.
pub(crate) fn execute<C: Copies>(
    state: &mut ServerState<C>,
    words: Arguments<'_>,
    apart: Apart<C>,
    out: &mut Out<C>,
) -> Flow {
    state.stats.requests += 1;
    let name = words.get(0);
    let found = COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name));
    let Some(command) = found else {
        out.error(&unknown(words));
        return Flow::GoOn;
    };
    let wanted = command.arity.unsigned_abs() as usize;
    if words.len() < wanted || command.arity > 0 && words.len() > wanted {
        wrong_number(out, command.name);
        return Flow::GoOn;
    }
    let key_bytes_max = state.limits.key_bytes_max;
    let is_long = |index| words.get(index).len() > key_bytes_max;
    let last = if command.keys.1 < 0 { words.len() - 1 } else { command.keys.1 as usize };
    if command.keys.0 > 0 && (1..=last).any(is_long) {
        out.error(&format!("ERR a key of more than {key_bytes_max} bytes: use a shorter one"));
        return Flow::GoOn;
    }
    run(state, command, words, apart, out)
}

fn run<C: Copies>(
    state: &mut ServerState<C>,
    command: &Command,
    words: Arguments<'_>,
    apart: Apart<C>,
    out: &mut Out<C>,
) -> Flow {
    let now = state.now_ms;
    match command.id {
        Id::Get => get(state, words.get(1), out),
        Id::Set => set(state, words, apart, out),
        Id::Mget => {
            out.array(words.len() - 1);
            words.from(1).for_each(|key| get(state, key, out));
        }
        Id::Del => {
            // An expired key does not exist, so it is not counted as removed.
            let count = words.from(1).filter(|key| {
                let is_there = state.store.get(key, now).is_some();
                is_there && state.store.remove(key)
            });
            out.integer(count.count() as i64);
        }
        Id::Exists => {
            let count = words.from(1).filter(|key| state.store.get(key, now).is_some());
            out.integer(count.count() as i64);
        }
        Id::Expire(unit_ms) => expire(state, command.name, unit_ms, words, out),
        Id::Ttl(unit_ms) => out.integer(match state.store.ttl(words.get(1), now) {
            Ttl::Absent => -2,
            Ttl::Never => -1,
            Ttl::Ms(ms) => ((ms + unit_ms / 2) / unit_ms) as i64,
        }),
        Id::Persist => {
            let has_deadline = matches!(state.store.ttl(words.get(1), now), Ttl::Ms(_));
            if has_deadline {
                state.store.expire(words.get(1), None, now);
            }
            out.integer(i64::from(has_deadline));
        }
        Id::Ping if words.len() > 2 => wrong_number(out, command.name),
        Id::Ping if words.len() == 2 => out.bulk(words.get(1)),
        Id::Ping => out.simple("PONG"),
        Id::Echo => out.bulk(words.get(1)),
        Id::Select => match number(words.get(1)) {
            None => out.error(NOT_A_NUMBER),
            Some(0) => out.simple("OK"),
            Some(_) => out.error("ERR DB index is out of range"),
        },
        Id::Dbsize => {
            state.store.sweep(now);
            out.integer(state.store.len() as i64);
        }
        Id::Flush => flush(state, words, out),
        Id::Info => info::info(state, words, out),
        Id::Config => info::config(state, words, out),
        Id::Commands => info::commands(words, out),
        Id::Quit => {
            out.simple("OK");
            return Flow::Quit;
        }
    }
    Flow::GoOn
}

fn get<C: Copies>(state: &mut ServerState<C>, key: &[u8], out: &mut Out<C>) {
    let Some(value) = state.store.get(key, state.now_ms) else {
        state.stats.misses += 1;
        return out.null();
    };
    state.stats.hits += 1;
    if !out.value(&state.copies, value) {
        // The value was acknowledged when its bytes were in the socket, so this is a bug of the
        // server or the kernel.
        state.store.remove(key);
        out.error("ERR the value was lost while it was received: set it again");
    }
}

fn flush<C: Copies>(state: &mut ServerState<C>, words: Arguments<'_>, out: &mut Out<C>) {
    let how = words.get(1);
    let is_known = how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
    if words.len() > 2 || words.len() == 2 && !is_known {
        return out.error(SYNTAX);
    }
    state.store.clear();
    out.simple("OK");
}

/// Options of `SET`.
#[derive(Clone, Copy, Debug, Default)]
struct Options<'a> {
    must_be_absent: bool,
    must_be_present: bool,
    /// The number as sent, and the milliseconds of its unit.
    expires: Option<(&'a [u8], u64)>,
}

fn options(words: Arguments<'_>) -> Option<Options<'_>> {
    let mut options = Options::default();
    let mut index = 3;
    while index < words.len() {
        let word = words.get(index).to_ascii_lowercase();
        match word.as_slice() {
            b"nx" if !options.must_be_present => options.must_be_absent = true,
            b"xx" if !options.must_be_absent => options.must_be_present = true,
            b"ex" | b"px" if index + 1 < words.len() => {
                index += 1;
                let unit_ms = if word == b"ex" { 1000 } else { 1 };
                // The same unit again replaces the number.
                if options.expires.is_some_and(|(_, other)| other != unit_ms) {
                    return None;
                }
                options.expires = Some((words.get(index), unit_ms));
            }
            _ => return None,
        }
        index += 1;
    }
    Some(options)
}

fn set<C: Copies>(
    state: &mut ServerState<C>,
    words: Arguments<'_>,
    apart: Apart<C>,
    out: &mut Out<C>,
) {
    let Some(options) = options(words) else { return out.error(SYNTAX) };
    let deadline = match options.expires {
        None => None,
        Some((text, unit_ms)) => {
            let Some(count) = number(text) else { return out.error(NOT_A_NUMBER) };
            match deadline(count, unit_ms, state.now_ms).filter(|_| count > 0) {
                Some(deadline) => Some(deadline),
                None => return out.error("ERR invalid expire time in 'set' command"),
            }
        }
    };
    let key = words.get(1);
    let len = apart.as_ref().map_or(words.get(2).len(), |value| value.len());
    if state.store.bytes() + len > state.limits.memory_bytes_max {
        return out.error("OOM command not allowed when used memory > 'maxmemory'.");
    }
    if options.must_be_absent || options.must_be_present {
        let is_there = state.store.get(key, state.now_ms).is_some();
        if is_there != options.must_be_present {
            return out.null();
        }
    }
    let value = apart.unwrap_or_else(|| Rc::new(Value::copied(words.get(2), &state.pool)));
    state.store.set(key, value, deadline);
    out.simple("OK");
}

/// Returns the time `count` units from now; `None` if it overflows.
fn deadline(count: i64, unit_ms: u64, now_ms: u64) -> Option<u64> {
    let ms = count.checked_mul(unit_ms as i64)?.checked_add(now_ms as i64)?;
    Some(u64::try_from(ms).unwrap_or(0))
}

fn expire<C: Copies>(
    state: &mut ServerState<C>,
    name: &str,
    unit_ms: u64,
    words: Arguments<'_>,
    out: &mut Out<C>,
) {
    if words.len() > 3 {
        let option = String::from_utf8_lossy(words.get(3));
        return out.error(&format!("ERR Unsupported option {option}"));
    }
    let Some(count) = number(words.get(2)) else { return out.error(NOT_A_NUMBER) };
    let Some(deadline) = deadline(count, unit_ms, state.now_ms) else {
        return out.error(&format!("ERR invalid expire time in '{name}' command"));
    };
    let is_there = state.store.expire(words.get(1), Some(deadline), state.now_ms);
    out.integer(i64::from(is_there));
}

pub(crate) fn wrong_number<I: Arrival>(out: &mut Output<I>, name: &str) {
    out.error(&format!("ERR wrong number of arguments for '{name}' command"));
}

fn unknown(words: Arguments<'_>) -> String {
    let cut = |bytes: &[u8], max: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned()
    };
    let mut said = String::new();
    for word in words.from(1) {
        let Some(left) = QUOTED_BYTES_MAX.checked_sub(said.len()).filter(|left| *left > 0) else {
            break;
        };
        said += &format!("'{}' ", cut(word, left));
    }
    let name = cut(words.get(0), QUOTED_BYTES_MAX);
    format!("ERR unknown command '{name}', with args beginning with: {said}")
}
