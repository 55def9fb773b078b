//! The invariants of the connection. Ablation tests disable one at a time (`ablation_tests.rs`).

/// An invariant whose violation the tests must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Of duplicate bytes the first copy is kept.
    FirstWins,
    /// Bytes beyond the window are discarded.
    Edge,
    /// Retransmitted bytes give no round-trip time sample (Karn).
    Karn,
    /// A closed window is probed if no other event can occur.
    Probe,
    /// Reordering is tolerated before a hole is considered lost.
    Reordering,
}

#[cfg(test)]
thread_local! {
    /// The rule that is disabled on this thread.
    pub(crate) static OFF: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Returns true unless a test has disabled the rule.
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
