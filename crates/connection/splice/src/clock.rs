//! The timestamps that a connection's peer sees.

use crate::segment::Timestamps;

/// Time by which another host's values are ahead of the socket's, ms: its estimate of the socket's
/// clock may be this late. The socket's values after a splice are ahead by twice the time.
pub(crate) const CLOCK_MARGIN_MS: u32 = 4;

/// The clock of one direction: the socket's values, advanced so that they never go back behind a
/// value that another host has sent for the connection (RFC 7323 §5).
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The connection uses timestamps.
    pub(crate) is_used: bool,
    /// Value that the peer sees less the socket's, ms.
    pub(crate) shift: u32,
    /// The peer's newest echo of a value that it saw.
    pub(crate) echoed: u32,
    /// The newest value of the peer.
    pub(crate) peer: u32,
    /// The socket's newest value that was seen, and when, ms.
    pub(crate) value: u32,
    pub(crate) at_ms: u64,
}

impl Clock {
    /// Returns true if the connection uses timestamps.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns the newest value of the peer.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// Notes the timestamps of a segment from the peer, and returns them as the socket would see
    /// them if it had sent everything.
    pub(crate) fn received(&mut self, seen: Option<Timestamps>) -> Option<Timestamps> {
        let Timestamps { value, echo } = seen?;
        if !self.is_used || is_after(value, self.peer) {
            self.peer = value;
        }
        if !self.is_used || is_after(echo, self.echoed) {
            self.echoed = echo;
        }
        self.is_used = true;
        Some(Timestamps { value, echo: echo.wrapping_sub(self.shift) })
    }

    /// Returns an echo of the peer as the socket would see it.
    pub(crate) fn of_socket(&self, echo: u32) -> u32 {
        echo.wrapping_sub(self.shift)
    }

    /// Returns the timestamps that the peer is to see for those of the socket.
    pub(crate) fn sent(&mut self, own: Option<Timestamps>, now_ms: u64) -> Option<Timestamps> {
        let Timestamps { value, echo } = own?;
        (self.value, self.at_ms) = (value, now_ms);
        let shown = value.wrapping_add(self.shift);
        if self.is_used && is_after(self.echoed, shown) {
            self.shift = self.echoed.wrapping_sub(value);
        }
        Some(Timestamps { value: value.wrapping_add(self.shift), echo })
    }

    /// Returns the peer's newest echo.
    pub(crate) fn echoed(&self) -> Option<u32> {
        self.is_used.then_some(self.echoed)
    }

    /// Advances all later values.
    pub(crate) fn advance(&mut self, ms: u32) {
        self.shift = self.shift.wrapping_add(ms);
    }

    /// Returns the value that the peer would see now. The socket's clock counts milliseconds, as
    /// that of Linux does.
    pub(crate) fn now(&self, now_ms: u64) -> u32 {
        let passed = now_ms.saturating_sub(self.at_ms) as u32;
        self.value.wrapping_add(passed).wrapping_add(self.shift)
    }
}

/// The peer's clock, as this host last saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerClock {
    pub(crate) seen: Option<(u32, u64)>,
}

impl PeerClock {
    pub(crate) fn note(&mut self, seen: Option<Timestamps>, now_ms: u64) {
        if let Some(Timestamps { value, .. }) = seen {
            self.seen = Some((value, now_ms));
        }
    }

    /// Returns its value now, if it counts milliseconds.
    pub(crate) fn now(&self, now_ms: u64) -> Option<u32> {
        let (value, at_ms) = self.seen?;
        Some(value.wrapping_add(now_ms.saturating_sub(at_ms) as u32))
    }
}

pub(crate) fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}
