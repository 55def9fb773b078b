//! Rules that the connection keeps, each of which a test can take away (`mutants.rs`).

/// A rule whose absence the tests must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Of bytes that come twice the first are kept.
    FirstWins,
    /// Bytes beyond the window are cut off.
    Edge,
    /// What was sent again says nothing of the round-trip time (Karn).
    Karn,
    /// Where nothing else can happen, a closed window is probed.
    Probe,
    /// Bytes behind a hole are waited for before the hole is taken for lost.
    Reordering,
}

#[cfg(test)]
thread_local! {
    /// The rule that is taken away on this thread.
    pub(crate) static OFF: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// True unless a test has taken the rule away.
#[inline(always)]
pub(crate) fn holds(rule: Rule) -> bool {
    #[cfg(test)]
    return OFF.get() != Some(rule);
    #[cfg(not(test))]
    {
        let _ = rule;
        true
    }
}
