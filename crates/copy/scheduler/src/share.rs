//! Which client is served next: the one that was served least for its weight.
//!
//! The unit is bytes copied, divided by the client's weight (Copier, SOSP 2025, §4.5: time would
//! depend on caches). A client that was away starts with the least that anybody present has, so
//! that it neither collects credit nor is freed of what it has had too much.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ClientId;

/// The most clients that share a thread's service.
pub const CLIENTS_MAX: usize = 4096;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// The weight of a client that has none of its own.
pub const WEIGHT_DEFAULT: u32 = 100;
/// The usual [`Shares::slice_bytes`]: a copy of some tens of microseconds.
pub const SLICE_BYTES_DEFAULT: u64 = 256 * 1024;

/// Parts of a byte that service is counted in, so that dividing by a weight loses nothing.
const BYTE_PARTS: u128 = 1 << 20;

/// Why a client cannot take part. All are the caller's to avoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// There are as many as there may be.
    #[error("{CLIENTS_MAX} clients take part: serve this one on another thread, or refuse it")]
    Full,
    /// It takes part already.
    #[error("client {} takes part already", .0.0)]
    Known(ClientId),
    /// The weight is not one.
    #[error("weight {0}: give one from 1 to {WEIGHT_MAX}")]
    Weight(u32),
}

#[derive(Debug)]
struct Client {
    weight: u32,
    /// Parts of bytes served, divided by the weight.
    served: u128,
    awake: bool,
}

/// The clients of one service thread.
#[derive(Debug)]
pub struct Shares {
    slice_bytes: u64,
    clients: BTreeMap<ClientId, Client>,
    /// Those that have something to do, least served first.
    awake: BTreeSet<(u128, ClientId)>,
    /// The least that one who is awake was served, as last known.
    floor: u128,
}

impl Shares {
    /// Nobody takes part yet; a client that is picked copies `slice_bytes` at most.
    pub fn new(slice_bytes: u64) -> Shares {
        let (clients, awake) = (BTreeMap::new(), BTreeSet::new());
        Shares { slice_bytes: slice_bytes.max(1), clients, awake, floor: 0 }
    }

    /// The most bytes that a picked client copies before the next one is picked.
    pub fn slice_bytes(&self) -> u64 {
        self.slice_bytes
    }

    /// A client comes, with something to do.
    ///
    /// # Errors
    /// See [`JoinError`]; nothing has changed then.
    pub fn join(&mut self, client: ClientId, weight: u32) -> Result<(), JoinError> {
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(JoinError::Weight(weight));
        }
        if self.clients.contains_key(&client) {
            return Err(JoinError::Known(client));
        }
        if self.clients.len() >= CLIENTS_MAX {
            return Err(JoinError::Full);
        }
        self.clients.insert(client, Client { weight, served: 0, awake: false });
        self.wake(client);
        Ok(())
    }

    /// A client goes. One that is not known is ignored, here and below.
    pub fn leave(&mut self, client: ClientId) {
        self.sleep(client);
        self.clients.remove(&client);
    }

    /// A client has nothing to do.
    pub fn sleep(&mut self, client: ClientId) {
        let Some(known) = self.clients.get_mut(&client).filter(|known| known.awake) else { return };
        known.awake = false;
        self.awake.remove(&(known.served, client));
        self.raise_floor();
    }

    /// A client has something to do again.
    pub fn wake(&mut self, client: ClientId) {
        self.raise_floor();
        let Some(known) = self.clients.get_mut(&client).filter(|known| !known.awake) else {
            return;
        };
        known.awake = true;
        known.served = known.served.max(self.floor);
        self.awake.insert((known.served, client));
    }

    /// Who is served next, if anybody has something to do.
    pub fn pick(&self) -> Option<ClientId> {
        self.awake.first().map(|(_, client)| *client)
    }

    /// A client was served.
    pub fn charge(&mut self, client: ClientId, bytes: u64) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        let before = known.served;
        known.served += u128::from(bytes) * BYTE_PARTS / u128::from(known.weight);
        if known.awake {
            self.awake.remove(&(before, client));
            self.awake.insert((known.served, client));
        }
        self.raise_floor();
    }

    fn raise_floor(&mut self) {
        if let Some((least, _)) = self.awake.first() {
            self.floor = self.floor.max(*least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves one slice, not always all of it; says to whom.
    fn serve(shares: &mut Shares, bytes: u64) -> ClientId {
        let client = shares.pick().unwrap();
        shares.charge(client, bytes);
        client
    }

    #[test]
    fn service_is_in_proportion_to_weights_within_one_slice() {
        unlade_testkit::cases(100, |random| {
            let slice = 1 + random.below(10_000);
            let mut shares = Shares::new(slice);
            let count = 2 + random.below(6) as u32;
            let weights: Vec<u32> = (0..count).map(|_| 1 + random.below(500) as u32).collect();
            for (client, weight) in weights.iter().enumerate() {
                shares.join(ClientId(client as u32), *weight).unwrap();
            }
            let mut served = vec![0u64; weights.len()];
            for _ in 0..500 {
                let bytes = 1 + random.below(slice);
                served[serve(&mut shares, bytes).0 as usize] += bytes;
                let parts = |at: usize| served[at] as f64 / f64::from(weights[at]);
                for (one, other) in (0..weights.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let lead = parts(one) - parts(other);
                    let ahead = if lead > 0.0 { one } else { other };
                    let allowed = slice as f64 / f64::from(weights[ahead]);
                    assert!(lead.abs() <= allowed + 0.01, "{served:?} of {weights:?}");
                }
            }
        });
    }

    #[test]
    fn who_was_away_gets_no_more_than_the_others() {
        let mut shares = Shares::new(100);
        let (steady, away) = (ClientId(1), ClientId(2));
        shares.join(steady, 100).unwrap();
        shares.join(away, 100).unwrap();
        shares.sleep(away);
        for _ in 0..1000 {
            assert_eq!(serve(&mut shares, 100), steady);
        }
        shares.wake(away);
        let turns = (0..100).filter(|_| serve(&mut shares, 100) == away).count();
        assert!((50..=51).contains(&turns), "{turns}");
    }

    #[test]
    fn sleeping_does_not_free_from_what_one_has_had() {
        let mut shares = Shares::new(100);
        let (greedy, other) = (ClientId(1), ClientId(2));
        shares.join(greedy, 100).unwrap();
        shares.join(other, 100).unwrap();
        shares.charge(greedy, 1_000);
        shares.sleep(greedy);
        shares.wake(greedy);
        for _ in 0..10 {
            assert_eq!(serve(&mut shares, 100), other);
        }
    }

    #[test]
    fn bad_joins_are_refused() {
        let mut shares = Shares::new(100);
        assert_eq!(shares.join(ClientId(0), 0), Err(JoinError::Weight(0)));
        let much = WEIGHT_MAX + 1;
        assert_eq!(shares.join(ClientId(0), much), Err(JoinError::Weight(much)));
        for client in (0..CLIENTS_MAX as u32).map(ClientId) {
            shares.join(client, WEIGHT_DEFAULT).unwrap();
        }
        assert_eq!(shares.join(ClientId(7), 1), Err(JoinError::Known(ClientId(7))));
        assert_eq!(shares.join(ClientId(u32::MAX), 1), Err(JoinError::Full));
        shares.leave(ClientId(7));
        shares.charge(ClientId(7), 1);
        assert_eq!(shares.join(ClientId(u32::MAX), 1), Ok(()));
    }
}
