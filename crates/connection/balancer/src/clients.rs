//! Counts of connections: in total, per listener and per client. All workers share them and access
//! them only when a connection begins or ends.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of the table, each with its own lock, so that workers seldom contend.
const PARTS: usize = 32;

/// One client for the purpose of limits: an IPv4 address, or a /64 network of IPv6, all of whose
/// addresses one host may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ClientKey(u64);

impl ClientKey {
    fn of(ip: IpAddr) -> ClientKey {
        match ip.to_canonical() {
            // No /64 in use begins with 32 zero bits.
            IpAddr::V4(ip) => ClientKey(u64::from(ip.to_bits())),
            IpAddr::V6(ip) => ClientKey((ip.to_bits() >> 64) as u64),
        }
    }
}

/// The limits in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientLimits {
    /// Limit of all connections.
    pub connections_max: usize,
    /// Limit of the listener.
    pub listener_max: usize,
    /// Limit of one client.
    pub per_client_max: usize,
}

/// The limit that refused a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limit of all connections, or of the listener.
    Full,
    /// The limit of the client.
    Client,
}

/// Counts of connections.
#[derive(Debug)]
pub(crate) struct Clients {
    total: AtomicUsize,
    listeners: Vec<AtomicUsize>,
    parts: Vec<Mutex<HashMap<ClientKey, u32>>>,
    hasher: RandomState,
}

/// One counted connection; the count ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    clients: Arc<Clients>,
    key: ClientKey,
    listener: usize,
}

impl Clients {
    /// Creates counts of zero.
    pub(crate) fn new(listeners: usize) -> Clients {
        Clients {
            total: AtomicUsize::new(0),
            listeners: (0..listeners).map(|_| AtomicUsize::new(0)).collect(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Returns the number of all connections.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a new connection of `ip`, if the limits allow it.
    ///
    /// # Errors
    /// The limit that was met.
    pub(crate) fn admit(
        self: &Arc<Self>,
        ip: IpAddr,
        listener: usize,
        limits: &ClientLimits,
    ) -> Result<Admission, Refused> {
        let admission = self.admit_returned(ip, listener);
        let of_listener = self.listeners.get(listener).map_or(0, |n| n.load(Ordering::Relaxed));
        if self.total() > limits.connections_max || of_listener > limits.listener_max {
            return Err(Refused::Full);
        }
        let of_client = self.part(admission.key).get(&admission.key).copied().unwrap_or(0);
        match of_client as usize > limits.per_client_max {
            true => Err(Refused::Client),
            false => Ok(admission),
        }
    }

    /// Counts a connection that comes home. No limit applies: it was admitted before.
    pub(crate) fn admit_returned(self: &Arc<Self>, ip: IpAddr, listener: usize) -> Admission {
        let key = ClientKey::of(ip);
        self.total.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.listeners.get(listener) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        *self.part(key).entry(key).or_insert(0) += 1;
        Admission { clients: self.clone(), key, listener }
    }

    fn part(&self, key: ClientKey) -> MutexGuard<'_, HashMap<ClientKey, u32>> {
        let part = self.hasher.hash_one(key) as usize % PARTS;
        // A count is consistent after every operation, so a panic elsewhere does not damage it.
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.clients.total.fetch_sub(1, Ordering::Relaxed);
        if let Some(count) = self.clients.listeners.get(self.listener) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        let mut part = self.clients.part(self.key);
        if let Some(count) = part.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                part.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ClientLimits =
        ClientLimits { connections_max: 5, listener_max: 4, per_client_max: 2 };

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_limit_refuses_and_is_given_back() {
        let clients = Arc::new(Clients::new(2));
        let admit = |address: &str, listener| clients.admit(ip(address), listener, &LIMITS);
        let first = admit("10.0.0.1", 0).unwrap();
        let _second = admit("10.0.0.1", 0).unwrap();
        assert_eq!(admit("10.0.0.1", 0).unwrap_err(), Refused::Client);
        let _third = admit("10.0.0.2", 0).unwrap();
        let _fourth = admit("10.0.0.3", 0).unwrap();
        assert_eq!(admit("10.0.0.4", 0).unwrap_err(), Refused::Full);
        let _fifth = admit("10.0.0.4", 1).unwrap();
        assert_eq!(admit("10.0.0.5", 1).unwrap_err(), Refused::Full);
        assert_eq!(clients.total(), 5);
        drop(first);
        assert!(admit("10.0.0.1", 0).is_ok());
        let returned = clients.admit_returned(ip("10.0.0.1"), 0);
        assert_eq!(clients.total(), 5);
        drop(returned);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_a_mapped_address_is_ipv4() {
        let clients = Arc::new(Clients::new(1));
        let admit = |address: &str| clients.admit(ip(address), 0, &LIMITS);
        let _a = admit("2001:db8::1").unwrap();
        let _b = admit("2001:db8::2").unwrap();
        assert_eq!(admit("2001:db8::3").unwrap_err(), Refused::Client);
        assert!(admit("2001:db8:0:1::3").is_ok());
        assert_eq!(ClientKey::of(ip("::ffff:10.0.0.1")), ClientKey::of(ip("10.0.0.1")));
    }

    #[test]
    fn nothing_is_left_behind() {
        let clients = Arc::new(Clients::new(1));
        drop(clients.admit(ip("10.0.0.1"), 0, &LIMITS));
        assert_eq!(clients.total(), 0);
        assert!(clients.parts.iter().all(|part| part.lock().unwrap().is_empty()));
    }
}
