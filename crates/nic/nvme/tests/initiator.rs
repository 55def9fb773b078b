//! The initiator against this crate's target, over real sockets: digests, TLS, concurrency,
//! losses.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use unlade_config::ByteSize;
use unlade_nvme::initiator::{
    ConnectError, Connecting, Connector, Controller, DeviceError, Host, Link, Options,
    TcpConnector, discover,
};
use unlade_nvme::secure::{ConfiguredKey, IdentityVersion, PskAcceptor, tls_psk};
use unlade_nvme::target::{Acceptor, NamespaceConfig, Source, Subsystem, Target, TargetConfig};
use unlade_nvme_wire::discovery::EntryKind;
use unlade_nvme_wire::{Digests, Nqn};
use unlade_runtime::{Control, Ended};

const NQN: &str = "nqn.2014-08.org.example:disk";
const BYTES: usize = 8 << 20;
/// Timeout of every wait; it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target in this process, with a namespace in memory and one in a read-only file.
struct Rig {
    address: SocketAddr,
    subsystem: Arc<Subsystem>,
    control: Control<()>,
    thread: Option<JoinHandle<Ended>>,
}

impl Rig {
    fn start(key: Option<&ConfiguredKey>) -> Rig {
        Rig::start_with(key, TargetConfig::default())
    }

    fn start_with(key: Option<&ConfiguredKey>, config: TargetConfig) -> Rig {
        let ram = Source::Ram(ByteSize(BYTES as u64));
        let space = |read_only| NamespaceConfig {
            source: ram.clone(),
            block_bytes: 4096,
            read_only,
            uuid: None,
        };
        let config = TargetConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            nqn: Some(NQN.to_owned()),
            namespaces: vec![space(false), space(true)],
            workers: 2,
            ..config
        };
        let acceptor = key.map(|key| {
            let acceptor = PskAcceptor::new(key.clone(), Nqn::new(NQN).unwrap());
            Arc::new(acceptor) as Arc<dyn Acceptor>
        });
        let target = Target::bind(config, acceptor).unwrap();
        let (address, subsystem) = (target.address(), target.subsystem());
        let control = target.control();
        let thread = Some(std::thread::spawn(move || target.run(false).unwrap()));
        Rig { address, subsystem, control, thread }
    }

    fn connector(&self) -> TcpConnector {
        TcpConnector { host: "127.0.0.1".into(), port: self.address.port(), psk: None }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.control.drain();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn options() -> Options {
    Options::new(Host::random().unwrap(), Nqn::new(NQN).unwrap())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, test).await.expect("it ends");
    });
}

/// Bytes that are derived from a seed.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let word = |_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    (0..bytes).map(word).collect()
}

/// Writes and reads all sizes, whole and in parts, several concurrently.
async fn exercise(controller: &Controller) {
    let disk = controller.namespace(1).await.unwrap();
    assert_eq!((disk.size_bytes(), disk.block_bytes()), (BYTES as u64, 4096));
    for (turn, bytes) in [4096, 8192, 12288, 65536, 1 << 20, 3 << 20].into_iter().enumerate() {
        let wanted = content(turn as u64, bytes);
        disk.write_from(4096 * turn as u64, &wanted).await.unwrap();
        let mut got = vec![0xee; bytes];
        disk.read(4096 * turn as u64, &mut got).await.unwrap();
        assert!(got == wanted, "{bytes} bytes");
        let got = disk.read_owned(4096 * turn as u64, vec![0; bytes]).await.unwrap();
        assert!(got == wanted, "{bytes} bytes, owned");
    }
    disk.flush().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200_u64 {
        let disk = disk.clone();
        tasks.spawn(async move {
            let wanted = content(number, 16384);
            let offset = number * 16384;
            disk.write_from(offset, &wanted).await.unwrap();
            assert!(disk.read_owned(offset, vec![0; 16384]).await.unwrap() == wanted);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    disk.write_zeroes(8192, 16384).await.unwrap();
    assert_eq!(disk.read_owned(8192, vec![1; 16384]).await.unwrap(), vec![0; 16384]);
}

#[test]
fn what_is_written_is_read_with_any_digests_and_queues() {
    let rig = Rig::start(None);
    run(async {
        for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
            for (queues, depth) in [(1, 1), (1, 64), (4, 16)] {
                let digests = Digests { header, data };
                let options = Options { digests, queues, depth, ..options() };
                let connector = Arc::new(rig.connector());
                let controller = Controller::connect(connector, options).await.unwrap();
                let (_, _, agreed, io) = controller.agreed().await.unwrap();
                assert_eq!((agreed, io), (digests, usize::from(queues)));
                exercise(&controller).await;
                assert_eq!(controller.stats().reconnects, 0);
                controller.close().await;
            }
        }
    });
}

#[test]
fn tls_with_either_identity_and_hash_carries_the_same() {
    run(async {
        for is_long in [false, true] {
            let key = ConfiguredKey::generate(is_long).unwrap();
            let rig = Rig::start(Some(&key));
            for version in [IdentityVersion::Zero, IdentityVersion::One] {
                let options = Options { digests: Digests::BOTH, queues: 2, ..options() };
                let psk = tls_psk(&key, &options.host.nqn, &options.subsystem, version).unwrap();
                let connector = TcpConnector { psk: Some(psk), ..rig.connector() };
                let controller = Controller::connect(Arc::new(connector), options).await.unwrap();
                exercise(&controller).await;
                controller.close().await;
            }
        }
    });
}

#[test]
fn a_host_that_does_not_begin_tls_does_not_hold_up_a_drain() {
    let key = ConfiguredKey::generate(false).unwrap();
    let config =
        TargetConfig { connect_timeout: Duration::from_secs(3600), ..TargetConfig::default() };
    let mut rig = Rig::start_with(Some(&key), config);
    let _silent = TcpStream::connect(rig.address).unwrap();
    while rig.subsystem.counts().accepted == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.control.drain();
    let ended = rig.thread.take().map(JoinHandle::join);
    assert!(matches!(ended, Some(Ok(Ended::Finished))), "{ended:?}");
}

#[test]
fn tls_with_another_key_or_without_any_is_a_clear_error() {
    let (key, other) =
        (ConfiguredKey::generate(false).unwrap(), ConfiguredKey::generate(false).unwrap());
    let rig = Rig::start(Some(&key));
    run(async {
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            let options = options();
            let psk = tls_psk(&other, &options.host.nqn, &options.subsystem, version).unwrap();
            let connector = TcpConnector { psk: Some(psk), ..rig.connector() };
            let refused = Controller::connect(Arc::new(connector), options).await.unwrap_err();
            assert!(refused.to_string().contains("the keys differ"), "{refused}");
        }
        let plain = Controller::connect(Arc::new(rig.connector()), options()).await.unwrap_err();
        assert!(matches!(plain, ConnectError::NotNvme | ConnectError::Init(_)), "{plain}");
    });
}

#[test]
fn mistakes_of_the_caller_are_said() {
    let rig = Rig::start(None);
    run(async {
        let wrong = Nqn::new("nqn.2014-08.org.example:other").unwrap();
        let other = Options { subsystem: wrong, ..options() };
        let refused = Controller::connect(Arc::new(rig.connector()), other).await.unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { queue: 0, .. }), "{refused}");
        let controller = Controller::connect(Arc::new(rig.connector()), options()).await.unwrap();
        assert_eq!(controller.namespaces().await.unwrap(), [1, 2]);
        let disk = controller.namespace(1).await.unwrap();
        let odd = disk.read(1, &mut [0; 4096]).await.unwrap_err();
        assert!(matches!(odd, DeviceError::Misaligned { .. }), "{odd}");
        let beyond = disk.read(BYTES as u64, &mut [0; 4096]).await.unwrap_err();
        assert!(matches!(beyond, DeviceError::OutOfRange { .. }), "{beyond}");
        let far = disk.write_from(u64::MAX - 4095, &[0; 4096]).await.unwrap_err();
        assert!(matches!(far, DeviceError::OutOfRange { .. }), "{far}");
        let fixed = controller.namespace(2).await.unwrap();
        assert!(matches!(fixed.write_from(0, &[0; 4096]).await, Err(DeviceError::ReadOnly)));
        controller.close().await;
        let gone = disk.read(0, &mut [0; 4096]).await.unwrap_err();
        assert!(matches!(gone, DeviceError::Gone(_)), "{gone}");
    });
}

#[test]
fn a_missing_namespace_is_named_with_those_that_there_are() {
    let rig = Rig::start(None);
    run(async {
        let controller = Controller::connect(Arc::new(rig.connector()), options()).await.unwrap();
        let missing = controller.namespace(7).await.unwrap_err().to_string();
        assert!(missing.contains("no namespace 7") && missing.contains("1, 2"), "{missing}");
        controller.close().await;
    });
}

#[test]
fn a_refused_connection_does_not_read_as_tls() {
    // A port that was free a moment ago, at an address without other users.
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = SocketAddr::from(([127, 93, high, low], 0));
    let address = std::net::TcpListener::bind(own).unwrap().local_addr().unwrap();
    let connector =
        TcpConnector { host: address.ip().to_string(), port: address.port(), psk: None };
    run(async {
        let refused = Controller::connect(Arc::new(connector), options()).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(&format!("connection refused by {address}")), "{text}");
        assert!(!text.contains("TLS"), "{text}");
    });
}

#[test]
fn digests_that_are_declined_are_not_dropped_silently() {
    let config = TargetConfig { data_digest: false, ..TargetConfig::default() };
    let rig = Rig::start_with(None, config);
    run(async {
        let asking = Options { digests: Digests::BOTH, ..options() };
        let refused = Controller::connect(Arc::new(rig.connector()), asking.clone()).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("declines digests of data"), "{text}");
        let content = Options { digests_required: false, ..asking };
        let controller = Controller::connect(Arc::new(rig.connector()), content).await.unwrap();
        let (_, _, agreed, _) = controller.agreed().await.unwrap();
        assert_eq!(agreed, Digests { header: true, data: false });
        controller.close().await;
        let less = Options { digests: Digests { header: true, data: false }, ..options() };
        Controller::connect(Arc::new(rig.connector()), less).await.unwrap().close().await;
    });
}

#[test]
fn a_lost_connection_is_told_with_its_attempts() {
    let rig = Rig::start(None);
    let connector = Cuttable { inner: rig.connector(), cut: Arc::default(), made: Arc::default() };
    run(async {
        let mut options = options();
        options.reconnect.attempts_max = 2;
        let controller = Controller::connect(Arc::new(connector.clone()), options).await.unwrap();
        let mut link = controller.link();
        connector.cut.notify_waiters();
        // The state before the reconnection may have passed unseen.
        let mut seen = Vec::new();
        while seen.last() != Some(&Link::Up) {
            seen.push(link.changed().await.unwrap());
        }
        assert!(seen.iter().all(|link| matches!(link, Link::Lost(_) | Link::Up)), "{seen:?}");
        drop(rig);
        // The end of the target is detected, and no listener is left.
        let mut attempts = Vec::new();
        let end = loop {
            match link.changed().await.unwrap() {
                Link::Lost(loss) => attempts.push(loss.attempts),
                end => break end,
            }
        };
        assert!(attempts.is_sorted() && attempts.iter().all(|count| *count <= 2), "{attempts:?}");
        let Link::Gone(reason) = end else { panic!("{end:?}") };
        assert!(reason.contains("given up after 2 attempts"), "{reason}");
        assert!(reason.contains("connection refused by 127.0.0.1"), "{reason}");
    });
}

#[test]
fn subsystems_are_discovered() {
    let rig = Rig::start(None);
    run(async {
        let entries = discover(Arc::new(rig.connector()), options()).await.unwrap();
        let subsystems: Vec<_> =
            entries.iter().filter(|entry| entry.kind == EntryKind::Nvm).collect();
        assert_eq!(subsystems.len(), 1);
        assert_eq!(subsystems[0].subsystem.as_str(), NQN);
        assert_eq!(subsystems[0].service.trim(), rig.address.port().to_string());
    });
}

/// Connects through a relay whose connections can be cut.
#[derive(Clone)]
struct Cuttable {
    inner: TcpConnector,
    cut: Arc<tokio::sync::Notify>,
    made: Arc<Mutex<u32>>,
}

impl Connector for Cuttable {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            let mut below = self.inner.connect().await?;
            let (near, mut far) = tokio::io::duplex(64 * 1024);
            *self.made.lock().unwrap() += 1;
            let cut = self.cut.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = cut.notified() => {}
                    _ = tokio::io::copy_bidirectional(&mut far, &mut below) => {}
                }
            });
            Ok(Box::new(near) as unlade_nvme::initiator::BoxStream)
        })
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }
}

#[test]
fn commands_outlive_connections() {
    let rig = Rig::start(None);
    let connector = Cuttable { inner: rig.connector(), cut: Arc::default(), made: Arc::default() };
    run(async {
        let options = Options { queues: 2, depth: 8, retries_max: 50, ..options() };
        let controller = Controller::connect(Arc::new(connector.clone()), options).await.unwrap();
        let disk = controller.namespace(1).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..16_u64 {
            let disk = disk.clone();
            tasks.spawn(async move {
                for turn in 0..20 {
                    let wanted = content(number * 100 + turn, 65536);
                    disk.write_from(number * 65536, &wanted).await.unwrap();
                    let got = disk.read_owned(number * 65536, vec![0; 65536]).await.unwrap();
                    assert!(got == wanted, "{number} {turn}");
                }
            });
        }
        let mut done = 0;
        let mut cuts = 0;
        while done < 16 {
            tokio::select! {
                ended = tasks.join_next() => {
                    ended.unwrap().unwrap();
                    done += 1;
                }
                () = tokio::time::sleep(Duration::from_millis(20)), if cuts < 5 => {
                    cuts += 1;
                    connector.cut.notify_waiters();
                }
            }
        }
        // The work may have been complete before the first cut: then this one is detected.
        connector.cut.notify_waiters();
        disk.read_owned(0, vec![0; 4096]).await.unwrap();
        assert!(controller.stats().reconnects >= 1);
        assert!(*connector.made.lock().unwrap() >= 6, "three connections, twice");
        controller.close().await;
    });
}

#[test]
fn without_a_way_back_the_controller_is_gone() {
    let rig = Rig::start(None);
    let connector = Cuttable { inner: rig.connector(), cut: Arc::default(), made: Arc::default() };
    run(async {
        let mut options = options();
        options.reconnect.attempts_max = 0;
        let controller = Controller::connect(Arc::new(connector.clone()), options).await.unwrap();
        let disk = controller.namespace(1).await.unwrap();
        connector.cut.notify_waiters();
        let error = disk.read_owned(0, vec![0; 4096]).await.unwrap_err();
        assert!(matches!(error, DeviceError::Gone(_)), "{error}");
    });
}

/// Calls that are dropped at any time leave the queue unharmed, and later ones correct.
#[test]
fn dropped_calls_harm_nobody() {
    let rig = Rig::start(None);
    run(async {
        let options = Options { depth: 4, ..options() };
        let controller = Controller::connect(Arc::new(rig.connector()), options).await.unwrap();
        let disk = controller.namespace(1).await.unwrap();
        for turn in 0..300_u64 {
            let wanted = content(turn, 262_144);
            disk.write_from(0, &wanted).await.unwrap();
            for wait_us in [0, turn * 3] {
                let limit = Duration::from_micros(wait_us);
                // Too short in most cases.
                let _ = tokio::time::timeout(limit, disk.read_owned(0, vec![0; 262_144])).await;
            }
            if turn % 20 == 0 {
                assert!(disk.read_owned(0, vec![0; 262_144]).await.unwrap() == wanted);
            }
        }
        assert_eq!(controller.stats().reconnects, 0);
        controller.close().await;
    });
}

#[test]
fn signs_of_life_keep_a_quiet_controller() {
    let rig = Rig::start(None);
    run(async {
        // Long compared to any pause of this process: no pause may count as the host's silence.
        let options = Options { keep_alive: Duration::from_secs(5), ..options() };
        let controller = Controller::connect(Arc::new(rig.connector()), options).await.unwrap();
        while controller.stats().keep_alives < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(controller.stats().reconnects, 0);
        controller.namespace(1).await.unwrap().read(0, &mut [0; 4096]).await.unwrap();
        controller.close().await;
    });
}
