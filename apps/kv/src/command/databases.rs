//! Commands on whole databases.

use crate::context::Context;
use crate::copies::Copies;
use crate::databases::DATABASES;
use crate::failure::{Answer, Failure};
use crate::parse::number;

pub(crate) fn select<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let database = context.database(1)?;
    context.session().database = database;
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn swapdb<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let parse = |index: usize, which: &str| {
        let number = number(context.word(index)).and_then(|it| i32::try_from(it).ok());
        number.ok_or_else(|| Failure::text(format!("invalid {which} DB index")))
    };
    let (one, other) = (parse(1, "first")?, parse(2, "second")?);
    let within = |number: i32| usize::try_from(number).ok().filter(|it| *it < DATABASES);
    let one = within(one).ok_or(Failure::Database)?;
    let other = within(other).ok_or(Failure::Database)?;
    let now_ms = context.state.now_ms;
    context.state.databases.swap(one, other, now_ms);
    context.out.simple("OK");
    Ok(())
}

pub(crate) fn dbsize<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.state.sweep();
    let len = context.store().len();
    context.out.integer(len as i64);
    Ok(())
}

/// `FLUSHALL` and `FLUSHDB`. Both ways to flush are the same here.
pub(crate) fn flush<C: Copies>(context: &mut Context<'_, C>, is_all: bool) -> Answer {
    let how = context.word(1);
    let is_known = how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
    if context.words.len() > 2 || context.words.len() == 2 && !is_known {
        return Err(Failure::Syntax);
    }
    let now_ms = context.state.now_ms;
    match is_all {
        true => context.state.databases.clear(now_ms),
        false => context.store().clear(now_ms),
    }
    context.out.simple("OK");
    Ok(())
}
