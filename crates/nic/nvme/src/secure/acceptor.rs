//! The target's acceptor: every connection is TLS with one key.

use std::io;

use tokio::net::TcpStream;
use unlade_nvme_wire::Nqn;

use super::derive::{find, host_of};
use super::key::ConfiguredKey;
use super::stream::accept;
use crate::target::{Accepted, Acceptor, ByteStream};

/// Accepts hosts that have this key, with any NQN. The NQN is part of the key's identity, so it
/// is authenticated.
#[derive(Debug)]
pub struct PskAcceptor {
    key: ConfiguredKey,
    subsystem: Nqn,
}

impl PskAcceptor {
    /// Creates an acceptor for hosts of `subsystem`.
    pub fn new(key: ConfiguredKey, subsystem: Nqn) -> PskAcceptor {
        PskAcceptor { key, subsystem }
    }
}

impl Acceptor for PskAcceptor {
    fn accept(&self, tcp: TcpStream) -> Accepted<'_> {
        Box::pin(async move {
            let lookup = |identity: &[u8]| find(&self.key, &self.subsystem, identity);
            let stream = accept(tcp, lookup).await.map_err(io::Error::other)?;
            let host = host_of(stream.identity());
            tracing::debug!(?host, suite = stream.suite_name(), "a host has the key");
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
