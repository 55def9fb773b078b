//! Commands on single bits of values.

use crate::bits::{self, Operation};
use crate::command::ranges::{edit, within};
use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::parse::number;
use crate::value::{Lost, Origin};

/// Returns the word 2 as the offset of a bit.
fn offset<C: Copies>(context: &Context<'_, C>) -> Result<u64, Failure> {
    let wrong = || Failure::text("bit offset is not an integer or out of range");
    let offset = number(context.word(2)).ok_or_else(wrong)?;
    let offset = u64::try_from(offset).map_err(|_| wrong())?;
    let is_within = offset / 8 < context.state.limits.value_bytes_max as u64;
    is_within.then_some(offset).ok_or_else(wrong)
}

pub(crate) fn setbit<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let offset = offset(context)?;
    let bit = match context.word(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Failure::text("bit is not an integer or out of range")),
    };
    let key = context.word(1);
    let len = context.value(key).map_or(0, |value| value.len() as u64);
    context.check_memory((offset / 8 + 1).saturating_sub(len) as usize)?;
    let before = edit(context, key, |bytes| bits::set(bytes, offset, bit))?;
    context.out.integer(i64::from(before));
    Ok(())
}

pub(crate) fn getbit<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let offset = offset(context)?;
    let key = context.word(1);
    let bit = context.read(key, |bytes| bits::get(bytes, offset))?;
    context.out.integer(i64::from(bit == Some(true)));
    Ok(())
}

/// Returns the number of bits of the unit in the word `index`.
fn unit<C: Copies>(context: &Context<'_, C>, index: usize) -> Result<u64, Failure> {
    match context.word(index).to_ascii_lowercase().as_slice() {
        b"bit" => Ok(1),
        b"byte" => Ok(8),
        _ if index >= context.words.len() => Ok(8),
        _ => Err(Failure::Syntax),
    }
}

/// Returns the range of bits that the words from `first` on select: start, end, unit. Like Redis,
/// `BITCOUNT` takes a range of two negative numbers in the wrong order as empty and does not look at
/// its unit, and `BITPOS` looks at the unit before the end.
fn selected<C: Copies>(
    context: &Context<'_, C>,
    first: usize,
    len: usize,
    is_backwards_empty: bool,
) -> Result<bits::Range, Failure> {
    let count = context.words.len();
    if count > first + 3 {
        return Err(Failure::Syntax);
    }
    let start = if count > first { context.integer(first)? } else { 0 };
    if !is_backwards_empty {
        unit(context, first + 2)?;
    }
    let end = if count > first + 1 { context.integer(first + 1)? } else { -1 };
    if is_backwards_empty && start < 0 && end < 0 && start > end {
        return Ok(0..0);
    }
    let bits = unit(context, first + 2)?;
    let range = within(len as u64 * 8 / bits, start, end);
    Ok(range.start * bits..range.end * bits)
}

pub(crate) fn bitcount<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let key = context.word(1);
    let count = match context.lookup(key) {
        None => 0,
        Some(_) if context.words.len() == 3 => return Err(Failure::Syntax),
        Some(value) => {
            let range = selected(context, 2, value.len(), true)?;
            let bytes = value.bytes().map_err(|Lost| context.lose(key))?;
            bits::count(bytes, &range)
        }
    };
    context.out.integer(count as i64);
    Ok(())
}

pub(crate) fn bitpos<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let bit = match context.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err(Failure::text("The bit argument must be 1 or 0.")),
    };
    let key = context.word(1);
    let Some(value) = context.lookup(key) else {
        context.out.integer(if bit { -1 } else { 0 });
        return Ok(());
    };
    let range = selected(context, 3, value.len(), false)?;
    let bytes = value.bytes().map_err(|Lost| context.lose(key))?;
    let found = bits::position(bytes, bit, &range);
    // Without an end, zeros follow the value.
    let is_open = !bit && context.words.len() < 5 && !range.is_empty();
    let behind = is_open.then_some(range.end);
    context.out.integer(found.or(behind).map_or(-1, |at| at as i64));
    Ok(())
}

pub(crate) fn bitop<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let operation = match context.word(1).to_ascii_lowercase().as_slice() {
        b"and" => Operation::And,
        b"or" => Operation::Or,
        b"xor" => Operation::Xor,
        b"not" => Operation::Not,
        _ => return Err(Failure::Syntax),
    };
    if operation == Operation::Not && context.words.len() != 4 {
        let said = "BITOP NOT must be called with a single source key.";
        return Err(Failure::text(said));
    }
    let mut values = Vec::new();
    for key in context.words.from(3) {
        values.push((key, context.lookup(key)));
    }
    let mut sources: Vec<&[u8]> = Vec::new();
    for (key, value) in &values {
        let bytes = value.as_ref().map_or(Ok(&b""[..]), |value| value.bytes());
        sources.push(bytes.map_err(|Lost| context.lose(key))?);
    }
    context.check_memory(sources.iter().map(|value| value.len()).max().unwrap_or(0))?;
    let result = bits::combine(operation, &sources);
    let (target, now_ms) = (context.word(2), context.state.now_ms);
    if result.is_empty() {
        context.store().remove(target, now_ms);
    } else {
        let value = context.make(&result, Origin::Edited);
        context.store().set(target, value, None);
    }
    context.out.integer(result.len() as i64);
    Ok(())
}
