//! Commands that count: `INCR` and its relatives.

use crate::command::expiry;
use crate::context::Context;
use crate::copies::Copies;
use crate::extended::Extended;
use crate::failure::{Answer, Failure};
use crate::parse::number;
use crate::value::Origin;

/// `INCR` and `DECR`.
pub(crate) fn step<C: Copies>(context: &mut Context<'_, C>, step: i64) -> Answer {
    add(context, step)
}

/// `INCRBY` and `DECRBY`; `sign` is 1 or -1.
pub(crate) fn step_by<C: Copies>(context: &mut Context<'_, C>, sign: i64) -> Answer {
    let overflow = || Failure::text("decrement would overflow");
    let step = context.integer(2)?.checked_mul(sign).ok_or_else(overflow)?;
    add(context, step)
}

fn add<C: Copies>(context: &mut Context<'_, C>, step: i64) -> Answer {
    let key = context.word(1);
    let before = context.read(key, number)?;
    let before = before.unwrap_or(Some(0)).ok_or(Failure::NotANumber)?;
    let overflow = || Failure::text("increment or decrement would overflow");
    let sum = before.checked_add(step).ok_or_else(overflow)?;
    replace(context, sum.to_string().as_bytes(), Origin::Whole)?;
    context.out.integer(sum);
    Ok(())
}

pub(crate) fn step_by_float<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let key = context.word(1);
    let before = context.read(key, Extended::parse)?;
    let before = before.unwrap_or_else(|| Extended::parse(b"0")).ok_or(Failure::NotAFloat)?;
    let step = Extended::parse(context.word(2)).ok_or(Failure::NotAFloat)?;
    let infinite = || Failure::text("increment would produce NaN or Infinity");
    let sum = before.plus(&step).ok_or_else(infinite)?.text();
    replace(context, sum.as_bytes(), Origin::Text)?;
    context.out.bulk(sum.as_bytes());
    Ok(())
}

/// Replaces the value of the key, and keeps its deadline.
fn replace<C: Copies>(context: &mut Context<'_, C>, bytes: &[u8], origin: Origin) -> Answer {
    context.check_memory(bytes.len())?;
    let key = context.word(1);
    let deadline = expiry::present(context, key);
    let value = context.make(bytes, origin);
    context.store().set(key, value, deadline);
    Ok(())
}
