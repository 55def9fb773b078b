//! Choice of the next client: the one with the least service relative to its weight.
//!
//! Service is the number of bytes copied, divided by the client's weight (Copier, SOSP 2025, §4.5:
//! time would depend on caches). A client that was idle resumes with at least the minimum of the
//! active clients. It neither collects credit nor loses the record of its excess.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ClientId;

/// Maximum number of clients of a thread.
pub const CLIENTS_MAX: usize = 4096;
/// Maximum weight.
pub const WEIGHT_MAX: u32 = 10_000;
/// Default weight of a client.
pub const WEIGHT_DEFAULT: u32 = 100;
/// Default of [`Shares::slice_bytes`]: a copy of some tens of microseconds.
pub const SLICE_BYTES_DEFAULT: u64 = 256 * 1024;

/// Fixed-point unit of service, so that division by a weight loses nothing.
const BYTE_PARTS: u128 = 1 << 20;

/// Error of [`Shares::join`]; the caller can avoid all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// The maximum number of clients is reached.
    #[error("{CLIENTS_MAX} clients take part: serve this one on another thread, or refuse it")]
    Full,
    /// The client takes part already.
    #[error("client {} takes part already", .0.0)]
    Known(ClientId),
    /// The weight is out of range.
    #[error("weight {0}: give one from 1 to {WEIGHT_MAX}")]
    Weight(u32),
}

#[derive(Debug)]
struct Client {
    weight: u32,
    /// Service in parts of bytes, divided by the weight.
    served: u128,
    awake: bool,
}

/// The clients of one service thread.
#[derive(Debug)]
pub struct Shares {
    slice_bytes: u64,
    clients: BTreeMap<ClientId, Client>,
    /// Clients with work, least served first.
    awake: BTreeSet<(u128, ClientId)>,
    /// Last known minimum service of the clients with work.
    floor: u128,
}

impl Shares {
    /// Creates an empty set of clients; a picked client copies at most `slice_bytes`.
    pub fn new(slice_bytes: u64) -> Shares {
        let (clients, awake) = (BTreeMap::new(), BTreeSet::new());
        Shares { slice_bytes: slice_bytes.max(1), clients, awake, floor: 0 }
    }

    /// Returns the maximum number of bytes that a picked client copies before the next pick.
    pub fn slice_bytes(&self) -> u64 {
        self.slice_bytes
    }

    /// Adds a client that has work.
    ///
    /// # Errors
    /// See [`JoinError`]; the set is unchanged then.
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

    /// Changes the weight of a client, from 1 to [`WEIGHT_MAX`]; other weights change nothing. Bytes
    /// that are charged from now on count by it, what the client has had stays as it was counted.
    pub fn reweigh(&mut self, client: ClientId, weight: u32) {
        if let Some(known) = self.clients.get_mut(&client)
            && (1..=WEIGHT_MAX).contains(&weight)
        {
            known.weight = weight;
        }
    }

    /// Removes a client. Unknown clients are ignored, here and in the following functions.
    pub fn leave(&mut self, client: ClientId) {
        self.sleep(client);
        self.clients.remove(&client);
    }

    /// Records that a client has no work.
    pub fn sleep(&mut self, client: ClientId) {
        let Some(known) = self.clients.get_mut(&client).filter(|known| known.awake) else { return };
        known.awake = false;
        self.awake.remove(&(known.served, client));
        self.raise_floor();
    }

    /// Records that a client has work again.
    pub fn wake(&mut self, client: ClientId) {
        self.raise_floor();
        let Some(known) = self.clients.get_mut(&client).filter(|known| !known.awake) else {
            return;
        };
        known.awake = true;
        known.served = known.served.max(self.floor);
        self.awake.insert((known.served, client));
    }

    /// Returns the client to serve next, or `None` if no client has work.
    pub fn pick(&self) -> Option<ClientId> {
        self.awake.first().map(|(_, client)| *client)
    }

    /// Records bytes copied for a client.
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

    /// Serves one slice or a part of it, and returns the client.
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
    fn a_new_weight_counts_from_then_on() {
        unlade_testkit::cases(200, |random| {
            let slice = 1 + random.below(10_000);
            let mut shares = Shares::new(slice);
            let mut weights = [1 + random.below(500) as u32, 1 + random.below(500) as u32];
            for client in [0, 1] {
                shares.join(ClientId(client), weights[client as usize]).unwrap();
            }
            let mut before = weights;
            for _ in 0..5 {
                let mut served = [0u64; 2];
                for _ in 0..300 {
                    let bytes = 1 + random.below(slice);
                    served[serve(&mut shares, bytes).0 as usize] += bytes;
                }
                // At the start one is ahead by a slice at most, by its weight before; at the end by
                // its weight now.
                let parts = |at: usize| served[at] as f64 / f64::from(weights[at]);
                let lead = |weights: [u32; 2]| slice as f64 / f64::from(weights[0].min(weights[1]));
                let allowed = lead(before) + lead(weights) + 0.01;
                assert!((parts(0) - parts(1)).abs() <= allowed, "{served:?} of {weights:?}");
                before = weights;
                let at = random.below(2_u32);
                weights[at as usize] = 1 + random.below(500) as u32;
                shares.reweigh(ClientId(at), weights[at as usize]);
            }
            shares.reweigh(ClientId(0), 0);
            shares.reweigh(ClientId(1), WEIGHT_MAX + 1);
            assert_eq!([0, 1].map(|at| shares.clients[&ClientId(at)].weight), weights);
        });
    }

    #[test]
    fn a_client_that_was_idle_gets_no_more_than_the_others() {
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
