//! Direct return of a pool.

use std::path::PathBuf;

use serde::Deserialize;
use unlade_config::ByteSize;

/// `[pool.NAME.direct_return]`: the rest of a large response goes from the server's host to the
/// client directly.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectReturnConfig {
    /// File with the key of the servers' agents, 32 hexadecimal digits.
    pub key_file: PathBuf,
    /// UDP port of the agents.
    #[serde(default = "rules_port_default")]
    pub rules_port: u16,
    /// Responses of fewer bytes are relayed. Half of it, between 4 KiB and 16 KiB, is relayed of
    /// every other one.
    #[serde(default = "from_bytes_default")]
    pub from_bytes: ByteSize,
}

fn from_bytes_default() -> ByteSize {
    ByteSize::kib(32)
}

fn rules_port_default() -> u16 {
    7901
}
