//! Initial sequence numbers (RFC 6528).

use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;
use unlade_net::{FlowKey, SeqNumber};

use crate::time::Time;

/// Generator of initial sequence numbers, which are unpredictable without the secret and increase
/// with time for each pair of endpoints.
#[derive(Clone, Debug)]
pub struct InitialSequence {
    secret: [u8; 16],
}

impl InitialSequence {
    /// Creates a generator; `secret` is random, and new at each start.
    pub fn new(secret: [u8; 16]) -> InitialSequence {
        InitialSequence { secret }
    }

    /// Initial sequence number of a connection.
    pub fn of(&self, flow: &FlowKey, now: Time) -> SeqNumber {
        // One increment every four microseconds (RFC 6528 §3).
        SeqNumber((self.hash(flow, 0) as u32).wrapping_add((now.ns() / 4000) as u32))
    }

    /// Offset of the connection's timestamp clock (RFC 7323 §5.4).
    pub fn timestamp_offset(&self, flow: &FlowKey) -> u32 {
        self.hash(flow, 1) as u32
    }

    fn hash(&self, flow: &FlowKey, purpose: u8) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        (purpose, flow).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_depend_on_flow_secret_and_time() {
        let flow = |port| FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        let sequence = InitialSequence::new([1; 16]);
        let first = sequence.of(&flow(1), Time::from_ms(5));
        assert_eq!(first, sequence.of(&flow(1), Time::from_ms(5)));
        assert_eq!(sequence.of(&flow(1), Time::from_ms(9)), first + 1000);
        assert_ne!(first, sequence.of(&flow(2), Time::from_ms(5)));
        assert_ne!(first, InitialSequence::new([2; 16]).of(&flow(1), Time::from_ms(5)));
        assert_ne!(sequence.timestamp_offset(&flow(1)), sequence.timestamp_offset(&flow(2)));
    }
}
