//! Execution of commands.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::copies::Copies;
use crate::info;
use crate::output::Output;
use crate::parse::number;
use crate::state::ServerState;
use crate::store::Ttl;
use crate::table::{COMMANDS, Command, Id, wrong_number};
use crate::value::Value;

/// Maximum number of bytes of a request that an error repeats.
const QUOTED_BYTES_MAX: usize = 128;
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

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
