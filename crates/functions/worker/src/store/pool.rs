//! The pool of idle connections, by host.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::connection::Connection;

/// Idle connections by host.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: RefCell<HashMap<String, Vec<(Instant, Connection)>>>,
    idle_max: usize,
    idle_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(idle_max: usize, idle_timeout: Duration) -> Pool {
        Pool { idle: RefCell::default(), idle_max, idle_timeout }
    }

    /// Takes the most recently used connection to a host that is still open.
    pub(crate) fn take(&self, host: &str) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let kept = idle.get_mut(host)?;
        while let Some((since, connection)) = kept.pop() {
            if since.elapsed() < self.idle_timeout && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection, unless the pool is full.
    pub(crate) fn keep(&self, connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        for kept in idle.values_mut() {
            kept.retain(|(since, _)| now - *since < self.idle_timeout);
        }
        idle.retain(|_, kept| !kept.is_empty());
        if idle.values().map(Vec::len).sum::<usize>() < self.idle_max {
            idle.entry(connection.host.clone()).or_default().push((now, connection));
        }
    }
}
