//! Direct return of a pool: which of its responses begin where, and how much a server may send before.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use unlade_config::{ByteSize, KeyFileError, read_key};
use unlade_splice::splice::LENGTH_BYTES_MAX;

use crate::config::DirectReturnConfig;
use crate::ways::{Change, Pick, Way, Ways};

/// Bytes that a server may send after a request before a splice begins, besides those of a response
/// that is to be relayed: its head, and what the server may leave unused.
const LIMIT_HEAD_BYTES: u64 = 4 << 10;
/// Most bytes of the limit if the length of the response is not known before: clients have at least
/// as much room, if they are not small.
const UNKNOWN_LIMIT_BYTES_MAX: u64 = 48 << 10;
/// The limit if a response is expected that is long enough for a splice.
pub(crate) const LARGE_LIMIT_BYTES: u32 = 4 << 10;
/// Bytes of a head that are expected beside those of the body.
const EXPECTED_HEAD_BYTES: u64 = 512;
/// From so many bytes on, packets cost less than a relay where the way is chosen.
const CHOSEN_FROM_BYTES: u64 = 2 << 10;
/// The part of the limit that a server may leave unused: a segment, and the granularity of windows.
const LIMIT_SLACK_BYTES: u64 = 2560;

/// Direct return of a pool.
#[derive(Debug)]
pub(crate) struct DirectPool {
    /// The agents' key; `None`: there are no agents.
    pub secret: Option<[u8; 16]>,
    /// UDP port of the agents.
    pub rules_port: u16,
    /// Responses of fewer bytes are relayed, unless they begin early.
    pub from_bytes: u64,
    /// Responses of which as many bytes are expected begin early.
    early_from_bytes: u64,
    /// Chooses the ways; `None`: the configuration does, or there is no choice.
    ways: Option<Mutex<Ways>>,
    /// The origin of its times.
    origin: Instant,
}

/// The decision about a response.
#[derive(Debug, Default)]
pub(crate) struct Planned {
    /// It begins early; so many bytes are expected, with its head.
    pub early_bytes: Option<u32>,
    /// The way that was chosen.
    pub pick: Option<Pick>,
    /// The usual way of such responses has changed.
    pub change: Option<Change>,
}

impl DirectPool {
    /// Reads the key of a pool.
    ///
    /// # Errors
    /// The file is unusable.
    pub(crate) fn load(config: &DirectReturnConfig) -> Result<DirectPool, KeyFileError> {
        let secret = config.key_file.as_deref().map(read_key).transpose()?;
        let DirectReturnConfig { rules_port, from_bytes, early_from_bytes, .. } = config;
        let is_chosen = from_bytes.is_none() && early_from_bytes.is_none();
        let bytes = |size: &Option<ByteSize>, default: u64| size.map_or(default, |s| s.bytes());
        let early_default = if is_chosen { CHOSEN_FROM_BYTES } else { 64 << 10 };
        Ok(DirectPool {
            secret,
            rules_port: *rules_port,
            from_bytes: bytes(from_bytes, 128 << 10),
            early_from_bytes: bytes(early_from_bytes, early_default),
            ways: (is_chosen && secret.is_some()).then(|| Mutex::new(Ways::new())),
            origin: Instant::now(),
        })
    }

    /// Decides about the response to a request that came `waited` before, if the path's last one had a
    /// length. `has_agent`: the server's host takes rules now.
    pub(crate) fn plan(
        &self,
        expected_bytes: Option<u64>,
        is_sealed: bool,
        has_agent: bool,
        waited: Duration,
    ) -> Planned {
        let early_bytes = self.early_bytes(expected_bytes);
        let (Some(_), Some(bytes), Some(ways)) = (early_bytes, expected_bytes, &self.ways) else {
            // A server's host takes no rule for the first bytes of a sealed response.
            let is_fit = !is_sealed || self.secret.is_none();
            return Planned { early_bytes: early_bytes.filter(|_| is_fit), ..Planned::default() };
        };
        if !has_agent {
            return Planned { early_bytes, ..Planned::default() };
        }
        let now = self.origin.elapsed();
        let Ok(mut ways) = ways.lock() else { return Planned::default() };
        let (pick, change) = ways.choose(bytes, is_sealed, waited, now);
        let early_bytes = early_bytes.filter(|_| matches!(pick.way, Way::Early | Way::Forward));
        Planned { early_bytes, pick: Some(pick), change }
    }

    /// Returns true if a response of so many bytes, about which nothing was decided before, is sent on by
    /// this balancer's kernel, although the server's host takes rules.
    pub(crate) fn is_forwarded(&self, bytes: u64, is_sealed: bool) -> bool {
        let ways = self.ways.as_ref().and_then(|ways| ways.lock().ok());
        ways.is_some_and(|mut ways| ways.usual(bytes, is_sealed) == Way::Forward)
    }

    /// Learns that the time of a response ends now, or ended so long ago.
    pub(crate) fn learn(&self, pick: Pick, age: Duration) {
        if let Some(Ok(mut ways)) = self.ways.as_ref().map(Mutex::lock) {
            ways.learn(pick, self.origin.elapsed().saturating_sub(age));
        }
    }

    /// Notes that a response is over, complete or not.
    pub(crate) fn end(&self, pick: Pick) {
        if let Some(Ok(mut ways)) = self.ways.as_ref().map(Mutex::lock) {
            ways.end(pick);
        }
    }

    /// Returns the bytes of a response with its head that is to go to the client from its first byte
    /// on, if the path's last response had a length.
    fn early_bytes(&self, expected_bytes: Option<u64>) -> Option<u32> {
        let bytes = expected_bytes.filter(|bytes| *bytes >= self.early_from_bytes)?;
        let bytes = u32::try_from(bytes.saturating_add(EXPECTED_HEAD_BYTES)).ok()?;
        (bytes <= LENGTH_BYTES_MAX).then_some(bytes)
    }

    /// Returns the bytes that a server may send after a request before a splice begins, if the path's
    /// last response had a length. A response that is too short for a splice comes without a pause.
    pub(crate) fn limit_bytes(&self, expected_bytes: Option<u64>) -> u32 {
        let bytes = match expected_bytes {
            Some(bytes) if bytes >= self.from_bytes => return LARGE_LIMIT_BYTES,
            Some(bytes) => bytes,
            None => self.from_bytes.min(UNKNOWN_LIMIT_BYTES_MAX),
        };
        u32::try_from(bytes.saturating_add(LIMIT_HEAD_BYTES))
            .map_or(LENGTH_BYTES_MAX, |b| b.min(LENGTH_BYTES_MAX))
    }
}

/// Returns true if a server sends so many bytes by a limit, without waiting.
pub(crate) fn fits(limit_bytes: u32, bytes: u64) -> bool {
    bytes <= u64::from(limit_bytes).saturating_sub(LIMIT_SLACK_BYTES)
}

/// Returns true if so many bytes of a longer response came that a server may wait for more room.
pub(crate) fn is_used_up(limit_bytes: u32, came_bytes: u64) -> bool {
    came_bytes + LIMIT_SLACK_BYTES >= u64::from(limit_bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Usual heads are shorter.
    const HEAD_BYTES: u64 = 1500;

    fn pool(
        from_bytes: Option<u64>,
        early_from_bytes: Option<u64>,
        has_agents: bool,
    ) -> DirectPool {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let size = |bytes: u64| ByteSize::kib(bytes >> 10);
        let config = DirectReturnConfig {
            key_file: has_agents.then_some(key),
            rules_port: 1,
            from_bytes: from_bytes.map(size),
            early_from_bytes: early_from_bytes.map(size),
        };
        DirectPool::load(&config).unwrap()
    }

    #[test]
    fn a_short_response_of_a_known_path_comes_without_a_pause() {
        let pool = pool(Some(128 << 10), Some(16 << 10), true);
        for bytes in (0..pool.from_bytes).step_by(1000).chain([pool.from_bytes - 1]) {
            let limit = pool.limit_bytes(Some(bytes));
            assert!(fits(limit, HEAD_BYTES + bytes), "{bytes} bytes by {limit}");
        }
        for bytes in [pool.from_bytes, 1 << 30, u64::MAX] {
            assert_eq!(pool.limit_bytes(Some(bytes)), LARGE_LIMIT_BYTES);
        }
        assert!(fits(pool.limit_bytes(None), HEAD_BYTES + UNKNOWN_LIMIT_BYTES_MAX));
        let all = DirectPool { from_bytes: u64::MAX, ..pool };
        assert_eq!(all.limit_bytes(Some(u64::MAX - 1)), LENGTH_BYTES_MAX);
    }

    #[test]
    fn a_response_begins_early_if_its_path_had_one_that_was_long_enough() {
        let early_from_bytes = 16 << 10;
        let pool = pool(Some(128 << 10), Some(early_from_bytes), true);
        let most = u64::from(LENGTH_BYTES_MAX) - EXPECTED_HEAD_BYTES;
        for bytes in [early_from_bytes, most] {
            let due = (bytes + EXPECTED_HEAD_BYTES) as u32;
            assert_eq!(pool.plan(Some(bytes), false, true, Duration::ZERO).early_bytes, Some(due));
            assert_eq!(
                pool.plan(Some(bytes), true, true, Duration::ZERO).early_bytes,
                None,
                "no rule for it"
            );
        }
        for bytes in [None, Some(0), Some(early_from_bytes - 1), Some(most + 1), Some(u64::MAX)] {
            assert_eq!(pool.plan(bytes, false, true, Duration::ZERO).early_bytes, None);
        }
    }

    #[test]
    fn without_sizes_the_way_is_chosen_if_there_are_agents() {
        let chosen = pool(None, None, true);
        let planned = chosen.plan(Some(64 << 10), false, true, Duration::ZERO);
        assert_eq!(planned.pick.map(|pick| pick.way), Some(Way::Forward));
        assert!(planned.early_bytes.is_some() && chosen.is_forwarded(64 << 10, false));
        assert!(!chosen.is_forwarded(4 << 20, false));
        // An agent that takes no rules, a short response, or one of an unknown length: no choice.
        for (bytes, has_agent) in [(Some(64 << 10), false), (Some(1 << 10), true), (None, true)] {
            assert!(chosen.plan(bytes, false, has_agent, Duration::ZERO).pick.is_none());
        }
        let planned = chosen.plan(Some(4 << 20), true, true, Duration::ZERO);
        assert_eq!(planned.pick.map(|pick| pick.way), Some(Way::Late));
        assert_eq!(planned.early_bytes, None);
        for fixed in [pool(None, None, false), pool(Some(1 << 20), None, true)] {
            let planned = fixed.plan(Some(64 << 10), false, true, Duration::ZERO);
            assert!(planned.early_bytes.is_some() && planned.pick.is_none());
            assert!(!fixed.is_forwarded(64 << 10, false));
        }
    }
}
