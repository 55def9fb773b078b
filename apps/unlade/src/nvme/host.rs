//! Common parts of the sub-commands of `unlade nvme` that connect.

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use unlade_nvme::initiator::{
    Address, Controller, Host, Namespace, Options, TcpConnector, declined, discover,
};
use unlade_nvme::secure::{IdentityVersion, tls_psk};
use unlade_nvme_wire::discovery::EntryKind;
use unlade_nvme_wire::{Digests, Nqn};

/// Where distributions keep a host's name and identifier.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";
const HOST_ID_FILE: &str = "/etc/nvme/hostid";

/// Form of the name that a key has on the wire.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Identity {
    /// `NVMe0R01 …`, of specification 1.0
    #[value(name = "0")]
    Zero,
    /// `NVMe1R01 …`, of specification 1.1, with a digest of the key
    #[value(name = "1")]
    One,
}

/// Identity of this host, and options of the connection.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct HostArgs {
    /// The subsystem's NQN, where the address does not name it
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// This host's NQN; else that of /etc/nvme/hostnqn, or a random one
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<String>,
    /// This host's identifier, a UUID; else that of /etc/nvme/hostid, or a random one
    #[arg(long, value_name = "UUID")]
    host_id: Option<String>,
    /// Digests of headers and of data; fails where the controller declines one
    #[arg(long)]
    digests: bool,
    /// Digests of headers; fails where the controller declines them
    #[arg(long)]
    header_digest: bool,
    /// Digests of data; fails where the controller declines them
    #[arg(long)]
    data_digest: bool,
    /// Digests as far as the controller has them; a warning says which are missing
    #[arg(long, conflicts_with_all = ["digests", "header_digest", "data_digest"])]
    digests_if_offered: bool,
    /// The pre-shared key for nvme+tls://, as `unlade nvme key` makes it
    #[arg(long, value_name = "FILE")]
    psk_file: Option<PathBuf>,
    /// Form of the key's name on the wire
    #[arg(long, value_enum, default_value = "1", value_name = "VERSION")]
    psk_identity: Identity,
    /// I/O queues, each a connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Commands in flight in each queue
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub depth: u16,
    /// After how long without a sign of life the controller gives us up; 0s is never
    #[arg(long, value_parser = humantime::parse_duration, default_value = "15s")]
    keep_alive: Duration,
    /// How long a command may take
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    timeout: Duration,
    /// How often a lost connection is tried again before it is given up
    #[arg(long, default_value_t = 20)]
    reconnects: u32,
}

impl HostArgs {
    /// I/O queues asked for.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    fn host(&self) -> Result<Host> {
        let kept = |file: &str| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
        let id = match self.host_id.clone().or_else(|| kept(HOST_ID_FILE)) {
            None => None,
            Some(text) => Some(parse_uuid(&text).with_context(|| format!("host ID {text:?}"))?),
        };
        let mut host = match id {
            Some(id) => Host::with_id(id)?,
            None => Host::random()?,
        };
        if let Some(name) = self.host_nqn.clone().or_else(|| kept(HOST_NQN_FILE)) {
            host.nqn = Nqn::new(&name).with_context(|| format!("host NQN {name:?}"))?;
        }
        Ok(host)
    }

    /// Options for a subsystem.
    pub fn options(&self, subsystem: Nqn) -> Result<Options> {
        let mut options = Options::new(self.host()?, subsystem);
        options.digests = Digests {
            header: self.digests || self.digests_if_offered || self.header_digest,
            data: self.digests || self.digests_if_offered || self.data_digest,
        };
        options.digests_required = !self.digests_if_offered;
        options.queues = self.queues;
        options.depth = self.depth;
        options.keep_alive = self.keep_alive;
        options.command_timeout = self.timeout;
        options.reconnect.attempts_max = self.reconnects;
        Ok(options)
    }

    /// How connections to `address` are made, for these options.
    pub fn connector(&self, address: &Address, options: &Options) -> Result<TcpConnector> {
        let psk = match (address.is_tls, &self.psk_file) {
            (false, None) => None,
            (false, Some(_)) => bail!("--psk-file is for addresses that begin with nvme+tls://"),
            (true, None) => bail!("nvme+tls:// needs the key: --psk-file FILE"),
            (true, Some(file)) => {
                let key = super::key::read(file)?;
                let version = match self.psk_identity {
                    Identity::Zero => IdentityVersion::Zero,
                    Identity::One => IdentityVersion::One,
                };
                Some(tls_psk(&key, &options.host.nqn, &options.subsystem, version)?)
            }
        };
        Ok(TcpConnector { host: address.host.clone(), port: address.port, psk })
    }

    /// The subsystem that is meant: said, or the only one there is.
    async fn subsystem(&self, address: &Address) -> Result<Nqn> {
        match (&address.subsystem, &self.nqn) {
            (Some(_), Some(_)) => bail!("the address names a subsystem already; leave --nqn out"),
            (Some(name), None) => return Ok(name.clone()),
            (None, Some(name)) => return Nqn::new(name).context("--nqn"),
            (None, None) => {}
        }
        if address.is_tls {
            bail!("over TLS the subsystem must be named: …?nqn=NQN, or --nqn NQN");
        }
        let options = self.options(Nqn::new(unlade_nvme_wire::fabrics::DISCOVERY_NQN)?)?;
        let connector = self.connector(address, &options)?;
        let entries = discover(Arc::new(connector), options)
            .await
            .with_context(|| format!("asking {address} for its subsystems (or name one: --nqn)"))?;
        let mut names: Vec<Nqn> = Vec::new();
        for entry in entries {
            if entry.kind == EntryKind::Nvm && !names.contains(&entry.subsystem) {
                names.push(entry.subsystem);
            }
        }
        match names.as_slice() {
            [only] => Ok(only.clone()),
            [] => bail!("{address} knows no subsystem with namespaces"),
            several => {
                let list: Vec<&str> = several.iter().map(Nqn::as_str).collect();
                bail!(
                    "several subsystems are at {address}; choose one with --nqn: {}",
                    list.join(", ")
                )
            }
        }
    }

    /// Connects to the controller at `address`.
    pub async fn connect(&self, address: &Address) -> Result<Controller> {
        let options = self.options(self.subsystem(address).await?)?;
        let connector = self.connector(address, &options)?;
        let wanted = options.digests;
        let controller = Controller::connect(Arc::new(connector), options)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        let (_, _, agreed, _) = controller.agreed().await?;
        if agreed != wanted {
            let missing = declined(wanted, agreed);
            eprintln!(
                "warning: {address} declines {missing}; damage on the way may not be noticed"
            );
        }
        Ok(controller)
    }

    /// Connects, and opens the namespace that `address` names.
    pub async fn namespace(&self, address: &Address) -> Result<Namespace> {
        let number = address.namespace;
        let number =
            number.ok_or_else(|| anyhow!("{address} names no namespace: …/1 for example"))?;
        let controller = self.connect(address).await?;
        Ok(controller.namespace(number).await?)
    }
}

fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let digits: String = text.chars().filter(|character| *character != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    Ok(number.ok_or_else(|| anyhow!("no UUID"))?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_uuids() {
        let id = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(unlade_nvme::initiator::uuid(&id), "00112233-4455-6677-8899-aabbccddeeff");
        for text in ["", "x", "00112233-4455-6677-8899-aabbccddeef"] {
            assert!(parse_uuid(text).is_err());
        }
    }
}
