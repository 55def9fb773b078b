//! Commands on parts of values, and on two values.

use crate::context::Context;
use crate::copies::Copies;
use crate::failure::{Answer, Failure};
use crate::lcs::{self, Run};
use crate::value::{Lost, Origin};

pub(crate) fn append<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let (key, more) = (context.word(1), context.word(2));
    let Some(value) = context.value(key) else {
        context.check_memory(more.len())?;
        let value = context.make(more, Origin::Whole);
        context.store().set(key, value, None);
        context.out.integer(more.len() as i64);
        return Ok(());
    };
    let before = value.len();
    // The edit needs the only reference to change the value in place.
    drop(value);
    let len = context.check_size((before + more.len()) as u64)?;
    context.check_memory(more.len())?;
    edit(context, key, |bytes| bytes.extend_from_slice(more))?;
    context.out.integer(len as i64);
    Ok(())
}

pub(crate) fn setrange<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let offset = context.integer(2)?;
    let offset = u64::try_from(offset).map_err(|_| Failure::text("offset is out of range"))?;
    let (key, part) = (context.word(1), context.word(3));
    let before = context.value(key).map(|value| value.len());
    if part.is_empty() {
        context.out.integer(before.unwrap_or(0) as i64);
        return Ok(());
    }
    let end = context.check_size(offset.saturating_add(part.len() as u64))?;
    let len = end.max(before.unwrap_or(0));
    context.check_memory(len - before.unwrap_or(0))?;
    edit(context, key, |bytes| {
        bytes.resize(len, 0);
        bytes[end - part.len()..end].copy_from_slice(part);
    })?;
    context.out.integer(len as i64);
    Ok(())
}

/// Changes the bytes of a key's value; a key that does not exist has none at first.
pub(crate) fn edit<C: Copies, T>(
    context: &mut Context<'_, C>,
    key: &[u8],
    change: impl FnOnce(&mut Vec<u8>) -> T,
) -> Result<T, Failure> {
    if context.value(key).is_none() {
        let value = context.make(b"", Origin::Edited);
        context.store().set(key, value, None);
    }
    match context.store().edit(key, change) {
        Some(Ok(result)) => Ok(result),
        Some(Err(Lost)) | None => Err(context.lose(key)),
    }
}

/// Returns the part of `len` elements from `start` to `end`, both inclusive; negative ones count
/// from the end.
pub(crate) fn part(len: u64, start: i64, end: i64) -> std::ops::Range<u64> {
    let is_backwards = start < 0 && end < 0 && start > end;
    if is_backwards { 0..0 } else { within(len, start, end) }
}

/// As [`part`], but indices before the start are the start, whatever their order.
pub(crate) fn within(len: u64, start: i64, end: i64) -> std::ops::Range<u64> {
    let from_start = |index: i64| match u64::try_from(index) {
        Ok(index) => index,
        Err(_) => len.saturating_sub(index.unsigned_abs()),
    };
    let (first, last) = (from_start(start), from_start(end));
    let behind = last.saturating_add(1).min(len);
    if first < behind { first..behind } else { 0..0 }
}

pub(crate) fn getrange<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let (start, end) = (context.integer(2)?, context.integer(3)?);
    let key = context.word(1);
    let Some(value) = context.lookup(key) else {
        context.out.bulk(b"");
        return Ok(());
    };
    let range = part(value.len() as u64, start, end);
    match value.bytes() {
        Ok(bytes) => context.out.bulk(&bytes[range.start as usize..range.end as usize]),
        Err(Lost) => return Err(context.lose(key)),
    }
    Ok(())
}

/// Options of `LCS`.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    length: bool,
    places: bool,
    lengths: bool,
    length_min: i64,
}

impl Wanted {
    fn parse<C: Copies>(context: &Context<'_, C>) -> Result<Wanted, Failure> {
        let mut wanted = Wanted::default();
        let mut index = 3;
        while index < context.words.len() {
            match context.word(index).to_ascii_lowercase().as_slice() {
                b"len" => wanted.length = true,
                b"idx" => wanted.places = true,
                b"withmatchlen" => wanted.lengths = true,
                b"minmatchlen" if index + 1 < context.words.len() => {
                    index += 1;
                    wanted.length_min = context.integer(index)?.max(0);
                }
                _ => return Err(Failure::Syntax),
            }
            index += 1;
        }
        if wanted.length && wanted.places {
            let said = "If you want both the length and indexes, please just use IDX.";
            return Err(Failure::text(said));
        }
        Ok(wanted)
    }
}

pub(crate) fn lcs<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let wanted = Wanted::parse(context)?;
    let mut values = [Vec::new(), Vec::new()];
    let len = |context: &mut Context<'_, C>, index| {
        context.value(context.word(index)).map_or(0, |value| value.len())
    };
    let table = lcs::table_bytes(len(context, 1), len(context, 2));
    if table.is_none_or(|bytes| bytes > context.state.limits.value_bytes_max) {
        let said = "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len";
        return Err(Failure::text(said));
    }
    context.check_memory(table.unwrap_or(0))?;
    for (index, value) in values.iter_mut().enumerate() {
        let key = context.word(index + 1);
        *value = context.read(key, <[u8]>::to_vec)?.unwrap_or_default();
    }
    let [first, second] = values;
    let runs = lcs::runs(&first, &second);
    let total: usize = runs.iter().map(Run::len).sum();
    if wanted.places {
        answer_places(context, &runs, total, wanted);
    } else if wanted.length {
        context.out.integer(total as i64);
    } else {
        let parts = runs.iter().rev().map(|run| &first[run.first.clone()]);
        context.out.bulk(&parts.collect::<Vec<_>>().concat());
    }
    Ok(())
}

fn answer_places<C: Copies>(
    context: &mut Context<'_, C>,
    runs: &[Run],
    total: usize,
    wanted: Wanted,
) {
    let shown: Vec<_> = runs.iter().filter(|run| run.len() as i64 >= wanted.length_min).collect();
    let out = &mut *context.out;
    out.map(2);
    out.bulk(b"matches");
    out.array(shown.len());
    for run in shown {
        out.array(2 + usize::from(wanted.lengths));
        for range in [&run.first, &run.second] {
            out.array(2);
            out.integer(range.start as i64);
            out.integer(range.end as i64 - 1);
        }
        if wanted.lengths {
            out.integer(run.len() as i64);
        }
    }
    out.bulk(b"len");
    out.integer(total as i64);
}

#[cfg(test)]
mod tests {
    use super::{part, within};

    #[test]
    fn parts_are_inclusive_and_count_from_both_ends() {
        for (start, end, expected) in [
            (0, -1, 0..5),
            (1, 2, 1..3),
            (-3, -2, 2..4),
            (-100, 100, 0..5),
            (3, 2, 0..0),
            (5, 9, 0..0),
            (-1, -3, 0..0),
            (0, -9, 0..1),
            (i64::MIN, i64::MAX, 0..5),
        ] {
            assert_eq!(part(5, start, end), expected, "{start} {end}");
        }
        assert_eq!(part(0, 0, -1), 0..0);
        assert_eq!(within(1, -1, -2), 0..1);
    }
}
