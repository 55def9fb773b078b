//! Deadlines of a connection's timers.

use crate::time::Time;

/// Deadlines of the timers; `NEVER` if a timer is not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) retransmit: Time,
    pub(super) tail_probe: Time,
    pub(super) reorder: Time,
    pub(super) persist: Time,
    pub(super) delayed_ack: Time,
    pub(super) keepalive: Time,
    pub(super) time_wait: Time,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            retransmit: Time::NEVER,
            tail_probe: Time::NEVER,
            reorder: Time::NEVER,
            persist: Time::NEVER,
            delayed_ack: Time::NEVER,
            keepalive: Time::NEVER,
            time_wait: Time::NEVER,
        }
    }
}

impl Timers {
    #[inline]
    pub(super) fn next(&self) -> Time {
        self.retransmit
            .min(self.tail_probe)
            .min(self.reorder)
            .min(self.persist)
            .min(self.delayed_ack)
            .min(self.keepalive)
            .min(self.time_wait)
    }
}
