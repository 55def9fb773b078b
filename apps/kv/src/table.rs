//! The table of commands.

use crate::copies::Arrival;
use crate::output::Output;

/// A command: its name, its number of words (negative: the minimum), and the positions of its keys
/// (first, last, negative from the end; 0 for none).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub name: &'static str,
    pub arity: i32,
    pub is_write: bool,
    pub keys: (i32, i32),
    pub id: Id,
}

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
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

/// Answers a request with too few or too many words.
pub(crate) fn wrong_number<I: Arrival>(out: &mut Output<I>, name: &str) {
    out.error(&format!("ERR wrong number of arguments for '{name}' command"));
}
