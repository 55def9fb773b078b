//! Global counters of the programs, besides the counters of each flow.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, MapData};
use unlade_metrics::{Event, Gauge, Meter};

use crate::error::SteerError;
use crate::hold::HoldCounters;

/// Numbers of events since the last call: `enum count` of bpf/maps.h, in its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments with a wrong checksum that would have changed the tracked state of a flow.
    pub corrupt: u64,
    /// Packets dropped because they had been redirected too often.
    pub hops_exceeded: u64,
    /// Fragments dropped because their flow was between two owners.
    pub fragments_dropped: u64,
    /// Packets dropped because of too many IPv6 extension headers.
    pub extensions_dropped: u64,
    /// ICMP errors redirected to the owner of their flow.
    pub errors_redirected: u64,
    /// ICMP errors dropped because the quoted segment is not in flight.
    pub errors_refused: u64,
    /// SYNs dropped once because the last connection of the client's port has an owner.
    pub syns_delayed: u64,
}

impl Counts {
    /// Adds the numbers to a meter.
    pub(crate) fn add_to(&self, meter: &Meter) {
        for (event, count) in [
            (Event::SegmentCorrupt, self.corrupt),
            (Event::HopsExceeded, self.hops_exceeded),
            (Event::FragmentDropped, self.fragments_dropped),
            (Event::ExtensionsExceeded, self.extensions_dropped),
            (Event::IcmpRedirected, self.errors_redirected),
            (Event::IcmpRefused, self.errors_refused),
            (Event::SynDelayed, self.syns_delayed),
        ] {
            meter.add_n(event, count);
        }
    }
}

/// The numbers of held and redirected packets that a meter has already.
#[derive(Debug, Default)]
pub(crate) struct ReportedPackets(Mutex<[u64; 5]>);

impl ReportedPackets {
    /// Adds what is new to a meter. `redirected` are packets and bytes.
    pub(crate) fn add_to(&self, meter: &Meter, hold: &HoldCounters, redirected: (u64, u64)) {
        let now = [
            (Event::PacketsHeld, hold.held),
            (Event::PacketsReplayed, hold.replayed),
            (Event::PacketsLost, hold.lost),
            (Event::PacketsRedirected, redirected.0),
            (Event::BytesRedirected, redirected.1),
        ];
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((event, count), before) in now.into_iter().zip(reported.iter_mut()) {
            meter.add_n(event, count.saturating_sub(*before));
            *before = count;
        }
        meter.gauge_set(Gauge::HeldBytes, hold.waiting_bytes as i64);
    }
}

/// Number of entries of the map.
const COUNTS: usize = 7;

/// The map, and the values at the last call of `take`.
pub(crate) struct Counters {
    map: Array<MapData, u64>,
    taken: Mutex<[u64; COUNTS]>,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Counters {
    pub(crate) fn new(map: Array<MapData, u64>) -> Counters {
        Counters { map, taken: Mutex::default() }
    }

    pub(crate) fn take(&self) -> Result<Counts, SteerError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = [0; COUNTS];
        for (index, news) in (0..).zip(&mut news) {
            *news = self.map.get(&index, 0).map_err(SteerError::Map)?;
        }
        for (news, taken) in news.iter_mut().zip(taken.iter_mut()) {
            let now = *news;
            *news = now.wrapping_sub(*taken);
            *taken = now;
        }
        let [corrupt, hops_exceeded, fragments_dropped, extensions_dropped, rest @ ..] = news;
        let [redirected, refused, syns_delayed] = rest;
        Ok(Counts {
            corrupt,
            hops_exceeded,
            fragments_dropped,
            extensions_dropped,
            errors_redirected: redirected,
            errors_refused: refused,
            syns_delayed,
        })
    }
}
