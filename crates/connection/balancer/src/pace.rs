//! `offload = "auto"`: detects that clients wait for something other than processor time, above
//! all for a full link of the balancer. Sans-IO.
//!
//! The pace of a connection is the time from one of its requests to the next. The client's part of
//! it is the same whichever host answers. If paces of proxied requests are much slower than those
//! of requests of the same size that servers answer themselves, proxying is the bottleneck, and
//! the route hands over until its traffic falls below what proxying could carry.
//!
//! A client with think time has a slow pace too, without an influence of proxying. Therefore no
//! trial is made and nothing is concluded where clients wait for only a small share of their pace.
//! A trial without a conclusion makes the next one rarer.

use crate::mean::Mean;
use std::time::Duration;

/// Requests whose paces a mean covers.
const WINDOW: f64 = 32.0;
/// Fewest paces of proxied requests, and of handed over ones, for a conclusion.
const PROXIED_MIN: f64 = 8.0;
const DIRECT_MIN: f64 = 4.0;
/// Proxying is the bottleneck if the direct pace is at most this share of the proxied pace, ...
const SHARE_MAX: f64 = 0.6;
/// ... and faster by at least this much: a smaller gain may come from the processors' queue.
const GAIN_US_MIN: f64 = 500.0;
/// A slower pace contains think time of the client.
const PACE_MAX: Duration = Duration::from_secs(2);
/// Size classes: powers of four, from 8 KiB on.
const SIZES: usize = 8;
/// Length of the periods in which traffic is counted. The last [`PERIODS`] are kept.
const PERIOD: Duration = Duration::from_millis(250);
const PERIODS: usize = 8;
/// Below this share of the traffic that proxying carried, it can carry all of it again.
const CARRIED_SHARE: f64 = 0.8;
/// Shortest time in which requests are handed over after that conclusion.
const HOLD: Duration = Duration::from_secs(3);
/// Interval between trials on a route that is slow by proxying, whatever a trial costs; doubled
/// with every trial without a conclusion.
const TRIAL_EVERY: Duration = Duration::from_millis(100);
/// Longest interval between trials.
const TRIAL_EVERY_MAX: Duration = Duration::from_secs(60);
/// If proxying becomes slower by this factor, the interval starts again at its shortest.
const SLOWER: f64 = 2.0;
/// Shortest wait, beyond the processor's time, that counts as slow.
const SLOW_US: f64 = 2_000.0;

/// The host that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    /// The balancer, by proxying.
    Proxied,
    /// A server, directly.
    Direct,
}

/// Paces of one route, microseconds, by size of the response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paces {
    proxied_us: [Mean; SIZES],
    /// The part of the proxied paces in which clients waited.
    waited_us: [Mean; SIZES],
    direct_us: [Mean; SIZES],
    traffic: Traffic,
    bound: Option<Bottleneck>,
    tried: LastTrial,
}

/// The last trial.
#[derive(Clone, Copy, Debug)]
struct LastTrial {
    at: Duration,
    /// Pace of proxied requests at the time of the trial.
    pace_us: f64,
    /// Interval to the next one.
    pause: Duration,
}

impl Default for LastTrial {
    fn default() -> LastTrial {
        LastTrial { at: Duration::ZERO, pace_us: 0.0, pause: TRIAL_EVERY }
    }
}

/// The conclusion that proxying is the bottleneck.
#[derive(Clone, Copy, Debug)]
struct Bottleneck {
    /// Traffic that proxying carried at the time of the conclusion.
    carried_bytes_per_s: f64,
    until: Duration,
}

/// Advice to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Only costs count.
    None,
    /// Hand over: proxying is the bottleneck.
    HandOver,
    /// Hand over this once, as a trial.
    Try,
}

impl Paces {
    /// Learns that `requests` requests with responses of `bytes` bytes altogether took `took`,
    /// from the first of them to the one after the last. `waited`: the part in which the client
    /// waited for the responses, known for proxied ones.
    pub(crate) fn learn(
        &mut self,
        way: AnsweredBy,
        (requests, bytes): (u64, u64),
        took: Duration,
        waited: Duration,
    ) {
        let requests = requests.max(1);
        let each = took / u32::try_from(requests).unwrap_or(u32::MAX);
        if each > PACE_MAX {
            return;
        }
        let means = match way {
            AnsweredBy::Proxied => &mut self.proxied_us,
            AnsweredBy::Direct => &mut self.direct_us,
        };
        let size = size(bytes / requests);
        if let Some(mean) = means.get_mut(size) {
            mean.learn(each.as_secs_f64() * 1e6, WINDOW);
        }
        if let (AnsweredBy::Proxied, Some(mean)) = (way, self.waited_us.get_mut(size)) {
            mean.learn(waited.min(took).as_secs_f64() * 1e6, WINDOW);
        }
    }

    /// Records that clients of the route received `bytes` bytes, from either host. `now`: time
    /// since any origin.
    pub(crate) fn carry(&mut self, bytes: u64, now: Duration) {
        self.traffic.add(bytes, now);
    }

    /// Returns the advice for the next request, whose response will have `bytes` bytes. Proxying
    /// it keeps the worker's processor busy for `busy_us` microseconds.
    pub(crate) fn advise(&mut self, bytes: u64, busy_us: f64, now: Duration) -> Advice {
        let rate = self.traffic.bytes_per_s(now);
        if let Some(bound) = &mut self.bound {
            if rate >= CARRIED_SHARE * bound.carried_bytes_per_s {
                bound.until = now + HOLD;
            }
            if now < bound.until {
                return Advice::HandOver;
            }
            // The traffic is low enough for proxying: the old paces are no evidence any more.
            self.bound = None;
            self.proxied_us = [Mean::default(); SIZES];
            self.waited_us = [Mean::default(); SIZES];
        }
        let (proxied, direct) = (self.proxied_us[size(bytes)], self.direct_us[size(bytes)]);
        if proxied.count < PROXIED_MIN {
            return Advice::None;
        }
        // The rest of the pace is the client's own: neither way saves more than the wait.
        if self.waited_us[size(bytes)].value < (1.0 - SHARE_MAX) * proxied.value {
            return Advice::None;
        }
        // Processor time is a cost, which the policy compares with that of a migration. It is not
        // a wait for something else.
        let idle_us = proxied.value - busy_us;
        if direct.count >= DIRECT_MIN
            && direct.value < SHARE_MAX * idle_us
            && direct.value + GAIN_US_MIN < idle_us
        {
            self.bound = Some(Bottleneck { carried_bytes_per_s: rate, until: now + HOLD });
            return Advice::HandOver;
        }
        if idle_us > SLOW_US && now.saturating_sub(self.tried.at) >= self.tried.pause {
            self.try_now(now, proxied.value, direct.count >= DIRECT_MIN);
            return Advice::Try;
        }
        Advice::None
    }

    /// Starts a trial. `in_vain`: earlier trials have shown that proxying is not the bottleneck.
    fn try_now(&mut self, now: Duration, pace_us: f64, in_vain: bool) {
        let pause = match in_vain && pace_us < SLOWER * self.tried.pace_us {
            true => (self.tried.pause * 2).min(TRIAL_EVERY_MAX),
            false => TRIAL_EVERY,
        };
        self.tried = LastTrial { at: now, pace_us, pause };
    }
}

fn size(bytes: u64) -> usize {
    ((bytes >> 13).checked_ilog2().map_or(0, |log| log as usize / 2 + 1)).min(SIZES - 1)
}

/// Bytes of the last periods.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    bytes: [u64; PERIODS],
    /// Number of the newest period since the origin.
    newest: u64,
    first: Option<u64>,
}

impl Traffic {
    fn advance(&mut self, now: Duration) -> u64 {
        let period = (now.as_millis() / PERIOD.as_millis()) as u64;
        let passed = period.saturating_sub(self.newest).min(PERIODS as u64);
        for step in 1..=passed {
            self.bytes[((self.newest + step) % PERIODS as u64) as usize] = 0;
        }
        self.newest = self.newest.max(period);
        self.first.get_or_insert(self.newest);
        if passed == PERIODS as u64 {
            // After a long pause every slot is of an older period.
            self.bytes = [0; PERIODS];
        }
        self.newest
    }

    fn add(&mut self, bytes: u64, now: Duration) {
        let period = self.advance(now);
        self.bytes[(period % PERIODS as u64) as usize] += bytes;
    }

    /// Returns the rate over the periods that are kept and, if there is one, complete.
    fn bytes_per_s(&mut self, now: Duration) -> f64 {
        let newest = self.advance(now);
        let known = (newest - self.first.unwrap_or(newest)).min(PERIODS as u64 - 1);
        let sum: u64 =
            (1..=known).map(|back| self.bytes[((newest - back) % PERIODS as u64) as usize]).sum();
        match known {
            0 => self.bytes[(newest % PERIODS as u64) as usize] as f64 / PERIOD.as_secs_f64(),
            known => sum as f64 / (known as f64 * PERIOD.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a balancer with a link of `link` bytes a second, servers with links of their own
    /// that carry four times as much, and `clients` that ask again as soon as they have a
    /// response, or `think` later. Returns the bytes a second at the end, and the share handed
    /// over.
    fn world(link: f64, clients: u32, bytes: u64, think: Duration, seconds: u64) -> (f64, f64) {
        let (mut paces, mut now) = (Paces::default(), Duration::ZERO);
        let end = Duration::from_secs(seconds);
        // Time of each client's next request, and times when the paths are free.
        let mut asks = vec![Duration::ZERO; clients as usize];
        let (mut own, mut servers) = (Duration::ZERO, Duration::ZERO);
        let (mut carried, mut handed, mut total) = (0u64, 0u64, 0u64);
        while now < end {
            let next = (0..asks.len()).min_by_key(|&client| asks[client]).unwrap();
            now = asks[next];
            let over = paces.advise(bytes, 0.0, now) != Advice::None;
            let (path, rate) = if over { (&mut servers, 4.0 * link) } else { (&mut own, link) };
            let took = Duration::from_secs_f64(bytes as f64 / rate);
            let done = now.max(*path) + took;
            *path = done;
            asks[next] = done + think + Duration::from_micros(50);
            let way = if over { AnsweredBy::Direct } else { AnsweredBy::Proxied };
            paces.learn(way, (1, bytes), asks[next] - now, done - now);
            paces.carry(bytes, now);
            if now > end / 2 {
                carried += bytes;
                handed += u64::from(over);
                total += 1;
            }
        }
        (carried as f64 / (seconds as f64 / 2.0), handed as f64 / total as f64)
    }

    #[test]
    fn a_full_link_is_left_and_stays_left() {
        for bytes in [16 << 10, 256 << 10, 1 << 20] {
            let (rate, handed) = world(5e7, 64, bytes, Duration::ZERO, 20);
            assert!(rate > 0.9 * 2e8, "{bytes}: {rate}");
            assert!(handed > 0.95, "{bytes}: {handed}");
        }
    }

    #[test]
    fn a_link_with_room_is_used() {
        // Eight clients, a request of 16 KiB every 20 ms: an eighth of the link.
        let (_, handed) = world(5e7, 8, 16 << 10, Duration::from_millis(20), 20);
        assert!(handed < 0.03, "{handed}");
    }

    #[test]
    fn when_the_rush_is_over_costs_count_again() {
        let (mut paces, mut now) = (Paces::default(), Duration::ZERO);
        for _ in 0..400 {
            now += Duration::from_millis(5);
            let (slow, fast) = (Duration::from_millis(20), Duration::from_millis(40));
            paces.learn(AnsweredBy::Proxied, (1, 1 << 16), slow, slow);
            paces.learn(AnsweredBy::Direct, (8, 8 << 16), fast, Duration::ZERO);
            paces.carry(1 << 16, now);
        }
        assert_eq!(paces.advise(1 << 16, 0.0, now), Advice::HandOver);
        // A tenth of the traffic, for ten seconds.
        for _ in 0..200 {
            now += Duration::from_millis(50);
            paces.carry(1 << 16, now);
            paces.advise(1 << 16, 0.0, now);
        }
        assert_eq!(paces.advise(1 << 16, 0.0, now), Advice::None);
    }

    #[test]
    fn clients_that_think_tell_nothing() {
        for think_ms in [30, 300, 5000] {
            let mut paces = Paces::default();
            let (think, answer) = (Duration::from_millis(think_ms), Duration::from_millis(3));
            for _ in 0..100 {
                paces.learn(AnsweredBy::Proxied, (1, 1 << 14), think + answer, answer);
                paces.learn(
                    AnsweredBy::Direct,
                    (1, 1 << 14),
                    Duration::from_millis(1),
                    Duration::ZERO,
                );
            }
            assert_eq!(
                paces.advise(1 << 14, 0.0, Duration::from_secs(9)),
                Advice::None,
                "{think_ms}"
            );
        }
    }

    #[test]
    fn a_wait_for_the_own_processor_is_no_full_link() {
        let mut paces = Paces::default();
        let answer = Duration::from_millis(6);
        for _ in 0..100 {
            paces.learn(AnsweredBy::Proxied, (1, 1 << 21), answer, answer);
            paces.learn(AnsweredBy::Direct, (1, 1 << 21), Duration::from_millis(1), Duration::ZERO);
        }
        let now = Duration::from_secs(9);
        assert_eq!(paces.advise(1 << 21, 5_500.0, now), Advice::None);
        assert_eq!(paces.advise(1 << 21, 500.0, now), Advice::HandOver);
    }

    #[test]
    fn trials_that_show_nothing_become_rare() {
        // A server that needs 50 ms for a response needs them on either path.
        let (mut paces, mut now, mut trials) = (Paces::default(), Duration::ZERO, 0);
        let answer = Duration::from_millis(50);
        for _ in 0..2000 {
            let over = paces.advise(1 << 10, 0.0, now);
            assert_ne!(over, Advice::HandOver);
            now += answer;
            let way = if over == Advice::Try { AnsweredBy::Direct } else { AnsweredBy::Proxied };
            trials += u32::from(over == Advice::Try);
            paces.learn(way, (1, 1 << 10), answer, answer);
        }
        assert!((DIRECT_MIN as u32..20).contains(&trials), "{trials}");
    }

    #[test]
    fn traffic_is_that_of_the_last_periods() {
        let mut traffic = Traffic::default();
        for tick in 0..100u64 {
            traffic.add(1000, Duration::from_millis(10 * tick));
        }
        let rate = traffic.bytes_per_s(Duration::from_millis(1000));
        assert!((rate - 100_000.0).abs() < 1.0, "{rate}");
        let rate = traffic.bytes_per_s(Duration::from_secs(3600));
        assert_eq!(rate, 0.0);
    }

    #[test]
    fn sizes_are_told_apart_by_powers_of_four() {
        assert_eq!((size(0), size(8191), size(8192), size(32767)), (0, 0, 1, 1));
        assert_eq!((size(32768), size(u64::MAX)), (2, SIZES - 1));
    }
}
