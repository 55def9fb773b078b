//! The rules that the machines keep, each of which a test can take away (`mutants.rs`).

/// A rule whose absence the tests must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Sequence numbers are compared modulo 2^32.
    Wrap,
    /// Of a segment that is partly old the new bytes are taken in, and only these.
    Tail,
    /// A header has a length that a message can have.
    Length,
    /// Nothing is decrypted before software has confirmed the candidate.
    Confirm,
    /// An answer counts for the candidate and generation it was asked for.
    Generation,
    /// A device with another key is told nothing.
    SameKey,
    /// An byte that may be a keepalive's is not taken for the stream's.
    Keepalive,
    /// A packet in which a message fails goes up as it came.
    Failing,
    /// A record is released without a check only where all of it was decrypted.
    Whole,
    /// And by one pass.
    OnePass,
    /// Where the device has seen it start, with the number that it has.
    Located,
    /// What was decrypted as a part of another message is undone as that.
    Undo,
    /// What was decrypted is encrypted again before it is authenticated.
    Restore,
    /// A packet whose message is not known is dropped.
    FailClosed,
    /// A message that was sent is kept until all of it is acknowledged.
    Acknowledged,
    /// Data is placed only for the registration that its header met.
    Registration,
    /// Only by bytes behind all that the device has seen.
    Fresh,
    /// Only within the registered length.
    Bounds,
    /// Only behind what was placed before in the buffer.
    Again,
    /// Only after a header whose digest is right.
    HeaderFirst,
    /// Software takes for placed only what is where it would copy it.
    Destination,
    /// A PDU is taken for checked only where the device has seen it start where it starts.
    Aligned,
    /// Software computes what the device has not checked to the end.
    Recheck,
    /// What a record's type byte denies is not taken for the inner protocol's.
    InnerType,
    /// Where the outer machine has missed something, the inner one has too.
    InnerGap,
    /// What is sent again has the inner digests in it.
    InnerReplay,
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
