//! Commands that read and write whole values.

use crate::command::expiry::{self, Lifetime};
use crate::context::{Context, Stored};
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::value::Origin;

pub(crate) fn get<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let key = context.word(1);
    let value = context.lookup(key);
    context.answer_value(key, value.as_ref())
}

pub(crate) fn mget<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.out.array(context.words.len() - 1);
    for key in context.words.from(1) {
        let value = context.lookup(key);
        // Within an array, a failure is an element.
        if let Err(failure) = context.answer_value(key, value.as_ref()) {
            context.out.error(&failure.to_string());
        }
    }
    Ok(())
}

/// Conditions and further effects of `SET` and `GETEX`.
#[derive(Clone, Copy, Debug, Default)]
struct Options<'a> {
    must_be_absent: bool,
    must_be_present: bool,
    returns_old: bool,
    keeps_deadline: bool,
    removes_deadline: bool,
    lifetime: Option<Lifetime<'a>>,
}

impl<'a> Options<'a> {
    /// Parses the options from the word `first` on. `None` if they are wrong.
    fn parse<C: Copies>(context: &Context<'a, C>, first: usize, is_set: bool) -> Option<Self> {
        let mut options = Options::default();
        let mut index = first;
        while index < context.words.len() {
            let word = context.word(index).to_ascii_lowercase();
            let has_deadline = options.lifetime.is_some();
            match word.as_slice() {
                b"nx" if is_set && !options.must_be_present => options.must_be_absent = true,
                b"xx" if is_set && !options.must_be_absent => options.must_be_present = true,
                b"get" if is_set => options.returns_old = true,
                b"keepttl" if is_set && !has_deadline => options.keeps_deadline = true,
                b"persist" if !is_set && !has_deadline => options.removes_deadline = true,
                _ => {
                    let unit = Lifetime::unit(&word)?;
                    index += 1;
                    let is_last = index == context.words.len();
                    if is_last || options.keeps_deadline || options.removes_deadline {
                        return None;
                    }
                    let lifetime = Lifetime { text: context.word(index), unit };
                    // The same unit again replaces the number.
                    if options.lifetime.is_some_and(|other| other.unit != unit) {
                        return None;
                    }
                    options.lifetime = Some(lifetime);
                }
            }
            index += 1;
        }
        Some(options)
    }
}

pub(crate) fn set<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let options = Options::parse(context, 3, true).ok_or(Failure::Syntax)?;
    store(context, 2, &options, |context, is_set| match is_set {
        true => context.out.simple("OK"),
        false => context.out.null(),
    })
}

pub(crate) fn setnx<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let options = Options { must_be_absent: true, ..Options::default() };
    store(context, 2, &options, |context, is_set| context.out.integer(i64::from(is_set)))
}

pub(crate) fn setex<C: Copies>(context: &mut Context<'_, C>, unit_ms: i64) -> Answer {
    let unit = expiry::Unit { ms: unit_ms, is_absolute: false };
    let lifetime = Some(Lifetime { text: context.word(2), unit });
    let options = Options { lifetime, ..Options::default() };
    store(context, 3, &options, |context, _| context.out.simple("OK"))
}

pub(crate) fn getset<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let options = Options { returns_old: true, ..Options::default() };
    store(context, 2, &options, |_, _| {})
}

/// Stores the word `index` of the request. `answer` gets true if it was stored; it is not called if
/// the old value is the answer.
fn store<C: Copies>(
    context: &mut Context<'_, C>,
    index: usize,
    options: &Options<'_>,
    answer: impl FnOnce(&mut Context<'_, C>, bool),
) -> Answer {
    let now_ms = context.state.now_ms;
    let deadline = match options.lifetime {
        Some(lifetime) => Some(lifetime.deadline(context.command.name, now_ms)?),
        None => None,
    };
    let key = context.word(1);
    let len = context.apart.as_ref().map_or(context.word(index).len(), |value| value.len());
    context.check_memory(len)?;
    let old = if options.returns_old { context.lookup(key) } else { None };
    let needs_old = options.must_be_absent || options.must_be_present;
    let is_there = needs_old && context.value(key).is_some();
    if options.returns_old {
        context.answer_value(key, old.as_ref())?;
    }
    let is_set = !needs_old || is_there == options.must_be_present;
    if is_set {
        let value = take_value(context, index);
        let kept = if options.keeps_deadline { expiry::present(context, key) } else { None };
        context.store().set(key, value, deadline.or(kept));
    }
    if !options.returns_old {
        answer(context, is_set);
    }
    Ok(())
}

/// Returns the value that the request brings as its word `index`.
fn take_value<C: Copies>(context: &mut Context<'_, C>, index: usize) -> Stored<C> {
    context.apart.take().unwrap_or_else(|| context.make(context.word(index), Origin::Whole))
}

pub(crate) fn getdel<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    get(context)?;
    let now_ms = context.state.now_ms;
    let key = context.word(1);
    context.store().remove(key, now_ms);
    Ok(())
}

pub(crate) fn getex<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let options = Options::parse(context, 2, false).ok_or(Failure::Syntax)?;
    let (key, now_ms) = (context.word(1), context.state.now_ms);
    let Some(value) = context.lookup(key) else {
        context.out.null();
        return Ok(());
    };
    let deadline = match options.lifetime {
        Some(lifetime) => Some(lifetime.deadline(context.command.name, now_ms)?),
        None => None,
    };
    context.answer_value(key, Some(&value))?;
    let has_deadline = expiry::present(context, key).is_some();
    if deadline.is_some() || options.removes_deadline && has_deadline {
        context.store().expire(key, deadline, now_ms);
    }
    Ok(())
}

pub(crate) fn mset<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    check_pairs(context)?;
    set_pairs(context);
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn msetnx<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    check_pairs(context)?;
    let now_ms = context.state.now_ms;
    let has_any = context.words.from(1).step_by(2).any(|key| context.store().has(key, now_ms));
    if !has_any {
        set_pairs(context);
    }
    context.out.integer(i64::from(!has_any));
    Ok(())
}

fn check_pairs<C: Copies>(context: &Context<'_, C>) -> Answer {
    if context.words.len().is_multiple_of(2) {
        return Err(Failure::WrongNumber(context.command.name));
    }
    context.check_memory(context.words.from(2).step_by(2).map(<[u8]>::len).sum())
}

fn set_pairs<C: Copies>(context: &mut Context<'_, C>) {
    for index in (1..context.words.len()).step_by(2) {
        let value = context.make(context.word(index + 1), Origin::Whole);
        let key = context.word(index);
        context.store().set(key, value, None);
    }
}

pub(crate) fn strlen<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    // The length is known before the value has arrived.
    let key = context.word(1);
    let len = context.lookup(key).map_or(0, |value| value.len());
    context.out.integer(len as i64);
    Ok(())
}
