//! Computes how long a server keeps a connection whose client is idle. Sans-IO.
//!
//! A connection that stays at its server occupies an entry of the flow table while its client is
//! idle. A connection that is returned costs two moves when the client continues. While the table
//! has room, no connection is returned before it would be closed for idleness. The fuller the
//! table, the more an entry costs: then the idle time is the one with the lowest cost for the
//! clients of the route, whose idle times are kept in a histogram.

use std::time::Duration;

/// Buckets: idle times up to 1, 2, 4, … 64 seconds, and longer ones.
const BUCKETS: usize = 8;
/// Idle times that the histogram covers.
const WINDOW: f64 = 512.0;
/// Share of the table up to which an entry costs nothing.
const FREE_SHARE: f64 = 0.5;
/// Cost of an entry in a full table, round trips per second.
const PRICE_MAX: f64 = 1.0;
/// No connection is returned earlier: a client that is a program needs less.
pub(crate) const IDLE_RETURN_MIN: Duration = Duration::from_secs(1);

/// Histogram of the idle times between two requests of a route's clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleTimes {
    count: [f64; BUCKETS],
    total: f64,
}

impl Default for IdleTimes {
    /// Creates a uniform histogram, used until there are observations.
    fn default() -> IdleTimes {
        IdleTimes { count: [1.0 / BUCKETS as f64; BUCKETS], total: 1.0 }
    }
}

/// Returns the longest idle time of a bucket, seconds; the last bucket has none.
fn bound_s(bucket: usize) -> f64 {
    (1u64 << bucket) as f64
}

/// Returns a typical idle time of a bucket, seconds.
fn typical_s(bucket: usize) -> f64 {
    if bucket == 0 { 0.5 } else { bound_s(bucket) * 0.75 }
}

fn bucket(silence: Duration) -> usize {
    let seconds = silence.as_secs_f64();
    (0..BUCKETS - 1).find(|&bucket| seconds <= bound_s(bucket)).unwrap_or(BUCKETS - 1)
}

impl IdleTimes {
    /// Learns how long a client was idle between two requests.
    pub(crate) fn learn(&mut self, silence: Duration) {
        self.add(bucket(silence), 1.0);
    }

    /// Learns that `count` idle times were shorter than `below`; their lengths are unknown.
    pub(crate) fn learn_below(&mut self, count: u64, below: Duration) {
        let last = bucket(below);
        let known: f64 = self.count.iter().take(last + 1).sum();
        let share = (count as f64).min(WINDOW / 4.0) / known.max(f64::MIN_POSITIVE);
        let shares = self.count.map(|weight| weight * share);
        for (bucket, weight) in shares.into_iter().enumerate().take(last + 1) {
            self.add(bucket, weight);
        }
    }

    fn add(&mut self, bucket: usize, weight: f64) {
        if self.total >= WINDOW {
            self.count.iter_mut().for_each(|count| *count *= 0.5);
            self.total *= 0.5;
        }
        if let Some(count) = self.count.get_mut(bucket) {
            *count += weight;
            self.total += weight;
        }
    }

    /// Returns the idle time after which a connection is to be returned: at most `most`, where
    /// `occupancy` of the flow table is in use (0 to 1).
    pub(crate) fn idle_return(&self, occupancy: f64, most: Duration) -> Duration {
        let filled = (occupancy - FREE_SHARE).max(0.0) / (1.0 - FREE_SHARE);
        let price = PRICE_MAX * filled * filled;
        let most = most.max(IDLE_RETURN_MIN);
        let lasts = (0..BUCKETS - 1).filter(|&last| bound_s(last) < most.as_secs_f64());
        let mut best = (self.cost(BUCKETS - 1, most.as_secs_f64(), price), most);
        for last in lasts {
            let cost = self.cost(last, bound_s(last), price);
            if cost < best.0 {
                best = (cost, Duration::from_secs_f64(bound_s(last)));
            }
        }
        best.1
    }

    /// Returns the mean cost of an idle time, in round trips, where connections are returned after
    /// `limit_s`, which is the bound of bucket `last`.
    fn cost(&self, last: usize, limit_s: f64, price: f64) -> f64 {
        let cost = |(bucket, count): (usize, &f64)| {
            let stays = bucket <= last && typical_s(bucket) <= limit_s;
            let (parked_s, moves) = if stays { (typical_s(bucket), 0.0) } else { (limit_s, 1.0) };
            count * (price * parked_s + moves)
        };
        self.count.iter().enumerate().map(cost).sum::<f64>() / self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(60);

    fn of(silence_ms: u64) -> IdleTimes {
        let mut idle_times = IdleTimes::default();
        (0..200).for_each(|_| idle_times.learn(Duration::from_millis(silence_ms)));
        idle_times
    }

    #[test]
    fn while_there_is_room_nothing_is_given_back_early() {
        for silence_ms in [100, 1500, 10_000, 100_000] {
            assert_eq!(of(silence_ms).idle_return(0.3, MOST), MOST);
        }
        assert_eq!(IdleTimes::default().idle_return(0.0, MOST), MOST);
        assert_eq!(of(10).idle_return(0.0, Duration::from_secs(3)), Duration::from_secs(3));
    }

    #[test]
    fn the_fuller_the_table_the_sooner() {
        let idle_times = of(1500);
        let times: Vec<Duration> = [0.5, 0.7, 0.8, 0.9, 1.0]
            .iter()
            .map(|&share| idle_times.idle_return(share, MOST))
            .collect();
        assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
        // Most come back within two seconds: the server waits for those as long as that is
        // cheaper.
        assert_eq!(idle_times.idle_return(0.8, MOST), Duration::from_secs(2));
        // The server does not wait for clients that are idle for minutes.
        assert_eq!(of(100_000).idle_return(0.95, MOST), IDLE_RETURN_MIN);
    }

    #[test]
    fn what_is_known_of_short_silences_is_in_proportion() {
        let mut idle_times = of(1500);
        idle_times.learn_below(100, Duration::from_secs(8));
        idle_times.learn_below(100, Duration::from_secs(8));
        let share = idle_times.count[1] / idle_times.total;
        assert!(share > 0.95, "{idle_times:?}");
        idle_times.learn_below(u64::MAX, Duration::ZERO);
        assert!(idle_times.total.is_finite() && idle_times.total < 2.0 * WINDOW, "{idle_times:?}");
    }
}
