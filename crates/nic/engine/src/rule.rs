//! The invariants of the machines. Ablation tests disable one at a time (`ablation_tests.rs`).

/// An invariant whose violation the tests must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Sequence numbers are compared modulo 2^32.
    Wrap,
    /// Only the new bytes of a partly old segment are processed, and all of them.
    Tail,
    /// A header's length is a length that a message can have.
    Length,
    /// Nothing is decrypted before software has confirmed the candidate.
    Confirm,
    /// A response applies only to the candidate and generation of its request.
    Generation,
    /// Metadata under another key proves nothing.
    SameKey,
    /// A byte that may belong to a keepalive is not processed as a byte of the stream.
    Keepalive,
    /// A packet in which a message fails goes up as it was received.
    Failing,
    /// A record is released without verification only if all of it was decrypted.
    Whole,
    /// All of it was decrypted in one pass.
    OnePass,
    /// The device saw the record's start, with the record's number.
    Located,
    /// Bytes decrypted as a part of another message are restored with that message's parameters.
    Undo,
    /// Decrypted bytes are encrypted again before they are authenticated.
    Restore,
    /// A packet whose message is not known is dropped.
    FailClosed,
    /// A sent message is kept until all of it is acknowledged.
    Acknowledged,
    /// Data is placed only for the registration that was valid at its header.
    Registration,
    /// Data is placed only from bytes after all bytes that the device has seen.
    Fresh,
    /// Data is placed only within the registered length.
    Bounds,
    /// Data is placed only after the bytes of the buffer that were already placed.
    Again,
    /// Data is placed only after a header with a correct digest.
    HeaderFirst,
    /// Software skips a copy only if the placed range is the destination of the copy.
    Destination,
    /// A PDU counts as checked only if the device saw it start at the same position.
    Aligned,
    /// Software computes a digest that the device has not checked completely.
    Recheck,
    /// Content that a record's type byte excludes is not passed to the inner protocol.
    InnerType,
    /// A gap of the outer machine is also a gap of the inner machine.
    InnerGap,
    /// Retransmitted bytes contain the inner digests.
    InnerReplay,
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
