//! Commands on keys, whatever their values.

use crate::command::expiry;
use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::parse::number;
use crate::pattern::is_match;
use crate::value::Lost;

/// Number of keys that `SCAN` visits if the request does not say.
const SCAN_KEYS: usize = 10;

pub(crate) fn del<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let now_ms = context.state.now_ms;
    let count = context.words.from(1).filter(|key| context.store().remove(key, now_ms)).count();
    context.out.integer(count as i64);
    Ok(())
}

pub(crate) fn exists<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let count = context.words.from(1).filter(|key| context.lookup(key).is_some()).count();
    context.out.integer(count as i64);
    Ok(())
}

pub(crate) fn kind<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let key = context.word(1);
    let is_there = context.value(key).is_some();
    context.out.simple(if is_there { "string" } else { "none" });
    Ok(())
}

pub(crate) fn object_encoding<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let key = context.word(2);
    match context.value(key) {
        None => context.out.null(),
        Some(value) => {
            let name = value.encoding().map_err(|Lost| context.lose(key))?;
            context.out.bulk(name.as_bytes());
        }
    }
    Ok(())
}

pub(crate) fn rename<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    move_key(context, true)?;
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn renamenx<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let is_moved = move_key(context, false)?;
    context.out.integer(i64::from(is_moved));
    Ok(())
}

/// Moves a key's value and deadline to another key. Returns false if that exists and is not to be
/// replaced.
fn move_key<C: Copies>(context: &mut Context<'_, C>, replaces: bool) -> Result<bool, Failure> {
    let (from, to, now_ms) = (context.word(1), context.word(2), context.state.now_ms);
    let value = context.value(from).ok_or(Failure::NoKey)?;
    if from == to || !replaces && context.value(to).is_some() {
        return Ok(false);
    }
    let deadline = expiry::present(context, from);
    context.store().remove(from, now_ms);
    context.store().set(to, value, deadline);
    Ok(true)
}

pub(crate) fn copy<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let from = context.session().database;
    let (mut to, mut replaces, mut index) = (from, false, 3);
    while index < context.words.len() {
        match context.word(index).to_ascii_lowercase().as_slice() {
            b"replace" => replaces = true,
            b"db" if index + 1 < context.words.len() => {
                index += 1;
                to = context.database(index)?;
            }
            _ => return Err(Failure::Syntax),
        }
        index += 1;
    }
    let (source, target) = (context.word(1), context.word(2));
    if from == to && source == target {
        return Err(Failure::SameObject);
    }
    let is_copied = put_into(context, source, to, target, replaces)?;
    context.out.integer(i64::from(is_copied));
    Ok(())
}

/// Puts the value and the deadline of a key into a database. Returns false if there is no such
/// key, or if the target exists and is not to be replaced.
fn put_into<C: Copies>(
    context: &mut Context<'_, C>,
    source: &[u8],
    to: usize,
    target: &[u8],
    replaces: bool,
) -> Result<bool, Failure> {
    let now_ms = context.state.now_ms;
    let Some(value) = context.value(source) else { return Ok(false) };
    if !replaces && context.state.databases.get(to).get(target, now_ms).is_some() {
        return Ok(false);
    }
    // The copy shares the bytes until one of the two is changed, and counts as if it did not.
    context.check_memory(value.len())?;
    let deadline = expiry::present(context, source);
    context.state.databases.get(to).set(target, value, deadline);
    Ok(true)
}

pub(crate) fn move_to<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let from = context.session().database;
    let to = context.database(2)?;
    if from == to {
        return Err(Failure::SameObject);
    }
    let (key, now_ms) = (context.word(1), context.state.now_ms);
    let is_moved = put_into(context, key, to, key, false)?;
    if is_moved {
        context.store().remove(key, now_ms);
    }
    context.out.integer(i64::from(is_moved));
    Ok(())
}

pub(crate) fn keys<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let (pattern, now_ms) = (context.word(1), context.state.now_ms);
    let store = context.store();
    let matching = |key: &&[u8]| is_match(pattern, key);
    let found: Vec<Vec<u8>> = store.keys(now_ms).filter(matching).map(<[u8]>::to_vec).collect();
    context.out.array(found.len());
    found.iter().for_each(|key| context.out.bulk(key));
    Ok(())
}

pub(crate) fn scan<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let cursor = match context.word(1) {
        // Cursors are unsigned.
        text if text.first() == Some(&b'-') => None,
        text => std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()),
    };
    let cursor = cursor.ok_or_else(|| Failure::text("invalid cursor"))?;
    let (mut count, mut pattern, mut is_wanted) = (SCAN_KEYS, &b"*"[..], true);
    for index in (2..context.words.len()).step_by(2) {
        if index + 1 == context.words.len() {
            return Err(Failure::Syntax);
        }
        let value = context.word(index + 1);
        match context.word(index).to_ascii_lowercase().as_slice() {
            b"count" => {
                let number = number(value).ok_or(Failure::NotANumber)?;
                let number = usize::try_from(number).ok().filter(|number| *number > 0);
                count = number.ok_or(Failure::Syntax)?;
            }
            b"match" => pattern = value,
            b"type" => is_wanted = value.eq_ignore_ascii_case(b"string"),
            _ => return Err(Failure::Syntax),
        }
    }
    let now_ms = context.state.now_ms;
    let (found, next) = context.store().scan(cursor, count, now_ms);
    let shown: Vec<_> =
        found.into_iter().filter(|key| is_wanted && is_match(pattern, key)).collect();
    context.out.array(2);
    context.out.bulk(next.to_string().as_bytes());
    context.out.array(shown.len());
    shown.iter().for_each(|key| context.out.bulk(key));
    Ok(())
}

pub(crate) fn randomkey<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let (seed, now_ms) = (context.state.random(), context.state.now_ms);
    let mut turn = 0u64;
    let random = || {
        turn += 1;
        seed.wrapping_add(turn)
    };
    match context.store().any(random, now_ms) {
        Some(key) => context.out.bulk(&key),
        None => context.out.null(),
    }
    Ok(())
}
