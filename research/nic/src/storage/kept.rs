//! Messages that are kept until they are acknowledged.

use unlade_nic_engine::software::sent::Located;
use unlade_nic_engine::tx::{Found, MessageState};

/// Largest number of unacknowledged PDUs.
pub const PDUS_MAX: usize = 1 << 14;

/// The state of a message whose bytes are copied separately.
pub(super) fn found<B>(located: Located<'_, B>) -> Found<'static> {
    match located {
        Located::Message(kept) => Found::Message(MessageState {
            start: kept.start,
            number: kept.number,
            key: kept.key,
            bytes: &[],
        }),
        Located::Before { until } => Found::Before { until },
        Located::Unknown => Found::Unknown,
    }
}
