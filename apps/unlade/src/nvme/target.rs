//! `unlade nvme target`: files and memory as namespaces.

use anyhow::{Result, bail};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use unlade_config::ByteSize;
use unlade_nvme::secure::PskAcceptor;
use unlade_nvme::target::{self, Acceptor, Identity, NamespaceConfig, Source, TargetConfig};
use unlade_nvme_wire::Nqn;
use unlade_runtime::logs::LogFormat;

use crate::daemon;

const ABOUT: &str = "\
Serves files, block devices and memory as NVMe namespaces over TCP until SIGTERM or SIGINT, on \
which it answers the commands in work and ends. Any NVMe/TCP host can use it: Linux's own \
(`nvme connect`), or `unlade nvme`.

Namespaces are numbered from 1 in the order given. Each has an identity (NGUID, UUID) by which \
hosts know it again, chosen at random when an image is first served, and kept beside it: that of \
disk.img is in disk.img.nvme-id. Keep that file with the image. A copy of an image is given an \
identity of its own, also where the file was copied along. (Clones of a whole file system or \
machine are not noticed: remove the file there.) A block device has no place for such a file and \
needs --uuid; any UUID will do that nothing else has. Memory has another identity after each start. \
The subsystem's name is made from these identities; it is in the log, and `unlade nvme discover` \
lists it.

A flush of the host is an fdatasync of the file; what was written and not flushed may be lost with \
the machine, as with a disk that has a cache. Memory is lost when the target ends.

Hosts choose whether headers and data have digests (CRC32C); the options below say whether they \
may. Every host that reaches the address can read and write everything, so keep it on a trusted network; \
with --psk-file only hosts that have the key can, over TLS 1.3.";

const HELP: &str = "\
Examples:
  unlade nvme target --namespace ram:1GiB
  truncate -s 10G disk.img
  unlade nvme target --listen 192.0.2.1:4420 --namespace disk.img --admin 127.0.0.1:9902
  unlade nvme target --config target.toml --check
  unlade nvme key --out disk.key
  unlade nvme target --namespace disk.img --psk-file disk.key --nqn nqn.2014-08.org.example:disk
  unlade nvme target --namespace /dev/sdb --uuid 2f1d8a5e-53b8-4c55-9c7e-5d2c0a7f6e11

From a Linux host, with its own initiator:
  modprobe nvme-tcp
  nvme connect-all -t tcp -a 192.0.2.1 -s 4420 --data-digest

A target.toml; all keys but the namespaces can be left out, here are the defaults, or examples
where there is none:
  listen = \"127.0.0.1:4420\"
  admin = \"127.0.0.1:9902\"          # /metrics, /healthz, /version; none where not said
  nqn = \"nqn.2026-01.com.example:disks\" # made from the namespaces' identities where not said
  workers = 2                       # threads, 1 to 256; the number of processors where not said
  connections_max = 1024            # 1 to 65536
  controllers_max = 64              # hosts that are connected, 1 to 1024
  queues = 8                        # I/O queues of a host, 1 to 64
  queue_depth = 128                 # commands of a queue, 2 to 1024
  in_capsule_bytes = \"8KiB\"         # of data that comes with its command, 0 to 64KiB
  transfer_bytes_max = \"1MiB\"       # of data of one command: 4KiB to 16MiB, a power of two
  host_data_bytes_max = \"256KiB\"    # of data in one PDU from a host, 4KiB to 16MiB
  request_bytes_max = \"1MiB\"        # of data asked for at a time (R2T), 4KiB to 16MiB,
  requests_max = 4                  #   and how often at a time for one command, 1 to 16
  send_bytes_max = \"256KiB\"         # of data in one PDU to a host, 4KiB to 16MiB
  in_flight_bytes_max = \"16MiB\"     # of data of a queue's commands, transfer_bytes_max to 4GiB
  header_digest = true              # whether hosts may have them
  data_digest = true
  connect_timeout = \"10s\"           # 1ms to 1h, as the next
  drain_timeout = \"10s\"
  [[namespaces]]
  source = \"disk.img\"               # beside this file; or \"ram:1GiB\"
  block_bytes = 4096                # or 512
  read_only = false
  # or \"random\"; kept in disk.img.nvme-id where not said
  uuid = \"2f1d8a5e-53b8-4c55-9c7e-5d2c0a7f6e11\"
  [log]
  format = \"text\"                   # or \"json\"
  level = \"info\"

Exit status: 0 after an orderly end, 1 on failure, 2 on wrong usage.";

/// Serve files and memory to NVMe/TCP hosts
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = HELP)]
pub struct TargetArgs {
    /// The configuration; options beside it go before what it says
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
    /// Where hosts connect [default: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// A namespace: a file, a block device, or ram:SIZE (may be repeated)
    #[arg(long = "namespace", value_name = "FILE|ram:SIZE")]
    namespaces: Vec<Source>,
    /// Bytes of a block, of the namespaces given here: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 4096, requires = "namespaces")]
    block_bytes: u32,
    /// Refuse to write to the namespaces given here
    #[arg(long, requires = "namespaces")]
    read_only: bool,
    /// Identity of the namespace given here, by which hosts know it again; "random" is another one
    /// at each start [default: kept in FILE.nvme-id; for memory random]
    #[arg(long, value_name = "UUID|random", requires = "namespaces")]
    uuid: Option<Identity>,
    /// The subsystem's name [default: made from the identities of the namespaces]
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// Threads [default: the number of processors]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// I/O queues of a host [default: 8]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// Commands of a queue at a time [default: 128]
    #[arg(long, value_name = "N")]
    queue_depth: Option<u16>,
    /// Data that comes with its command [default: 8KiB]
    #[arg(long, value_name = "SIZE")]
    in_capsule_bytes: Option<ByteSize>,
    /// Data that is asked for at a time (R2T) [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    request_bytes_max: Option<ByteSize>,
    /// Which digests hosts may have [default: both]
    #[arg(long, value_name = "WHICH", conflicts_with_all = ["header_digest", "data_digest"])]
    #[arg(num_args = 0..=1, default_missing_value = "both")]
    digests: Option<DigestChoice>,
    /// Hosts may have digests of headers (and, if this is all that is said, not of data)
    #[arg(long)]
    header_digest: bool,
    /// Hosts may have digests of data (and, if this is all that is said, not of headers)
    #[arg(long)]
    data_digest: bool,
    /// Hosts must use TLS 1.3 with this pre-shared key, as `unlade nvme key` makes it
    #[arg(long, value_name = "FILE")]
    psk_file: Option<PathBuf>,
    /// Where /metrics, /healthz and /version are served [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<SocketAddr>,
    /// Format of the log [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogChoice>,
}

/// Digests that hosts may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DigestChoice {
    None,
    Header,
    Data,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogChoice {
    Text,
    Json,
}

/// Runs `unlade nvme target`.
///
/// # Errors
/// The configuration, or what stopped the target.
pub fn run(args: &TargetArgs) -> Result<ExitCode> {
    let config = config(args)?;
    config.check()?;
    let log = config.log.clone();
    daemon::Start { check: args.check, log: &log }.run(
        daemon::valid(args.config.as_deref(), "the options are valid"),
        daemon::nothing_more,
        || {
            let (config, identities) = config.identified()?;
            let acceptor = acceptor(args, identities.nqn)?;
            Ok(target::run(config, acceptor)?)
        },
    )
}

/// TLS, where a key is given.
fn acceptor(args: &TargetArgs, subsystem: Nqn) -> Result<Option<Arc<dyn Acceptor>>> {
    let Some(file) = &args.psk_file else { return Ok(None) };
    let key = super::key::read(file)?;
    Ok(Some(Arc::new(PskAcceptor::new(key, subsystem))))
}

/// The file, and the options over it.
fn config(args: &TargetArgs) -> Result<TargetConfig> {
    if matches!(args.uuid, Some(Identity::Fixed(_))) && args.namespaces.len() > 1 {
        bail!(
            "--uuid is for one --namespace; write several into a configuration, each with uuid = …"
        );
    }
    let mut config = match &args.config {
        Some(file) => TargetConfig::read(file)?,
        None => TargetConfig::default(),
    };
    let given = args.namespaces.iter().map(|source| NamespaceConfig {
        source: source.clone(),
        block_bytes: args.block_bytes,
        read_only: args.read_only,
        uuid: args.uuid,
    });
    config.namespaces.extend(given);
    config.admin = args.admin.or(config.admin);
    set(&mut config.listen, args.listen);
    config.nqn = args.nqn.clone().or(config.nqn);
    set(&mut config.workers, args.workers);
    set(&mut config.queues, args.queues);
    set(&mut config.queue_depth, args.queue_depth);
    set(&mut config.in_capsule_bytes, args.in_capsule_bytes);
    set(&mut config.request_bytes_max, args.request_bytes_max);
    if let Some((header, data)) = digests(args) {
        (config.header_digest, config.data_digest) = (header, data);
    }
    let format = args.log_format.map(|choice| match choice {
        LogChoice::Text => LogFormat::Text,
        LogChoice::Json => LogFormat::Json,
    });
    set(&mut config.log.format, format);
    Ok(config)
}

fn set<T>(place: &mut T, given: Option<T>) {
    if let Some(value) = given {
        *place = value;
    }
}

fn digests(args: &TargetArgs) -> Option<(bool, bool)> {
    match args.digests {
        Some(DigestChoice::None) => Some((false, false)),
        Some(DigestChoice::Header) => Some((true, false)),
        Some(DigestChoice::Data) => Some((false, true)),
        Some(DigestChoice::Both) => Some((true, true)),
        None if args.header_digest || args.data_digest => {
            Some((args.header_digest, args.data_digest))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TargetArgs,
    }

    fn read(line: &str) -> TargetConfig {
        let words = ["target"].into_iter().chain(line.split_whitespace());
        config(&Line::try_parse_from(words).unwrap().args).unwrap()
    }

    #[test]
    fn options_make_a_configuration() {
        let line = "--listen 127.0.0.1:0 --namespace ram:1MiB --namespace disk.img --block-bytes 512 \
                    --queues 2 --in-capsule-bytes 16KiB --nqn nqn.2026-01.example:disk";
        let config = read(line);
        config.check().unwrap();
        assert_eq!((config.namespaces.len(), config.queues), (2, 2));
        assert_eq!(config.namespaces[1].source, Source::File("disk.img".into()));
        assert_eq!((config.namespaces[0].block_bytes, config.in_capsule_bytes.0), (512, 16384));
        assert!(config.header_digest && config.data_digest);
    }

    #[test]
    fn digests_can_be_chosen() {
        let choice = |line: &str| {
            let config = read(&format!("--namespace ram:1MiB {line}"));
            (config.header_digest, config.data_digest)
        };
        assert_eq!(choice("--digests"), (true, true));
        assert_eq!(choice("--digests none"), (false, false));
        assert_eq!(choice("--digests=data"), (false, true));
        assert_eq!(choice("--header-digest"), (true, false));
        assert_eq!(choice("--header-digest --data-digest"), (true, true));
    }

    #[test]
    fn options_go_before_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("target.toml");
        std::fs::write(&file, "queues = 3\nqueue_depth = 64\n").unwrap();
        let line = format!("--config {} --queues 5 --namespace ram:1MiB", file.display());
        let config = read(&line);
        assert_eq!((config.queues, config.queue_depth, config.namespaces.len()), (5, 64, 1));
    }
}
