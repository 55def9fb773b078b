//! Options of the process, from its environment.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The environment variable: `KEY=VALUE` items, separated by colons.
pub const VARIABLE: &str = "UNLADE_PRELOAD_OPTIONS";
/// Default of `from`, in bytes: shorter messages were never faster with a shortened read.
const FROM_BYTES: usize = 128 << 10;
/// Range of `from`.
const FROM_BYTES_RANGE: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 40;
/// Maximum number of reported errors in the variable.
const COMPLAINTS_MAX: usize = 8;

/// How a mechanism is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// Not at all.
    Never,
    /// Where a contest says that it pays.
    Auto,
    /// Wherever it is allowed.
    Always,
}

/// Before the start, calls do what they do without the library.
static LOOP: AtomicU8 = AtomicU8::new(Choice::Never as u8);
static READS: AtomicU8 = AtomicU8::new(Choice::Never as u8);
static FROM: AtomicUsize = AtomicUsize::new(FROM_BYTES);

/// How copies of `len` bytes use the other loop.
pub fn copy_loop(len: usize) -> Choice {
    match len >= FROM.load(Ordering::Relaxed) {
        true => choice(&LOOP),
        false => Choice::Never,
    }
}

/// How first reads are shortened.
pub fn shortened_reads() -> Choice {
    choice(&READS)
}

/// Minimum class (binary logarithm of the length) of messages with a shortened read.
pub fn message_class_min() -> u8 {
    FROM.load(Ordering::Relaxed).ilog2() as u8
}

fn choice(of: &AtomicU8) -> Choice {
    match of.load(Ordering::Relaxed) {
        1 => Choice::Auto,
        2 => Choice::Always,
        _ => Choice::Never,
    }
}

/// Options of the variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// False: every call does what it does without the library.
    pub is_enabled: bool,
    /// Use of the other loop.
    pub copy_loop: Choice,
    /// Use of shortened reads.
    pub reads: Choice,
    /// Minimum length of copies and messages, in bytes.
    pub from: usize,
    /// Place of the counters at the end: `stderr`, or the begin of a path.
    pub statistics: Option<String>,
}

impl Options {
    /// Returns the defaults, changed by the variable's text, and messages for its errors.
    pub fn parse(text: &str) -> (Options, Vec<String>) {
        let mut options = Options {
            is_enabled: true,
            copy_loop: Choice::Auto,
            reads: Choice::Auto,
            from: FROM_BYTES,
            statistics: None,
        };
        let mut complaints = Vec::new();
        for item in text.split(':').filter(|item| !item.is_empty()) {
            if options.set(item).is_none() && complaints.len() < COMPLAINTS_MAX {
                complaints.push(format!(
                    "unlade: {VARIABLE}: `{item}` is ignored; known are enabled=0|1, \
                     loop=never|auto|always, reads=never|auto|always, from=BYTES (65536 and more), \
                     statistics=stderr|PATH"
                ));
            }
        }
        (options, complaints)
    }

    /// Uses the options in this process from now on.
    pub fn apply(&self) {
        FROM.store(self.from, Ordering::Relaxed);
        LOOP.store(self.copy_loop as u8, Ordering::Relaxed);
        READS.store(self.reads as u8, Ordering::Relaxed);
    }

    fn set(&mut self, item: &str) -> Option<()> {
        let (key, value) = item.split_once('=')?;
        match (key, value) {
            ("enabled", "0") => self.is_enabled = false,
            ("enabled", "1") => self.is_enabled = true,
            ("loop", _) => self.copy_loop = parse_choice(value)?,
            ("reads", _) => self.reads = parse_choice(value)?,
            ("from", _) => {
                let bytes = value.parse().ok()?;
                self.from = FROM_BYTES_RANGE.contains(&bytes).then_some(bytes)?;
            }
            ("statistics", _) if !value.is_empty() => self.statistics = Some(value.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

fn parse_choice(value: &str) -> Option<Choice> {
    match value {
        "never" => Some(Choice::Never),
        "auto" => Some(Choice::Auto),
        "always" => Some(Choice::Always),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_parsed_and_errors_are_reported() {
        let (options, complaints) =
            Options::parse("loop=never:reads=always:from=65536:statistics=/tmp/x");
        assert!(complaints.is_empty());
        assert_eq!((options.copy_loop, options.reads), (Choice::Never, Choice::Always));
        assert_eq!((options.from, options.statistics.as_deref()), (65536, Some("/tmp/x")));
        assert!(!Options::parse("enabled=0").0.is_enabled);
        let (options, complaints) =
            Options::parse("enabled=2:loop=yes:reads:from=1:from=x:statistics=:other=1:");
        assert_eq!(complaints.len(), 7);
        assert_eq!(options, Options::parse("").0);
    }
}
