//! The plan of a lab: its name, nodes, addresses, ports and files. Pure.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use unlade_balancer::PolicyConfig;

/// Servers a lab may have.
pub const SERVERS_MAX: u16 = 64;
/// Characters of a lab's name; a network interface must be able to carry what derives from it.
pub const NAME_CHARS_MAX: usize = 24;
/// Labs that can exist at the same time: the third byte of 10.x.0.0 numbers them.
pub const LABS_MAX: u8 = 250;
/// Where labs keep their state, one directory each.
pub const STATE_ROOT: &str = "/run/unlade/lab";
/// The name that the certificate and every node's hosts file carry.
pub const HOST: &str = "objects.lab";
/// Hosts that the offloading balancer treats in a fixed way, whatever the lab's own setting:
/// name, mode, requests a migration. So one lab compares them in one run.
pub const FIXED_HOSTS: [(&str, OffloadMode, RequestsPerMigration); 5] = [
    ("one.objects.lab", OffloadMode::Always, RequestsPerMigration::Limited(1)),
    ("eight.objects.lab", OffloadMode::Always, RequestsPerMigration::Limited(8)),
    ("unlimited.objects.lab", OffloadMode::Always, RequestsPerMigration::Unlimited),
    ("auto.objects.lab", OffloadMode::Auto, RequestsPerMigration::Limited(8)),
    ("off.objects.lab", OffloadMode::Off, RequestsPerMigration::Limited(1)),
];
/// Hosts with direct return, in a lab with `--direct-return`: name, pool, settings. All responses that
/// are expected to be of 1 KiB or more begin early at the second and the fourth, none at the third. The
/// pool of the fourth has no agents. At the last one the balancer chooses. Over TLS, the servers' agents
/// seal, and responses begin early at the last two only.
pub const DIRECT_HOSTS: [(&str, &str, &str); 5] = [
    ("direct.objects.lab", "direct", "early_from_bytes = \"64KiB\", key_file = KEY"),
    (EARLY_HOST, "early", "early_from_bytes = \"1KiB\", key_file = KEY"),
    (LATE_HOST, "late", "early_from_bytes = \"1GiB\", key_file = KEY"),
    (FORWARD_HOST, "forward", "early_from_bytes = \"1KiB\""),
    (CHOSEN_HOST, "chosen", "key_file = KEY"),
];
/// See [`DIRECT_HOSTS`].
pub const EARLY_HOST: &str = "early.objects.lab";
/// See [`DIRECT_HOSTS`].
pub const LATE_HOST: &str = "late.objects.lab";
/// See [`DIRECT_HOSTS`].
pub const FORWARD_HOST: &str = "forward.objects.lab";
/// See [`DIRECT_HOSTS`].
pub const CHOSEN_HOST: &str = "chosen.objects.lab";
/// A host whose pool has sealing: its agents seal responses to clients with TLS.
pub const SEALED_HOST: &str = "sealed.objects.lab";
/// The same service by IPv6 only.
pub const HOST_V6: &str = "objects6.lab";
/// Where a server proxies are told to go listens.
pub const SERVER_HTTP_PORT: u16 = 8080;
/// Where a server takes connections over.
pub const SERVER_AGENT_PORT: u16 = 7900;
/// `/metrics` of the agent at a server's host, on its own loopback.
pub const AGENT_ADMIN_PORT: u16 = 9902;
/// `/metrics` of a server and of the offloading balancer, on their own loopback.
pub const ADMIN_PORT: u16 = 9900;
/// `/metrics` of the balancer that only proxies.
pub const PROXY_ADMIN_PORT: u16 = 9901;

/// Name of a lab: lower-case letters, digits and `_`. No dash, so that no lab's namespaces can
/// be mistaken for those of another lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LabName(String);

impl LabName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that holds everything about the lab.
    pub fn state_dir(&self) -> PathBuf {
        Path::new(STATE_ROOT).join(&self.0)
    }

    /// The lab a namespace of this name belongs to, if it is one of a lab.
    pub fn of_namespace(namespace: &str) -> Option<LabName> {
        let (name, node) = namespace.strip_prefix("unlade-")?.rsplit_once('-')?;
        node.parse::<Node>().ok()?;
        name.parse().ok()
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LabName {
    type Err = String;

    fn from_str(text: &str) -> Result<LabName, String> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(fits) {
            return Err(format!("a lab's name is 1 to {NAME_CHARS_MAX} characters of a-z, 0-9, _"));
        }
        Ok(LabName(text.to_owned()))
    }
}

/// A machine of the lab; the switch joins the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    Switch,
    Client,
    Lb,
    /// Counted from 1.
    Server(u16),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Switch => f.write_str("sw"),
            Node::Client => f.write_str("client"),
            Node::Lb => f.write_str("lb"),
            Node::Server(number) => write!(f, "s{number}"),
        }
    }
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Node, String> {
        match text {
            "sw" => return Ok(Node::Switch),
            "client" => return Ok(Node::Client),
            "lb" => return Ok(Node::Lb),
            _ => {}
        }
        text.strip_prefix('s')
            .and_then(|number| number.parse().ok())
            .filter(|number| (1..=SERVERS_MAX).contains(number))
            .map(Node::Server)
            .ok_or_else(|| format!("`{text}` is no node; nodes are client, lb, sw, s1, s2, …"))
    }
}

/// A link rate, in bits a second; written like `1gbit`, `200mbit`, `64kbit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate {
    pub bits_per_s: u64,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "bit" | "" => 1,
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            other => return Err(format!("unknown unit `{other}`; write 64kbit, 200mbit, 1gbit")),
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .filter(|bits_per_s| (64_000..=400_000_000_000).contains(bits_per_s))
            .map(|bits_per_s| Rate { bits_per_s })
            .ok_or_else(|| format!("`{text}` is no rate between 64kbit and 400gbit"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits_per_s {
            b if b % 1_000_000_000 == 0 => write!(f, "{}gbit", b / 1_000_000_000),
            b if b % 1_000_000 == 0 => write!(f, "{}mbit", b / 1_000_000),
            b => write!(f, "{b}bit"),
        }
    }
}

/// Which objects the servers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectTree {
    /// Single objects up to 1 MiB, and the mixed set
    Small,
    /// Single objects up to 16 MiB, and the mixed set
    Default,
}

/// A switch on the command line that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Toggle {
    On,
    Off,
}

/// When the balancer hands connections over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OffloadMode {
    /// Whenever it can
    Always,
    /// When it has learnt that it pays
    Auto,
    /// Never: plain proxying
    Off,
}

/// The program that answers at a server's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerKind {
    /// `unlade backend`
    #[default]
    Backend,
    /// nginx, with a sidecar that adopts connections for it
    Nginx,
}

/// Requests that a server answers before a connection that it took over goes home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestsPerMigration {
    Limited(u32),
    Unlimited,
}

impl RequestsPerMigration {
    /// As `lb.toml` and result files have it: a number or `"unlimited"`.
    pub fn to_json(self) -> serde_json::Value {
        match self {
            RequestsPerMigration::Limited(requests) => requests.into(),
            RequestsPerMigration::Unlimited => "unlimited".into(),
        }
    }
}

impl FromStr for RequestsPerMigration {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestsPerMigration, String> {
        match (text, text.parse()) {
            ("unlimited", _) => Ok(RequestsPerMigration::Unlimited),
            (_, Ok(requests @ 1..)) => Ok(RequestsPerMigration::Limited(requests)),
            _ => Err("write a number from 1, or unlimited".to_owned()),
        }
    }
}

/// Returns the parser of `--policy`: the policies of the balancer.
pub fn policy_parser() -> impl TypedValueParser<Value = PolicyConfig> {
    let value = |policy: PolicyConfig| PossibleValue::new(policy.as_str()).help(policy.summary());
    PossibleValuesParser::new(PolicyConfig::ALL.map(value))
        .map(|name| PolicyConfig::from_name(&name).unwrap_or_default())
}

/// Specification of a lab; recorded in its state.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Spec {
    /// Servers behind the balancer
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    pub servers: u16,
    /// Listen for HTTPS too
    #[arg(long)]
    pub tls: bool,
    /// Shape the links of the balancer and of every server to this rate, both directions
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Shape the client's link too
    #[arg(long, value_name = "RATE")]
    pub client_rate: Option<Rate>,
    /// The servers
    #[arg(long, value_enum, default_value_t = ServerKind::Backend)]
    #[serde(default)]
    pub behind: ServerKind,
    /// Objects that the servers hold
    #[arg(long, value_enum, default_value_t = ObjectTree::Default)]
    pub objects: ObjectTree,
    /// Transmit checksum and segmentation offloads of the links
    #[arg(long, value_enum, default_value_t = Toggle::On)]
    pub offloads: Toggle,
    /// When the offloading balancer hands connections over
    #[arg(long, value_enum, default_value_t = OffloadMode::Auto)]
    pub offload: OffloadMode,
    /// Requests that a server answers before the connection goes home, or `unlimited`; without
    /// it, what `unlade lb` takes by itself
    #[arg(long, value_name = "N")]
    pub requests_per_migration: Option<RequestsPerMigration>,
    /// Agents at the servers, which send large responses of direct.objects.lab to the client directly;
    /// those of forward.objects.lab pass the balancer as packets, and for chosen.objects.lab the balancer
    /// chooses
    #[arg(long)]
    #[serde(default)]
    pub direct_return: bool,
    /// How the balancers pick a server
    #[arg(long, value_parser = policy_parser(), default_value_t = PolicyConfig::RoundRobin)]
    pub policy: PolicyConfig,
    /// Workers of each balancer, nginx and haproxy included
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub lb_workers: u16,
    /// Workers of each server
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub server_workers: u16,
    /// Fronts of the servers; nginx and haproxy only when installed
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Front::ALL)]
    pub fronts: Vec<Front>,
    /// Only the network, the certificates and the objects: start no process
    #[arg(long)]
    pub bare: bool,
    /// Run the balancers and the servers with this `unlade` of another version; such a lab has no
    /// pool that seals
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    pub unlade: Option<PathBuf>,
}

impl Default for Spec {
    /// The defaults of the command line.
    fn default() -> Spec {
        Spec {
            servers: 4,
            tls: false,
            rate: None,
            client_rate: None,
            behind: ServerKind::Backend,
            objects: ObjectTree::Default,
            offloads: Toggle::On,
            offload: OffloadMode::Auto,
            requests_per_migration: None,
            direct_return: false,
            policy: PolicyConfig::default(),
            lb_workers: 2,
            server_workers: 1,
            fronts: Front::ALL.to_vec(),
            bare: false,
            unlade: None,
        }
    }
}

/// A front of the servers; each is a process (or more) of its own in the
/// balancer's namespace, so that its processor time can be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Front {
    /// `unlade lb`, handing over
    Offload,
    /// `unlade lb`, proxying
    Proxy,
    /// nginx
    Nginx,
    /// HAProxy
    Haproxy,
}

impl Front {
    pub const ALL: [Front; 4] = [Front::Offload, Front::Proxy, Front::Nginx, Front::Haproxy];

    /// Name of the mode in results.
    pub fn mode(self) -> &'static str {
        match self {
            Front::Offload => "offload",
            Front::Proxy => "proxy",
            Front::Nginx => "nginx",
            Front::Haproxy => "haproxy",
        }
    }

    /// Name of the process in the lab's state.
    pub fn process(self) -> &'static str {
        match self {
            Front::Offload => "lb",
            Front::Proxy => "lb-proxy",
            Front::Nginx => "nginx",
            Front::Haproxy => "haproxy",
        }
    }

    /// The port for plain or TLS connections, on the virtual IP.
    pub fn port(self, tls: bool) -> u16 {
        match (self, tls) {
            (Front::Offload, false) => 80,
            (Front::Offload, true) => 443,
            (Front::Proxy, false) => 8080,
            (Front::Proxy, true) => 8443,
            (Front::Nginx, false) => 81,
            (Front::Nginx, true) => 444,
            (Front::Haproxy, false) => 82,
            (Front::Haproxy, true) => 445,
        }
    }
}

/// A lab whose number is known: every address, name and path follows.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: LabName,
    /// 1 to [`LABS_MAX`].
    pub id: u8,
    pub spec: Spec,
}

impl Plan {
    /// Returns true if an agent at each server's host adopts connections for the server.
    pub fn has_sidecars(&self) -> bool {
        self.spec.behind != ServerKind::Backend && self.spec.fronts.contains(&Front::Offload)
    }

    /// Every node that is not the switch.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        [Node::Client, Node::Lb].into_iter().chain(self.servers())
    }

    /// The servers.
    pub fn servers(&self) -> impl Iterator<Item = Node> + use<> {
        (1..=self.spec.servers).map(Node::Server)
    }

    pub fn namespace(&self, node: Node) -> String {
        namespace(&self.name, node)
    }

    /// The last part of a node's addresses. The virtual IP has 1.
    fn host_number(node: Node) -> u8 {
        match node {
            Node::Switch => 254,
            Node::Client => 2,
            Node::Lb => 3,
            // SERVERS_MAX keeps it below 254.
            Node::Server(number) => 20 + number as u8,
        }
    }

    fn v4(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.id, 0, host)
    }

    /// The same decimal digits as the IPv4 address, read as hexadecimal: s1 is `…::21`.
    fn v6(&self, host: u8) -> Ipv6Addr {
        let digits = u16::from(host / 100) << 8 | u16::from(host / 10 % 10) << 4;
        let last = digits | u16::from(host % 10);
        Ipv6Addr::new(0xfd00, 0x756e, u16::from(self.id), 0, 0, 0, 0, last)
    }

    pub fn address_v4(&self, node: Node) -> Ipv4Addr {
        self.v4(Plan::host_number(node))
    }

    pub fn address_v6(&self, node: Node) -> Ipv6Addr {
        self.v6(Plan::host_number(node))
    }

    pub fn virtual_v4(&self) -> Ipv4Addr {
        self.v4(1)
    }

    pub fn virtual_v6(&self) -> Ipv6Addr {
        self.v6(1)
    }

    /// Where `front` listens: both families, plain and, if the lab has it, TLS.
    pub fn front_addresses(&self, front: Front) -> Vec<SocketAddr> {
        let ips = [IpAddr::V4(self.virtual_v4()), IpAddr::V6(self.virtual_v6())];
        let tls: &[bool] = if self.spec.tls { &[false, true] } else { &[false] };
        tls.iter().flat_map(|&tls| ips.map(|ip| SocketAddr::new(ip, front.port(tls)))).collect()
    }

    pub fn dir(&self) -> PathBuf {
        self.name.state_dir()
    }

    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir().join("pki").join(file)
    }

    pub fn objects_dir(&self) -> PathBuf {
        self.dir().join("objects")
    }

    pub fn sums_file(&self) -> PathBuf {
        self.dir().join("SHA256SUMS")
    }

    pub fn config_file(&self, file: &str) -> PathBuf {
        self.dir().join("config").join(file)
    }

    pub fn log_file(&self, process: &str) -> PathBuf {
        self.dir().join("logs").join(format!("{process}.log"))
    }
}

/// The network namespace of a node.
pub fn namespace(name: &LabName, node: Node) -> String {
    format!("unlade-{name}-{node}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: Spec,
    }

    fn plan() -> Plan {
        let spec = Line::parse_from(["x", "--tls", "--servers", "12"]).spec;
        Plan { name: "a_1".parse().unwrap(), id: 9, spec }
    }

    #[test]
    fn defaults_are_those_of_the_command_line() {
        assert_eq!(Line::parse_from(["x"]).spec, Spec::default());
    }

    #[test]
    fn names_that_could_be_confused_are_refused() {
        for bad in ["", "a-b", "A", "x/y", "..", "a b", &"a".repeat(25)] {
            assert!(bad.parse::<LabName>().is_err(), "{bad}");
        }
        assert!("lab_2".parse::<LabName>().is_ok());
    }

    #[test]
    fn namespaces_name_their_lab() {
        let plan = plan();
        for node in plan.nodes().chain([Node::Switch]) {
            let namespace = plan.namespace(node);
            assert_eq!(LabName::of_namespace(&namespace), Some(plan.name.clone()));
            assert_eq!(node.to_string().parse::<Node>(), Ok(node));
        }
        for other in ["unlade-a_1", "unlade-a_1-x", "unlade-a_1-s0", "other-a_1-lb", "unlade--lb"] {
            assert_eq!(LabName::of_namespace(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_are_distinct_and_readable() {
        let plan = plan();
        assert_eq!(plan.virtual_v4().to_string(), "10.9.0.1");
        assert_eq!(plan.virtual_v6().to_string(), "fd00:756e:9::1");
        assert_eq!(plan.address_v4(Node::Server(12)).to_string(), "10.9.0.32");
        assert_eq!(plan.address_v6(Node::Server(12)).to_string(), "fd00:756e:9::32");
        let mut all: Vec<_> = plan.nodes().map(|node| plan.address_v6(node)).collect();
        all.push(plan.virtual_v6());
        all.sort();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn rates_read_like_tc_writes_them() {
        assert_eq!("1gbit".parse::<Rate>().unwrap().bits_per_s, 1_000_000_000);
        assert_eq!("200mbit".parse::<Rate>().unwrap().to_string(), "200mbit");
        for bad in ["", "gbit", "1tbit", "-1mbit", "1bit", "99999999999999999999gbit"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn no_two_fronts_share_a_port() {
        let plan = plan();
        let mut ports: Vec<_> =
            Front::ALL.iter().flat_map(|&front| plan.front_addresses(front)).collect();
        let count = ports.len();
        ports.sort();
        ports.dedup();
        assert_eq!((ports.len(), count), (16, 16));
    }
}
