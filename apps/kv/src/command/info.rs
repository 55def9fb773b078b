//! `INFO`, and other information about the server.

use std::fmt::Write;

use crate::context::Context;
use crate::copies::Copies;
use crate::failure::Answer;
use crate::state::ServerState;

/// Words that select all sections.
const EVERYTHING: [&[u8]; 3] = [b"all", b"default", b"everything"];

/// `INFO [section …]`: all sections, or the requested ones.
pub(crate) fn info<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.state.count_expired();
    let sections = [
        ("Server", server(context.state)),
        ("Clients", clients(context.state)),
        ("Memory", memory(context.state)),
        ("Stats", statistics(context.state)),
        ("Keyspace", keyspace(context.state)),
    ];
    let words = context.words;
    let is_wanted = |name: &str| {
        words.len() == 1
            || words.from(1).any(|word| {
                word.eq_ignore_ascii_case(name.as_bytes())
                    || EVERYTHING.iter().any(|all| word.eq_ignore_ascii_case(all))
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
    context.out.verbatim(&text);
    Ok(())
}

fn server<C: Copies>(state: &ServerState<C>) -> String {
    format!(
        "unlade_kv_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
         uptime_in_seconds:{}\r\ncopies:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        state.uptime_s(),
        C::NAME
    )
}

fn clients<C: Copies>(state: &ServerState<C>) -> String {
    let watching = state.sessions.iter().filter(|(_, it)| !it.watches.is_empty()).count();
    format!(
        "connected_clients:{}\r\nmaxclients:{}\r\nwatching_clients:{watching}\r\n",
        state.stats.clients, state.limits.clients_max
    )
}

fn memory<C: Copies>(state: &ServerState<C>) -> String {
    format!(
        "used_memory:{}\r\nmaxmemory:{}\r\narriving_bytes:{}\r\n",
        state.databases.bytes(),
        state.limits.memory_bytes_max,
        state.arriving_bytes
    )
}

fn statistics<C: Copies>(state: &ServerState<C>) -> String {
    let stats = &state.stats;
    format!(
        "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nexpired_keys:{}\r\n\
         keyspace_hits:{}\r\nkeyspace_misses:{}\r\nrejected_connections:{}\r\n\
         received_in_place:{}\r\nanswered_before_received:{}\r\nreceived_by_service:{}\r\n",
        stats.accepted,
        stats.requests,
        stats.expired,
        stats.hits,
        stats.misses,
        stats.rejected,
        stats.in_place,
        stats.answered_first,
        stats.by_service
    )
}

fn keyspace<C: Copies>(state: &ServerState<C>) -> String {
    let stores = state.databases.all().enumerate().filter(|(_, store)| store.len() > 0);
    let line = |(number, store): (usize, &crate::store::Store<C::Incoming>)| {
        let (keys, expires) = (store.len(), store.with_deadline());
        format!("db{number}:keys={keys},expires={expires},avg_ttl=0\r\n")
    };
    stores.map(line).collect()
}

/// `TIME`: seconds since 1970, and the microseconds beyond them.
pub(crate) fn time<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let now_us = context.state.clock_us();
    context.out.array(2);
    context.out.bulk((now_us / 1_000_000).to_string().as_bytes());
    context.out.bulk((now_us % 1_000_000).to_string().as_bytes());
    Ok(())
}
