//! Decodes a table of call sites. Its bytes come from another process and are not trusted.

use unlade_copy_scheduler::admit::{CLASSES, Cause, RECENT_WORDS, Recent, State, View};

use super::layout::{
    CHANGE_WORDS, MAGIC, SITE_WORDS, VERSION, change, change_at, halves, header, site, site_at,
    words, written,
};
use super::report::{Change, Counts, Off, Report, Serving, Site};

/// Error in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is no table.
    #[error("its bytes are no table of call sites")]
    NoTable,
    /// Another version of the library wrote it.
    #[error("its table has version {0}, this program reads {VERSION}; use the same build")]
    Version(u64),
    /// Its size is not the one that its header says.
    #[error("its table has {0} bytes, which its header does not say")]
    Size(usize),
    /// A word of the header is invalid.
    #[error("word {0} of its table's header is invalid")]
    Header(usize),
    /// A word of a site is invalid.
    #[error("word {word} of site {site} of its table is invalid")]
    Site {
        /// Number of the site.
        site: usize,
        /// The word.
        word: usize,
    },
    /// A word of a change is invalid.
    #[error("word {word} of change {change} of its table is invalid")]
    Change {
        /// Number of the change.
        change: u64,
        /// The word.
        word: usize,
    },
}

/// Decodes the bytes of a table.
///
/// # Errors
/// [`DecodeError`]: they are not what the library writes.
pub fn decode(bytes: &[u8]) -> Result<Report, DecodeError> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let image: Vec<u64> = chunks.iter().map(|chunk| u64::from_ne_bytes(*chunk)).collect();
    let head = |at: usize| image.get(at).copied().ok_or(DecodeError::NoTable);
    if head(header::MAGIC)? != MAGIC {
        return Err(DecodeError::NoTable);
    }
    if head(header::VERSION)? != VERSION {
        return Err(DecodeError::Version(head(header::VERSION)?));
    }
    let (sites, changes) = (head(header::SITES)?, head(header::CHANGES)?);
    if words(sites, changes) != Some(image.len()) || !rest.is_empty() {
        return Err(DecodeError::Size(bytes.len()));
    }
    let pid = u32::try_from(head(header::PID)?).ok().filter(|pid| *pid != 0);
    let mut report = Report::empty(pid.ok_or(DecodeError::Header(header::PID))?);
    let off = Off::from_code(head(header::OFF)?);
    report.off = off.ok_or(DecodeError::Header(header::OFF))?;
    report.clients = head(header::CLIENTS)?;
    report.unshown = head(header::UNSHOWN)?;
    // Sequence numbers repeat above.
    let changed = Some(head(header::CHANGED)?).filter(|changed| *changed <= u64::MAX / 4);
    report.changes_total = changed.ok_or(DecodeError::Header(header::CHANGED))?;
    // Both fit: their sizes were checked.
    let (sites, changes) = (sites as usize, changes as usize);
    for number in 0..sites {
        let words = &image[site_at(number)..][..SITE_WORDS];
        match words {
            _ if words[site::CLIENT] == 0 => {}
            _ if !words[site::SEQUENCE].is_multiple_of(2) => report.unsettled += 1,
            _ => {
                let site = decode_site(words);
                report.sites.push(site.map_err(|word| DecodeError::Site { site: number, word })?);
            }
        }
    }
    let bytes = |site: &Site| site.counts.at_once_bytes.saturating_add(site.counts.queued_bytes);
    report.sites.sort_by_key(|site| std::cmp::Reverse(bytes(site)));
    let kept = report.changes_total.min(changes as u64);
    for number in report.changes_total - kept..report.changes_total {
        let entry = (number % changes as u64) as usize;
        let words = &image[change_at(sites, entry)..][..CHANGE_WORDS];
        if words[change::SEQUENCE] != written(number) {
            report.unsettled += 1;
            continue;
        }
        let change = decode_change(number, words);
        let change = change.map_err(|word| DecodeError::Change { change: number, word })?;
        report.changes.push(change);
    }
    Ok(report)
}

/// Decodes a site; the number of the invalid word otherwise.
fn decode_site(words: &[u64]) -> Result<Site, usize> {
    let client = u32::try_from(words[site::CLIENT]).map_err(|_| site::CLIENT)?;
    let [class, state, cause, serving, 0, 0, 0, 0] = words[site::KIND].to_le_bytes() else {
        return Err(site::KIND);
    };
    let class = Some(usize::from(class)).filter(|class| *class < CLASSES).ok_or(site::KIND)?;
    let [line, runs] = halves(words[site::LINE_RUNS]);
    let mut recents = [Recent::default(); 5];
    for (recent, at) in recents.iter_mut().zip((site::SAMPLES..).step_by(RECENT_WORDS / 2)) {
        *recent = samples(&words[at..][..RECENT_WORDS / 2]).ok_or(at)?;
    }
    let [copy, inline, window, base, submit] = recents;
    let [wait_ns, forecast_ns] = times(words[site::WAIT_FORECAST]).ok_or(site::WAIT_FORECAST)?;
    let [allowance_ns, _] = numbers(words[site::ALLOWANCE]).ok_or(site::ALLOWANCE)?;
    let lost_ns = f64::from_bits(words[site::LOST]);
    let lost_ns = Some(lost_ns).filter(|it| it.is_finite() && *it >= 0.0).ok_or(site::LOST)?;
    let file = name(&words[site::NAME..][..site::NAME_WORDS]).ok_or(site::NAME)?;
    let view = View {
        state: State::from_code(state).ok_or(site::KIND)?,
        cause: Cause::from_code(cause).ok_or(site::KIND)?,
        copy,
        inline,
        window,
        base,
        submit,
        wait_ns,
        forecast_ns,
        allowance_ns,
        lost_ns,
        runs: u16::try_from(runs).map_err(|_| site::LINE_RUNS)?,
    };
    Ok(Site {
        client,
        serving: Serving::from_code(serving).ok_or(site::KIND)?,
        address: words[site::ADDRESS],
        file,
        line,
        class,
        since_ns: words[site::SINCE],
        counts: Counts {
            at_once: words[site::AT_ONCE],
            at_once_bytes: words[site::AT_ONCE_BYTES],
            queued: words[site::QUEUED],
            queued_bytes: words[site::QUEUED_BYTES],
            full: words[site::FULL],
            unreachable: words[site::UNREACHABLE],
        },
        view,
    })
}

/// Decodes a change; the number of the invalid word otherwise.
fn decode_change(number: u64, words: &[u64]) -> Result<Change, usize> {
    let [class, from, to, cause, 0, 0, 0, 0] = words[change::KIND].to_le_bytes() else {
        return Err(change::KIND);
    };
    let class = Some(usize::from(class)).filter(|class| *class < CLASSES);
    let [inline_ns, queued_ns] = times(words[change::TIMES]).ok_or(change::TIMES)?;
    let [window_ns, allowance_ns] =
        numbers(words[change::WINDOW_ALLOWANCE]).ok_or(change::WINDOW_ALLOWANCE)?;
    Ok(Change {
        number,
        at_ns: words[change::AT],
        client: u32::try_from(words[change::CLIENT]).map_err(|_| change::CLIENT)?,
        address: words[change::ADDRESS],
        class: class.ok_or(change::KIND)?,
        from: State::from_code(from).ok_or(change::KIND)?,
        to: State::from_code(to).ok_or(change::KIND)?,
        cause: Cause::from_code(cause).ok_or(change::KIND)?,
        inline_ns,
        queued_ns,
        window_ns: Some(window_ns).filter(|ns| *ns >= 0.0).ok_or(change::WINDOW_ALLOWANCE)?,
        allowance_ns,
    })
}

fn samples(words: &[u64]) -> Option<Recent> {
    let mut all = [0; RECENT_WORDS];
    for (word, pair) in words.iter().zip(all.as_chunks_mut::<2>().0) {
        *pair = halves(*word);
    }
    Recent::from_words(&all)
}

/// Two numbers.
fn numbers(word: u64) -> Option<[f32; 2]> {
    let both = halves(word).map(f32::from_bits);
    both.iter().all(|number| number.is_finite()).then_some(both)
}

/// Two times, which are not negative.
fn times(word: u64) -> Option<[f32; 2]> {
    numbers(word).filter(|both| both.iter().all(|number| *number >= 0.0))
}

/// A name without control characters, which a terminal would obey; none if it is empty.
fn name(words: &[u64]) -> Option<Option<String>> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok()?;
    let is_plain = !text.chars().any(char::is_control);
    is_plain.then(|| (!text.is_empty()).then(|| text.to_owned()))
}
