//! Information about the server.

use std::fmt::Write;

use crate::arguments::Arguments;
use crate::copies::{Arrival, Copies};
use crate::output::Output;
use crate::state::ServerState;
use crate::table::{COMMANDS, wrong_number};

/// `INFO [section …]`: all sections, or the requested ones.
pub(crate) fn info<C: Copies>(
    state: &ServerState<C>,
    words: Arguments<'_>,
    out: &mut Output<C::Incoming>,
) {
    let (stats, store) = (&state.stats, &state.store);
    let sections = [
        (
            "Server",
            format!(
                "unlade_kv_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
                 uptime_in_seconds:{}\r\ncopies:{}\r\n",
                env!("CARGO_PKG_VERSION"),
                std::process::id(),
                state.uptime_s(),
                C::NAME
            ),
        ),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\n",
                stats.clients, state.limits.clients_max
            ),
        ),
        (
            "Memory",
            format!(
                "used_memory:{}\r\nmaxmemory:{}\r\narriving_bytes:{}\r\n",
                store.bytes(),
                state.limits.memory_bytes_max,
                state.arriving_bytes
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
                 keyspace_hits:{}\r\nkeyspace_misses:{}\r\nrejected_connections:{}\r\n\
                 received_in_place:{}\r\nanswered_before_received:{}\r\nreceived_by_service:{}\r\n",
                stats.accepted,
                stats.requests,
                stats.hits,
                stats.misses,
                stats.rejected,
                stats.in_place,
                stats.answered_first,
                stats.by_service
            ),
        ),
        (
            "Keyspace",
            match store.len() {
                0 => String::new(),
                keys => {
                    format!("db0:keys={keys},expires={},avg_ttl=0\r\n", store.with_deadline())
                }
            },
        ),
    ];
    let is_wanted = |name: &str| {
        let mut asked = (1..words.len()).map(|index| words.get(index));
        let everything: [&[u8]; 3] = [b"all", b"default", b"everything"];
        words.len() == 1
            || asked.any(|word| {
                word.eq_ignore_ascii_case(name.as_bytes())
                    || everything.iter().any(|all| word.eq_ignore_ascii_case(all))
            })
    };
    let mut text = String::new();
    for (name, lines) in sections.iter().filter(|(name, _)| is_wanted(name)) {
        if !text.is_empty() {
            text += "\r\n";
        }
        // A write to a string does not fail.
        let _ = write!(text, "# {name}\r\n{lines}");
    }
    out.bulk(text.as_bytes());
}

/// `CONFIG GET name …`: the options that clients of Redis query.
pub(crate) fn config<C: Copies>(
    state: &ServerState<C>,
    words: Arguments<'_>,
    out: &mut Output<C::Incoming>,
) {
    if !words.get(1).eq_ignore_ascii_case(b"get") {
        let name = String::from_utf8_lossy(words.get(1));
        return out.error(&format!(
            "ERR unknown subcommand '{}': only CONFIG GET is there; limits are arguments of the \
             program",
            name.chars().take(32).collect::<String>()
        ));
    }
    if words.len() < 3 {
        return wrong_number(out, "config|get");
    }
    let limits = &state.limits;
    let settings = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("timeout", "0".to_owned()),
        ("maxclients", limits.clients_max.to_string()),
        ("maxmemory", limits.memory_bytes_max.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", limits.value_bytes_max.to_string()),
        ("client-query-buffer-limit", limits.input_bytes_max.to_string()),
    ];
    let is_wanted = |name: &str| {
        (2..words.len()).any(|index| {
            let word = words.get(index);
            word == b"*" || word.eq_ignore_ascii_case(name.as_bytes())
        })
    };
    let wanted: Vec<_> = settings.iter().filter(|(name, _)| is_wanted(name)).collect();
    out.array(2 * wanted.len());
    for (name, value) in wanted {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
}

/// `COMMAND`, `COMMAND COUNT`, `COMMAND DOCS`: the supported commands.
pub(crate) fn commands<I: Arrival>(words: Arguments<'_>, out: &mut Output<I>) {
    let what = words.get(1).to_ascii_lowercase();
    match (words.len(), what.as_slice()) {
        (1, _) | (2, b"info") => {
            out.array(COMMANDS.len());
            for command in &COMMANDS {
                out.array(6);
                out.bulk(command.name.as_bytes());
                out.integer(command.arity.into());
                out.array(1);
                out.simple(if command.is_write { "write" } else { "readonly" });
                out.integer(command.keys.0.into());
                out.integer(command.keys.1.into());
                out.integer((command.keys.0 != 0).into());
            }
        }
        (2, b"count") => out.integer(COMMANDS.len() as i64),
        // There is no documentation; interactive clients work without it.
        (_, b"docs") => out.array(0),
        _ => out.error("ERR unknown subcommand: COMMAND, COMMAND COUNT and COMMAND DOCS are there"),
    }
}
