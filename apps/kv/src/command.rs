//! Execution of commands: finds a request's command in the table, checks the request, and runs or
//! queues it.

mod bitmaps;
mod catalog;
mod clients;
mod config;
mod databases;
mod debug;
mod expiry;
mod info;
mod keys;
mod numbers;
mod ranges;
mod strings;
mod transaction;

#[cfg(test)]
mod tests;

use crate::arguments::Arguments;
use crate::context::{Context, Stored};
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::output::Output;
use crate::session::Replies;
use crate::state::ServerState;
use crate::table::{Command, Flags, Id, find};
use expiry::Unit;

/// Maximum number of bytes of a request that an error repeats.
const QUOTED_BYTES_MAX: usize = 128;

/// Executes and answers a request of the session `number`. `apart` is the value that is still
/// arriving.
pub(crate) fn execute<C: Copies>(
    state: &mut ServerState<C>,
    number: usize,
    words: Arguments<'_>,
    apart: Option<Stored<C>>,
    out: &mut Output<C::Incoming>,
) {
    state.stats.requests += 1;
    let now_ms = state.now_ms;
    let session = &mut state.sessions[number];
    session.used_ms = now_ms;
    out.is_resp3 = session.is_resp3;
    out.is_muted = session.replies != Replies::All;
    if session.replies == Replies::SkipNext {
        session.replies = Replies::All;
    }
    let command = match checked(state, words) {
        Ok(command) => command,
        Err(failure) if words.get(0).eq_ignore_ascii_case(b"exec") => {
            state.unwatch(number);
            state.sessions[number].transaction = None;
            return out.error(&transaction::aborted(&failure).to_string());
        }
        Err(failure) => {
            out.error(&failure.to_string());
            return fail(state, number);
        }
    };
    let session = &mut state.sessions[number];
    session.last = command.name;
    let is_queued = session.transaction.is_some() && !command.flags.has(Flags::AT_ONCE);
    let mut context = Context { state, number, command, words, apart, out };
    if !is_queued {
        return run(&mut context);
    }
    if let Err(failure) = transaction::queue(&mut context) {
        context.out.error(&failure.to_string());
        fail(state, number);
    }
}

/// Makes an open transaction fail, because a command of it was refused.
fn fail<C: Copies>(state: &mut ServerState<C>, number: usize) {
    if let Some(transaction) = &mut state.sessions[number].transaction {
        transaction.has_failed = true;
    }
}

/// Returns the command of a request that can be executed.
fn checked<C: Copies>(
    state: &ServerState<C>,
    words: Arguments<'_>,
) -> Result<&'static Command, Failure> {
    let command = find(words.get(0), words.get(1)).ok_or_else(|| unknown(words))?;
    if !command.takes(words.len()) {
        return Err(Failure::WrongNumber(command.name));
    }
    if command.id == Id::Container || command.id == Id::Commands && words.len() > 1 {
        let word = cut(words.get(1), QUOTED_BYTES_MAX);
        let name = command.name.to_ascii_uppercase();
        return Err(Failure::text(format!("unknown subcommand '{word}'. Try {name} HELP.")));
    }
    let key_bytes_max = state.limits.key_bytes_max;
    if command.keys(words.len()).any(|index| words.get(index).len() > key_bytes_max) {
        let said = format!("a key of more than {key_bytes_max} bytes: use a shorter one");
        return Err(Failure::text(said));
    }
    let is_full = || state.databases.bytes() > state.limits.memory_bytes_max;
    if command.flags.has(Flags::GROWS) && is_full() {
        return Err(Failure::Memory);
    }
    Ok(command)
}

/// Runs a command, and answers with its failure if it has one.
fn run<C: Copies>(context: &mut Context<'_, C>) {
    if let Err(failure) = dispatch(context) {
        context.out.error(&failure.to_string());
    }
}

fn dispatch<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    match context.command.id {
        Id::Get => strings::get(context),
        Id::Set => strings::set(context),
        Id::Setnx => strings::setnx(context),
        Id::Setex(unit_ms) => strings::setex(context, unit_ms),
        Id::Getset => strings::getset(context),
        Id::Getdel => strings::getdel(context),
        Id::Getex => strings::getex(context),
        Id::Mget => strings::mget(context),
        Id::Mset => strings::mset(context),
        Id::Msetnx => strings::msetnx(context),
        Id::Strlen => strings::strlen(context),
        Id::Append => ranges::append(context),
        Id::Setrange => ranges::setrange(context),
        Id::Getrange => ranges::getrange(context),
        Id::Lcs => ranges::lcs(context),
        Id::Step(step) => numbers::step(context, step),
        Id::StepBy(sign) => numbers::step_by(context, sign),
        Id::StepByFloat => numbers::step_by_float(context),
        Id::Setbit => bitmaps::setbit(context),
        Id::Getbit => bitmaps::getbit(context),
        Id::Bitcount => bitmaps::bitcount(context),
        Id::Bitpos => bitmaps::bitpos(context),
        Id::Bitop => bitmaps::bitop(context),
        Id::Del => keys::del(context),
        Id::Exists => keys::exists(context),
        Id::Type => keys::kind(context),
        Id::Rename => keys::rename(context),
        Id::Renamenx => keys::renamenx(context),
        Id::Copy => keys::copy(context),
        Id::Move => keys::move_to(context),
        Id::Keys => keys::keys(context),
        Id::Scan => keys::scan(context),
        Id::Randomkey => keys::randomkey(context),
        Id::ObjectEncoding => keys::object_encoding(context),
        Id::Expire(ms, is_absolute) => expiry::expire(context, Unit { ms, is_absolute }),
        Id::Ttl(unit_ms, is_absolute) => expiry::ttl(context, unit_ms, is_absolute),
        Id::Persist => expiry::persist(context),
        Id::Select => databases::select(context),
        Id::Swapdb => databases::swapdb(context),
        Id::Dbsize => databases::dbsize(context),
        Id::Flush(is_all) => databases::flush(context, is_all),
        Id::Multi => transaction::multi(context),
        Id::Exec => transaction::exec(context, run),
        Id::Discard => transaction::discard(context),
        Id::Watch => transaction::watch(context),
        Id::Unwatch => transaction::unwatch(context),
        other => about(context, other),
    }
}

/// Commands about the connection and the server.
fn about<C: Copies>(context: &mut Context<'_, C>, id: Id) -> Answer {
    match id {
        Id::Ping => clients::ping(context),
        Id::Echo => {
            context.out.bulk(context.words.get(1));
            Ok(())
        }
        Id::Hello => clients::hello(context),
        Id::Auth => clients::auth(context),
        Id::Reset => clients::reset(context),
        Id::Quit => clients::quit(context),
        Id::ClientNumber => clients::id(context),
        Id::ClientGetname => clients::getname(context),
        Id::ClientSetname => clients::setname(context),
        Id::ClientList => clients::list(context),
        Id::ClientInfo => clients::info(context),
        Id::ClientKill => clients::kill(context),
        Id::ClientReply => clients::reply(context),
        Id::Time => info::time(context),
        Id::Info => info::info(context),
        Id::ConfigGet => config::get(context),
        Id::ConfigSet => config::set(context),
        Id::ConfigResetstat => config::resetstat(context),
        Id::Commands => catalog::all(context),
        Id::CommandCount => catalog::count(context),
        Id::CommandDocs => catalog::docs(context),
        Id::CommandInfo => catalog::info(context),
        Id::CommandList => catalog::list(context),
        Id::CommandGetkeys => catalog::getkeys(context),
        Id::Help => catalog::help(context),
        Id::FunctionFlush => debug::function_flush(context),
        Id::FunctionList => debug::function_list(context),
        Id::DebugSleep => debug::sleep(context),
        Id::DebugActiveExpire => debug::set_active_expire(context),
        Id::DebugProtocol => debug::protocol(context),
        // The others were dispatched before; a container was refused.
        _ => Err(Failure::Syntax),
    }
}

/// Returns the start of a word as text.
fn cut(bytes: &[u8], max: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned()
}

fn unknown(words: Arguments<'_>) -> Failure {
    let mut said = String::new();
    for word in words.from(1) {
        let Some(left) = QUOTED_BYTES_MAX.checked_sub(said.len()).filter(|left| *left > 0) else {
            break;
        };
        said += &format!("'{}' ", cut(word, left));
    }
    let name = cut(words.get(0), QUOTED_BYTES_MAX);
    Failure::text(format!("unknown command '{name}', with args beginning with: {said}"))
}
