//! The table of commands. Dispatch, arity errors, transactions and `COMMAND` read it.

/// Properties of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub const NONE: Flags = Flags(0);
    pub const WRITE: Flags = Flags(1);
    pub const READ: Flags = Flags(2);
    /// The command is refused when the memory limit is reached.
    pub const GROWS: Flags = Flags(4);
    /// The command takes constant or logarithmic time.
    pub const FAST: Flags = Flags(8);
    pub const ADMIN: Flags = Flags(16);
    /// The command runs at once within a transaction, instead of being queued.
    pub const AT_ONCE: Flags = Flags(32);

    /// Flags that `COMMAND` shows, with their names in the protocol.
    pub const SHOWN: [(Flags, &'static str); 5] = [
        (Flags::WRITE, "write"),
        (Flags::READ, "readonly"),
        (Flags::GROWS, "denyoom"),
        (Flags::ADMIN, "admin"),
        (Flags::FAST, "fast"),
    ];

    pub const fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Name; that of a subcommand has its container and a bar before it.
    pub name: &'static str,
    /// Number of words, with the name; negative: the minimum.
    pub arity: i32,
    pub flags: Flags,
    pub keys: Keys,
    /// Index of a word that is stored as it is, and may arrive apart; 0 for none.
    pub stored: usize,
    pub id: Id,
    pub subcommands: &'static [Command],
}

/// Positions of keys: the first (0 for none), the last (negative: from the end), and the distance
/// of one key from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub first: i32,
    pub last: i32,
    pub step: i32,
}

const NO_KEYS: Keys = Keys { first: 0, last: 0, step: 0 };
const ONE_KEY: Keys = Keys { first: 1, last: 1, step: 1 };
const TWO_KEYS: Keys = Keys { first: 1, last: 2, step: 1 };
const ALL_KEYS: Keys = Keys { first: 1, last: -1, step: 1 };
const PAIRS: Keys = Keys { first: 1, last: -1, step: 2 };
const SECOND: Keys = Keys { first: 2, last: 2, step: 1 };
const FROM_SECOND: Keys = Keys { first: 2, last: -1, step: 1 };

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    Get,
    Set,
    Setnx,
    /// With the milliseconds of the unit.
    Setex(i64),
    Getset,
    Getdel,
    Getex,
    Mget,
    Mset,
    Msetnx,
    Strlen,
    Append,
    Setrange,
    Getrange,
    Lcs,
    /// With the sign of the step.
    Step(i64),
    StepBy(i64),
    StepByFloat,
    Setbit,
    Getbit,
    Bitcount,
    Bitpos,
    Bitop,
    Del,
    Exists,
    Type,
    Rename,
    Renamenx,
    Copy,
    Move,
    Keys,
    Scan,
    Randomkey,
    ObjectEncoding,
    /// With the milliseconds of the unit; then true if the number is a time since 1970.
    Expire(i64, bool),
    Ttl(u64, bool),
    Persist,
    Select,
    Swapdb,
    Dbsize,
    Flush(bool),
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Ping,
    Echo,
    Hello,
    Reset,
    Quit,
    Auth,
    Time,
    ClientNumber,
    ClientGetname,
    ClientSetname,
    ClientList,
    ClientInfo,
    ClientKill,
    ClientReply,
    ConfigGet,
    ConfigSet,
    ConfigResetstat,
    Info,
    Commands,
    CommandCount,
    CommandDocs,
    CommandInfo,
    CommandList,
    CommandGetkeys,
    FunctionFlush,
    FunctionList,
    DebugSleep,
    DebugActiveExpire,
    DebugProtocol,
    /// `HELP` of a container.
    Help,
    /// A container, which is only executed through its subcommands.
    Container,
}

const fn command(name: &'static str, arity: i32, flags: Flags, keys: Keys, id: Id) -> Command {
    Command { name, arity, flags, keys, stored: 0, id, subcommands: &[] }
}

const fn container(name: &'static str, subcommands: &'static [Command]) -> Command {
    let id = Id::Container;
    Command { name, arity: -2, flags: Flags::NONE, keys: NO_KEYS, stored: 0, id, subcommands }
}

/// A command about the server or the connection.
const fn about(name: &'static str, arity: i32, id: Id) -> Command {
    command(name, arity, Flags::NONE, NO_KEYS, id)
}

impl Command {
    const fn storing(self, index: usize) -> Command {
        Command { stored: index, ..self }
    }

    const fn admin(self) -> Command {
        Command { flags: self.flags.and(Flags::ADMIN), ..self }
    }

    const fn fast(self) -> Command {
        Command { flags: self.flags.and(Flags::FAST), ..self }
    }

    const fn at_once(self) -> Command {
        Command { flags: self.flags.and(Flags::AT_ONCE), ..self }
    }

    const fn within(self, subcommands: &'static [Command]) -> Command {
        Command { subcommands, ..self }
    }

    /// Returns the word that selects a subcommand in its container.
    pub fn word(&self) -> &'static str {
        self.name.rsplit('|').next().unwrap_or(self.name)
    }

    /// Returns true if a request of `len` words is long enough, and not too long.
    pub fn takes(&self, len: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        len == wanted || self.arity < 0 && len > wanted
    }

    /// Returns the indices of the keys in a request of `len` words.
    pub fn keys(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let Keys { first, last, step } = self.keys;
        let last = if last < 0 { (len as i32 + last).max(0) } else { last };
        let end = if first > 0 { last + 1 } else { first };
        (first..end).step_by(step.max(1) as usize).map(|index| index as usize)
    }
}

/// Returns the command of a request with these first two words; a subcommand if its container has
/// it, otherwise the container itself.
pub(crate) fn find(name: &[u8], second: &[u8]) -> Option<&'static Command> {
    let command = COMMANDS.iter().find(|it| it.name.as_bytes().eq_ignore_ascii_case(name))?;
    let subcommand =
        command.subcommands.iter().find(|it| it.word().as_bytes().eq_ignore_ascii_case(second));
    Some(subcommand.unwrap_or(command))
}

const R: Flags = Flags::READ;
const W: Flags = Flags::WRITE;
const G: Flags = Flags::WRITE.and(Flags::GROWS);

/// All commands; the most frequent ones first, because the table is searched from the start.
pub(crate) static COMMANDS: &[Command] = &[
    command("get", 2, R, ONE_KEY, Id::Get).fast(),
    command("set", -3, G, ONE_KEY, Id::Set).storing(2),
    command("mget", -2, R, ALL_KEYS, Id::Mget).fast(),
    command("mset", -3, G, PAIRS, Id::Mset),
    command("setnx", 3, G, ONE_KEY, Id::Setnx).storing(2).fast(),
    command("setex", 4, G, ONE_KEY, Id::Setex(1000)).storing(3),
    command("psetex", 4, G, ONE_KEY, Id::Setex(1)).storing(3),
    command("getset", 3, G, ONE_KEY, Id::Getset).storing(2).fast(),
    command("getdel", 2, W, ONE_KEY, Id::Getdel).fast(),
    command("getex", -2, W, ONE_KEY, Id::Getex).fast(),
    command("msetnx", -3, G, PAIRS, Id::Msetnx),
    command("strlen", 2, R, ONE_KEY, Id::Strlen).fast(),
    command("append", 3, G, ONE_KEY, Id::Append).fast(),
    command("setrange", 4, G, ONE_KEY, Id::Setrange),
    command("getrange", 4, R, ONE_KEY, Id::Getrange),
    command("substr", 4, R, ONE_KEY, Id::Getrange),
    command("lcs", -3, R, TWO_KEYS, Id::Lcs),
    command("incr", 2, G, ONE_KEY, Id::Step(1)).fast(),
    command("decr", 2, G, ONE_KEY, Id::Step(-1)).fast(),
    command("incrby", 3, G, ONE_KEY, Id::StepBy(1)).fast(),
    command("decrby", 3, G, ONE_KEY, Id::StepBy(-1)).fast(),
    command("incrbyfloat", 3, G, ONE_KEY, Id::StepByFloat).fast(),
    command("setbit", 4, G, ONE_KEY, Id::Setbit),
    command("getbit", 3, R, ONE_KEY, Id::Getbit).fast(),
    command("bitcount", -2, R, ONE_KEY, Id::Bitcount),
    command("bitpos", -3, R, ONE_KEY, Id::Bitpos),
    command("bitop", -4, G, FROM_SECOND, Id::Bitop),
    command("del", -2, W, ALL_KEYS, Id::Del),
    command("unlink", -2, W, ALL_KEYS, Id::Del).fast(),
    command("exists", -2, R, ALL_KEYS, Id::Exists).fast(),
    command("touch", -2, R, ALL_KEYS, Id::Exists).fast(),
    command("type", 2, R, ONE_KEY, Id::Type).fast(),
    command("rename", 3, W, TWO_KEYS, Id::Rename),
    command("renamenx", 3, W, TWO_KEYS, Id::Renamenx).fast(),
    command("copy", -3, G, TWO_KEYS, Id::Copy),
    command("move", 3, W, ONE_KEY, Id::Move).fast(),
    command("keys", 2, R, NO_KEYS, Id::Keys),
    command("scan", -2, R, NO_KEYS, Id::Scan),
    command("randomkey", 1, R, NO_KEYS, Id::Randomkey),
    container(
        "object",
        &[
            command("object|encoding", 3, R, SECOND, Id::ObjectEncoding),
            about("object|help", 2, Id::Help),
        ],
    ),
    command("expire", -3, W, ONE_KEY, Id::Expire(1000, false)).fast(),
    command("pexpire", -3, W, ONE_KEY, Id::Expire(1, false)).fast(),
    command("expireat", -3, W, ONE_KEY, Id::Expire(1000, true)).fast(),
    command("pexpireat", -3, W, ONE_KEY, Id::Expire(1, true)).fast(),
    command("ttl", 2, R, ONE_KEY, Id::Ttl(1000, false)).fast(),
    command("pttl", 2, R, ONE_KEY, Id::Ttl(1, false)).fast(),
    command("expiretime", 2, R, ONE_KEY, Id::Ttl(1000, true)).fast(),
    command("pexpiretime", 2, R, ONE_KEY, Id::Ttl(1, true)).fast(),
    command("persist", 2, W, ONE_KEY, Id::Persist).fast(),
    about("select", 2, Id::Select).fast(),
    command("swapdb", 3, W, NO_KEYS, Id::Swapdb).fast(),
    command("dbsize", 1, R, NO_KEYS, Id::Dbsize).fast(),
    command("flushall", -1, W, NO_KEYS, Id::Flush(true)),
    command("flushdb", -1, W, NO_KEYS, Id::Flush(false)),
    about("multi", 1, Id::Multi).fast().at_once(),
    about("exec", 1, Id::Exec).at_once(),
    about("discard", 1, Id::Discard).fast().at_once(),
    command("watch", -2, Flags::NONE, ALL_KEYS, Id::Watch).fast().at_once(),
    about("unwatch", 1, Id::Unwatch).fast(),
    about("ping", -1, Id::Ping).fast(),
    about("echo", 2, Id::Echo).fast(),
    about("hello", -1, Id::Hello).fast(),
    about("reset", 1, Id::Reset).fast().at_once(),
    about("quit", -1, Id::Quit).fast().at_once(),
    about("auth", -2, Id::Auth).fast(),
    about("time", 1, Id::Time).fast(),
    container(
        "client",
        &[
            about("client|id", 2, Id::ClientNumber),
            about("client|getname", 2, Id::ClientGetname),
            about("client|setname", 3, Id::ClientSetname),
            about("client|list", -2, Id::ClientList).admin(),
            about("client|info", 2, Id::ClientInfo),
            about("client|kill", -3, Id::ClientKill).admin(),
            about("client|reply", 3, Id::ClientReply),
            about("client|help", 2, Id::Help),
        ],
    ),
    container(
        "config",
        &[
            about("config|get", -3, Id::ConfigGet).admin(),
            about("config|set", -4, Id::ConfigSet).admin(),
            about("config|resetstat", 2, Id::ConfigResetstat).admin(),
            about("config|help", 2, Id::Help),
        ],
    ),
    about("info", -1, Id::Info),
    about("command", -1, Id::Commands).within(&[
        about("command|count", 2, Id::CommandCount),
        about("command|docs", -2, Id::CommandDocs),
        about("command|info", -2, Id::CommandInfo),
        about("command|list", -2, Id::CommandList),
        about("command|getkeys", -4, Id::CommandGetkeys),
        about("command|help", 2, Id::Help),
    ]),
    container(
        "function",
        &[
            command("function|flush", -2, W, NO_KEYS, Id::FunctionFlush),
            about("function|list", -2, Id::FunctionList),
            about("function|help", 2, Id::Help),
        ],
    ),
    container(
        "debug",
        &[
            about("debug|sleep", 3, Id::DebugSleep).admin(),
            about("debug|set-active-expire", 3, Id::DebugActiveExpire).admin(),
            about("debug|protocol", 3, Id::DebugProtocol).admin(),
            about("debug|help", 2, Id::Help).admin(),
        ],
    )
    .admin(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lower_case() {
        let all = || COMMANDS.iter().chain(COMMANDS.iter().flat_map(|it| it.subcommands));
        let mut names: Vec<_> = all().map(|command| command.name).collect();
        assert!(names.iter().all(|name| name.bytes().all(|byte| !byte.is_ascii_uppercase())));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn subcommands_are_found_through_their_containers() {
        let name = |first: &str, second: &str| {
            find(first.as_bytes(), second.as_bytes()).map(|command| command.name)
        };
        assert_eq!(name("CONFIG", "Get"), Some("config|get"));
        assert_eq!(name("CONFIG", "no"), Some("config"));
        assert_eq!(name("config|get", "x"), None);
        assert_eq!(name("get", "config"), Some("get"));
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let keys = |name: &str, len| find(name.as_bytes(), b"").unwrap().keys(len).collect();
        let expect = |name, len, expected: &[usize]| {
            let found: Vec<usize> = keys(name, len);
            assert_eq!(found, expected, "{name} with {len} words");
        };
        expect("get", 2, &[1]);
        expect("mset", 5, &[1, 3]);
        expect("mget", 4, &[1, 2, 3]);
        expect("rename", 3, &[1, 2]);
        expect("bitop", 5, &[2, 3, 4]);
        expect("ping", 2, &[]);
    }
}
