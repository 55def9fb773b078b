//! Deadlines: `EXPIRE` and its relatives, `TTL` and its relatives, `PERSIST`; and the times in
//! options of other commands.

use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::parse::number;
use crate::store::Deadline;

/// Unit of a time: its milliseconds, and true if it counts from 1970 instead of from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub ms: i64,
    pub is_absolute: bool,
}

impl Unit {
    /// Returns the time in milliseconds since 1970; `None` if it overflows.
    fn time(self, count: i64, now_ms: u64) -> Option<i64> {
        let origin = if self.is_absolute { 0 } else { now_ms as i64 };
        count.checked_mul(self.ms)?.checked_add(origin)
    }
}

/// A lifetime in the options of `SET` and `GETEX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime<'a> {
    /// The number as sent.
    pub text: &'a [u8],
    pub unit: Unit,
}

impl Lifetime<'_> {
    /// Returns the unit of an option in lower case; `None` if it is no lifetime.
    pub fn unit(option: &[u8]) -> Option<Unit> {
        let (ms, is_absolute) = match option {
            b"ex" => (1000, false),
            b"px" => (1, false),
            b"exat" => (1000, true),
            b"pxat" => (1, true),
            _ => return None,
        };
        Some(Unit { ms, is_absolute })
    }

    /// Returns the deadline, which may have passed. `name` is the command's.
    pub fn deadline(self, name: &'static str, now_ms: u64) -> Result<u64, Failure> {
        let count = number(self.text).ok_or(Failure::NotANumber)?;
        let time = self.unit.time(count, now_ms).filter(|_| count > 0);
        time.and_then(|time| u64::try_from(time).ok()).ok_or(Failure::ExpireTime(name))
    }
}

/// Returns the deadline of a key, if it has one.
pub(crate) fn present<C: Copies>(context: &mut Context<'_, C>, key: &[u8]) -> Option<u64> {
    let now_ms = context.state.now_ms;
    match context.store().deadline(key, now_ms) {
        Deadline::At(deadline) => Some(deadline),
        Deadline::Absent | Deadline::Never => None,
    }
}

/// Conditions of `EXPIRE`.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse<C: Copies>(context: &Context<'_, C>) -> Result<Conditions, Failure> {
        let mut conditions = Conditions::default();
        for word in context.words.from(3) {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => conditions.nx = true,
                b"xx" => conditions.xx = true,
                b"gt" => conditions.gt = true,
                b"lt" => conditions.lt = true,
                _ => {
                    let option = String::from_utf8_lossy(word);
                    return Err(Failure::text(format!("Unsupported option {option}")));
                }
            }
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            let said = "NX and XX, GT or LT options at the same time are not compatible";
            return Err(Failure::text(said));
        }
        if conditions.gt && conditions.lt {
            let said = "GT and LT options at the same time are not compatible";
            return Err(Failure::text(said));
        }
        Ok(conditions)
    }

    /// Returns true if a deadline may replace the present one; a key without deadline lasts longer
    /// than any.
    fn allow(self, deadline_ms: i64, present: Option<u64>) -> bool {
        let present = present.map(|at| i64::try_from(at).unwrap_or(i64::MAX));
        let is_refused = self.nx && present.is_some()
            || self.xx && present.is_none()
            || self.gt && present.is_none_or(|at| deadline_ms <= at)
            || self.lt && present.is_some_and(|at| deadline_ms >= at);
        !is_refused
    }
}

pub(crate) fn expire<C: Copies>(context: &mut Context<'_, C>, unit: Unit) -> Answer {
    let conditions = Conditions::parse(context)?;
    let (key, now_ms) = (context.word(1), context.state.now_ms);
    let time = unit.time(context.integer(2)?, now_ms);
    let time = time.ok_or(Failure::ExpireTime(context.command.name))?;
    let present = match context.store().deadline(key, now_ms) {
        Deadline::Absent => {
            context.out.integer(0);
            return Ok(());
        }
        Deadline::Never => None,
        Deadline::At(deadline) => Some(deadline),
    };
    let is_set = conditions.allow(time, present);
    if is_set {
        // A time before 1970 has passed as well.
        let deadline = u64::try_from(time).unwrap_or(0);
        context.store().expire(key, Some(deadline), now_ms);
    }
    context.out.integer(i64::from(is_set));
    Ok(())
}

/// `TTL` and its relatives: the time that is left, or the deadline.
pub(crate) fn ttl<C: Copies>(
    context: &mut Context<'_, C>,
    unit_ms: u64,
    is_absolute: bool,
) -> Answer {
    let (key, now_ms) = (context.word(1), context.state.now_ms);
    let time = match context.store().deadline(key, now_ms) {
        Deadline::Absent => -2,
        Deadline::Never => -1,
        Deadline::At(deadline) => {
            let ms = deadline - if is_absolute { 0 } else { now_ms };
            (ms.saturating_add(unit_ms / 2) / unit_ms) as i64
        }
    };
    context.out.integer(time);
    Ok(())
}

pub(crate) fn persist<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let (key, now_ms) = (context.word(1), context.state.now_ms);
    let has_deadline = present(context, key).is_some();
    if has_deadline {
        context.store().expire(key, None, now_ms);
    }
    context.out.integer(i64::from(has_deadline));
    Ok(())
}
