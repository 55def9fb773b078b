//! Explanations in words.

use std::fmt;

use unlade_copy_scheduler::admit::{
    Cause, EARNED, ENTER, FIRST_COPIES, HANDOFF_NS, LEAVE, QUEUED_BYTES_MIN, State,
};

use super::report::{Change, Serving, Site};

/// Returns a time with a unit, for instance `12.3 us`.
pub fn time_text(ns: f64) -> String {
    Time(ns).to_string()
}

/// A time in words.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Windows that no sync has ended are as long as the type can tell.
        const NEVER_NS: f64 = u32::MAX as f64;
        match self.0 {
            ns if ns >= NEVER_NS => f.write_str("4 s or more"),
            ns if ns < 999.5 => write!(f, "{ns:.0} ns"),
            ns if ns < 999_500.0 => write!(f, "{} us", Three(ns / 1e3)),
            ns if ns < 999_500_000.0 => write!(f, "{} ms", Three(ns / 1e6)),
            ns => write!(f, "{} s", Three(ns / 1e9)),
        }
    }
}

/// Three digits.
struct Three(f64);

impl fmt::Display for Three {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0 {
            number if number < 9.995 => 2,
            number if number < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{:.*}", digits, self.0)
    }
}

fn time(ns: f32) -> Time {
    Time(ns.into())
}

impl Site {
    /// Place of the site in the program: file and line, or what else is known of it.
    pub fn place(&self) -> String {
        match &self.file {
            Some(file) if self.line > 0 => format!("{file}:{}", self.line),
            Some(file) => file.clone(),
            None if self.address == 0 => "(no site)".to_owned(),
            None => format!("{:#x}", self.address),
        }
    }

    /// The reason for the state of the site, in words.
    pub fn reason(&self) -> String {
        let mut text = self.cause();
        let (daemon, counts) = (self.serving == Serving::Daemon, &self.counts);
        if counts.unreachable > 0 {
            let whose = match daemon {
                true => "are not in memory that is shared with the daemon",
                false => "belong to a parent, whose service this process does not have",
            };
            text += &format!("; {} copies {whose}, and were made at once", counts.unreachable);
        }
        if counts.full > 0 {
            text +=
                &format!("; {} copies found the queue full, and were made at once", counts.full);
        }
        text
    }

    fn cause(&self) -> String {
        let view = &self.view;
        let inline_ns = view.inline.median().unwrap_or(0.0);
        let queued_ns = view.queued_ns().unwrap_or(view.forecast_ns);
        let (inline, queued) = (time(inline_ns), time(queued_ns));
        match view.cause {
            Cause::Short => format!(
                "copies of fewer than {QUEUED_BYTES_MIN} bytes are made at once: queueing one takes \
                 as long as making it"
            ),
            Cause::Unmeasured => format!(
                "{} of the {FIRST_COPIES} copies are measured that are made at once first",
                view.inline.count().min(FIRST_COPIES)
            ),
            Cause::Forecast => self.forecast(inline_ns),
            Cause::Asleep if view.state == State::AtOnce => {
                "queueing is expected to pay, but the service sleeps, or has ended; it is woken as \
                 the allowance permits"
                    .to_owned()
            }
            Cause::Asleep => "queueing pays, but the service sleeps, or has ended; until it is \
                              awake, copies are made at once"
                .to_owned(),
            Cause::Trial => format!(
                "queued copies are tried and measured: {} are expected for one, {inline} are \
                 measured for one at once",
                time(view.forecast_ns)
            ),
            Cause::TrialLost => format!(
                "a trial gained too little: a queued copy took {queued}, one at once takes \
                 {inline}, and queueing begins below {ENTER} of that; the next trial comes after \
                 {} runs of copies",
                view.runs
            ),
            Cause::Pays => format!(
                "a queued copy takes {queued} ({} to submit, {} of waiting, the rest to read its \
                 bytes), one at once takes {inline}; the window is {}",
                time(view.submit.median().unwrap_or(0.0)),
                time(view.wait_ns),
                self.window()
            ),
            Cause::Loses => format!(
                "queued copies took {queued} in several runs, which is more than {LEAVE} of the \
                 {inline} of one at once; the next trial comes after {} runs of copies",
                view.runs
            ),
            Cause::Late => format!(
                "syncs had to wait for queued copies, which took more time than copies at once \
                 ({inline}); the window is {}, and the next trial comes after {} runs of copies",
                self.window(),
                view.runs
            ),
            Cause::Allowance => format!(
                "queueing has lost {} here, and the allowance was used up; it is {}, grows by {} % of \
                 the time of all copies of the site, and queueing is considered again after some runs",
                Time(view.lost_ns),
                allowance(view.allowance_ns),
                f64::from(EARNED * 100.0).round()
            ),
        }
    }

    /// Why the cost model expects no gain.
    fn forecast(&self, inline_ns: f32) -> String {
        let view = &self.view;
        let needed_ns = HANDOFF_NS + view.copy.median().unwrap_or(inline_ns);
        let (needed, queued, inline) = (time(needed_ns), time(view.forecast_ns), time(inline_ns));
        match view.window_ns() {
            None => format!(
                "no sync of its bytes was seen after a copy, so no window is known; without one, a \
                 queued copy would take {queued}, one at once takes {inline}"
            ),
            Some(window_ns) if window_ns < needed_ns => format!(
                "the window of {} is shorter than the {needed} in which the service begins and \
                 makes a copy; a queued copy would take {queued}, one at once takes {inline}",
                time(window_ns)
            ),
            Some(window_ns) => format!(
                "the window of {} is long enough, but a queued copy would take {queued}, and \
                 queueing begins below {ENTER} of the {inline} of one at once",
                time(window_ns)
            ),
        }
    }

    /// The window in words.
    pub fn window(&self) -> String {
        self.view.window_ns().map_or_else(|| "not known".to_owned(), |ns| time(ns).to_string())
    }
}

impl Change {
    /// The reason for the change, in words.
    pub fn reason(&self) -> String {
        let (inline, queued) = (time(self.inline_ns), time(self.queued_ns));
        let compared = format!("queued {queued}, at once {inline}");
        let window = time(self.window_ns);
        match self.cause {
            Cause::Short => "too short to be queued".to_owned(),
            Cause::Unmeasured => "not measured yet".to_owned(),
            Cause::Forecast => format!("no gain expected: {compared}, window {window}"),
            Cause::Asleep => "the service sleeps, or has ended".to_owned(),
            Cause::Trial => format!("a gain expected: {compared}, window {window}"),
            Cause::TrialLost => format!("the trial gained too little: {compared}"),
            Cause::Pays => format!("queueing pays: {compared}"),
            Cause::Loses => format!("queueing lost: {compared}"),
            Cause::Late => format!("syncs had to wait: window {window}, at once {inline}"),
            Cause::Allowance => format!(
                "the allowance for losses was used up; with the next copies it is {}",
                allowance(self.allowance_ns)
            ),
        }
    }
}

/// An allowance, which may be negative.
fn allowance(ns: f32) -> String {
    match ns < 0.0 {
        true => format!("exceeded by {}", time(-ns)),
        false => time(ns).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let text = |ns: f64| Time(ns).to_string();
        assert_eq!((text(0.0), text(999.0)), ("0 ns".to_owned(), "999 ns".to_owned()));
        assert_eq!((text(999.7), text(12_340.0)), ("1.00 us".to_owned(), "12.3 us".to_owned()));
        assert_eq!((text(999_600.0), text(2e9)), ("1.00 ms".to_owned(), "2.00 s".to_owned()));
        assert_eq!(text(u32::MAX.into()), "4 s or more");
    }
}
