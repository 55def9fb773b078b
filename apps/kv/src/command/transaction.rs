//! Transactions: `MULTI`, `EXEC`, `DISCARD`, and keys that are watched for them.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::parse::Argument;
use crate::session::{Queued, Transaction, Watch};
use crate::table::Flags;

/// Assumed memory overhead of a word in the queue.
const WORD_OVERHEAD_BYTES: usize = 32;
/// Maximum number of keys that a client watches.
const WATCHES_MAX: usize = 64 << 10;

pub(crate) fn multi<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let session = context.session();
    if session.transaction.is_some() {
        return Err(Failure::text("MULTI calls can not be nested"));
    }
    session.transaction = Some(Transaction::default());
    context.out.simple("OK");
    Ok(())
}

/// Adds a command to the transaction, which is open.
pub(crate) fn queue<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let words: Vec<Vec<u8>> = context.words.from(0).map(<[u8]>::to_vec).collect();
    let apart = context.apart.take();
    let apart_bytes = apart.as_ref().map_or(0, |value| value.len());
    let bytes = words.iter().map(|word| word.len() + WORD_OVERHEAD_BYTES).sum::<usize>();
    let limit = context.state.limits.input_bytes_max;
    let command = context.command;
    let Some(transaction) = context.session().transaction.as_mut() else { return Ok(()) };
    if transaction.bytes + bytes + apart_bytes > limit {
        let said = format!("the transaction has more than {limit} bytes: use a shorter one");
        return Err(Failure::text(said));
    }
    transaction.bytes += bytes + apart_bytes;
    transaction.queue.push_back(Queued { command, words, apart });
    context.out.simple("QUEUED");
    Ok(())
}

/// Executes the queued commands with `run`.
pub(crate) fn exec<C: Copies>(
    context: &mut Context<'_, C>,
    run: fn(&mut Context<'_, C>),
) -> Answer {
    let is_as_seen = is_as_seen(context);
    let transaction = context.session().transaction.take();
    let transaction = transaction.ok_or_else(|| Failure::text("EXEC without MULTI"))?;
    context.state.unwatch(context.number);
    if transaction.has_failed {
        let said = "EXECABORT Transaction discarded because of previous errors.";
        return Err(Failure::Other(said.to_owned()));
    }
    if !is_as_seen {
        context.out.null_array();
        return Ok(());
    }
    let grows = transaction.queue.iter().any(|queued| queued.command.flags.has(Flags::GROWS));
    if grows && let Err(failure) = context.check_memory(0) {
        return Err(aborted(&failure));
    }
    context.out.array(transaction.queue.len());
    for Queued { command, words, apart } in transaction.queue {
        let words: Vec<Argument> = words.into_iter().map(Argument::Quoted).collect();
        let words = Arguments { parsed: &words, input: &[] };
        let Context { state, number, out, .. } = context;
        run(&mut Context { state, number: *number, command, words, apart, out });
    }
    Ok(())
}

/// Returns the failure of an `EXEC` that runs nothing because of another failure.
pub(crate) fn aborted(failure: &Failure) -> Failure {
    let text = failure.to_string();
    let reason = text.strip_prefix("ERR ").unwrap_or(&text);
    Failure::Other(format!("EXECABORT Transaction discarded because of: {reason}"))
}

fn is_as_seen<C: Copies>(context: &mut Context<'_, C>) -> bool {
    let now_ms = context.state.now_ms;
    let watches = context.session().watches.clone();
    watches.iter().all(|watch| {
        let store = context.state.databases.get(watch.database);
        store.is_as_seen(&watch.key, watch.seen, now_ms)
    })
}

pub(crate) fn discard<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let transaction = context.session().transaction.take();
    transaction.ok_or_else(|| Failure::text("DISCARD without MULTI"))?;
    context.state.unwatch(context.number);
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn watch<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let now_ms = context.state.now_ms;
    if context.session().transaction.is_some() {
        return Err(Failure::text("WATCH inside MULTI is not allowed"));
    }
    let count = context.session().watches.len() + context.words.len() - 1;
    if count > WATCHES_MAX {
        let said = format!("{count} watched keys: at most {WATCHES_MAX} are possible");
        return Err(Failure::text(said));
    }
    let database = context.session().database;
    for key in context.words.from(1) {
        let key: Rc<[u8]> = key.into();
        let seen = context.store().watch(&key, now_ms);
        context.session().watches.push(Watch { database, key, seen });
    }
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn unwatch<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.state.unwatch(context.number);
    context.out.simple("OK");
    Ok(())
}
