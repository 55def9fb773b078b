//! Direct return of a pool.

use std::path::PathBuf;

use serde::Deserialize;
use unlade_config::ByteSize;

/// `[pool.NAME.direct_return]`: the rest of a large response goes to the client past the sockets of the
/// balancer: from the server's host if it has an agent, otherwise as packets that the balancer's kernel
/// sends on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectReturnConfig {
    /// File with the key of the servers' agents, 32 hexadecimal digits. `None`: there are no agents.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// UDP port of the agents.
    #[serde(default = "rules_port_default")]
    pub rules_port: u16,
    /// Responses of fewer bytes are relayed. Of every other one 4 KiB are, and up to 52 KiB if the last
    /// response for the path was short or is not known. `None`, as the next one: the balancer chooses by
    /// the times that responses take.
    #[serde(default)]
    pub from_bytes: Option<ByteSize>,
    /// If the last response for a path had as many bytes, the next one goes to the client directly
    /// from its first byte on. Its head is then the server's, unchanged.
    #[serde(default)]
    pub early_from_bytes: Option<ByteSize>,
}

fn rules_port_default() -> u16 {
    7901
}
