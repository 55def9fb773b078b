//! A consistent copy of a table that is being written.

use super::layout::{change_at, header, site, site_at, words};

/// Number of attempts to copy a table without an entry that changes meanwhile.
const ATTEMPTS: usize = 4;

/// Copies a table with `read`. Entries that changed meanwhile in every attempt are marked: their
/// sequence numbers are odd.
///
/// # Errors
/// Those of `read`.
pub(super) fn settled<E>(mut read: impl FnMut() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
    let mut before = read()?;
    let mut image = read()?;
    for attempt in 1..=ATTEMPTS {
        let after = read()?;
        let is_changing = mark(&before, &mut image, &after);
        if !is_changing || attempt == ATTEMPTS {
            break;
        }
        before = after;
        image = read()?;
    }
    Ok(image)
}

/// Marks the entries of `image` that may have changed during its copy; returns true if there are
/// any. An entry is whole if its sequence number is the same, and even, in a copy made before it
/// and in one made after it.
fn mark(before: &[u8], image: &mut [u8], after: &[u8]) -> bool {
    let (sites, changes) = (word(image, header::SITES), word(image, header::CHANGES));
    let is_table = words(sites, changes).is_some_and(|words| words * 8 == image.len());
    if !is_table || [before.len(), after.len()] != [image.len(); 2] {
        // The decoder reports it.
        return false;
    }
    let (sites, changes) = (sites as usize, changes as usize);
    let mut is_changing = false;
    let mut check = |at: usize| {
        let sequence = word(image, at);
        if word(before, at) != sequence
            || word(after, at) != sequence
            || !sequence.is_multiple_of(2)
        {
            image[8 * at..][..8].copy_from_slice(&(sequence | 1).to_ne_bytes());
            is_changing = true;
        }
    };
    (0..sites).for_each(|number| check(site_at(number) + site::SEQUENCE));
    (0..changes).for_each(|number| check(change_at(sites, number)));
    is_changing
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes.as_chunks::<8>().0.get(at);
    chunk.map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}
