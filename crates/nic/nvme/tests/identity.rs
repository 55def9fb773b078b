//! Two targets side by side, as a host sees them.

mod host;

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;

use host::{Host, HostParameters, Job};
use unlade_nvme::target::{Target, TargetConfig};
use unlade_nvme_wire::fabrics::{CONTROLLER_DYNAMIC, DISCOVERY_NQN, Property, PropertyAccess};
use unlade_nvme_wire::identify::{
    IdentifyController, IdentifyKind, IdentifyNamespace, NamespaceNames, parse_namespaces,
};
use unlade_nvme_wire::{AdminOpcode, Command};
use unlade_runtime::Control;

const IMAGE_BYTES: u64 = 1 << 20;

/// A target in this process with the default configuration of its namespaces; ended when dropped.
struct Rig {
    address: SocketAddr,
    control: Control<()>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    fn start(directory: &Path, sources: &[&str]) -> Rig {
        let file = directory.join(format!("{}.toml", sources.join("+").replace(':', "-")));
        let mut text = "listen = \"127.0.0.1:0\"\nworkers = 1\n".to_owned();
        for source in sources {
            text.push_str(&format!("[[namespaces]]\nsource = \"{source}\"\n"));
        }
        std::fs::write(&file, text).unwrap();
        let target = Target::bind(TargetConfig::load(&file).unwrap(), None).unwrap();
        let (address, control) = (target.address(), target.control());
        let thread = Some(std::thread::spawn(move || {
            target.run(false).unwrap();
        }));
        Rig { address, control, thread }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.control.drain();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// The properties by which a host identifies disks.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    nqn: String,
    serial: String,
    /// NGUIDs, and the names in the list of descriptors.
    namespaces: Vec<([u8; 16], NamespaceNames)>,
}

fn admin(address: SocketAddr, nqn: &str, configuration: u64) -> Host {
    let parameters = HostParameters::default();
    let mut host = Host::init(address, &parameters);
    let connected = host.connect(0, CONTROLLER_DYNAMIC, &parameters, nqn);
    assert!(connected.status.is_success(), "{nqn}: {connected:?}");
    let enable = PropertyAccess::set(Property::Configuration, configuration, 0);
    assert!(host.run(vec![Job::new(enable)])[0].0.status.is_success());
    host
}

/// The name of the only subsystem, from discovery.
fn discovered(address: SocketAddr) -> String {
    let page = Command::build(AdminOpcode::GetLogPage as u8, 0, 0).with_dword(10, 0x70 | 767 << 16);
    let page = Job::reading(page, 3072);
    let (end, data) = admin(address, DISCOVERY_NQN, 1).run(vec![page]).remove(0);
    assert!(end.status.is_success());
    let (_, entries) = unlade_nvme_wire::discovery::parse_page(&data).unwrap();
    entries[1].subsystem.to_string()
}

fn seen(rig: &Rig) -> Seen {
    let nqn = discovered(rig.address);
    let mut host = admin(rig.address, &nqn, 0x46_0001);
    let mut identify = |kind: IdentifyKind, number: u32| {
        let ask =
            Command::build(AdminOpcode::Identify as u8, 0, number).with_dword(10, kind as u32);
        let (end, data) = host.run(vec![Job::reading(ask, 4096)]).remove(0);
        assert!(end.status.is_success(), "{kind:?}: {end:?}");
        data
    };
    let controller = IdentifyController::parse(&identify(IdentifyKind::Controller, 0)).unwrap();
    let numbers = parse_namespaces(&identify(IdentifyKind::ActiveNamespaces, 0)).unwrap();
    let mut namespaces = Vec::new();
    for number in numbers {
        let space = identify(IdentifyKind::Namespace, number);
        let names = identify(IdentifyKind::Descriptors, number);
        let space = IdentifyNamespace::parse(&space).unwrap();
        namespaces.push((space.guid, NamespaceNames::parse(&names).unwrap()));
    }
    Seen { nqn, serial: controller.serial, namespaces }
}

fn image(directory: &Path, name: &str) {
    File::create(directory.join(name)).unwrap().set_len(IMAGE_BYTES).unwrap();
}

#[test]
fn two_default_targets_do_not_become_one_disk() {
    let directory = tempfile::tempdir().unwrap();
    image(directory.path(), "a.img");
    image(directory.path(), "b.img");
    let (a, b) =
        (Rig::start(directory.path(), &["a.img"]), Rig::start(directory.path(), &["b.img"]));
    let (seen_a, seen_b) = (seen(&a), seen(&b));
    assert_ne!(seen_a.nqn, seen_b.nqn);
    assert_ne!(seen_a.serial, seen_b.serial);
    assert_ne!(seen_a.namespaces, seen_b.namespaces);
    assert!(seen_a.nqn.starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{seen_a:?}");
    assert_eq!(seen_a.serial.len(), 20, "{seen_a:?}");
    // After a restart, on another port, each is unchanged.
    let former = a.address;
    drop(a);
    let again = Rig::start(directory.path(), &["a.img"]);
    assert_eq!(seen(&again), seen_a);
    drop(again);
    assert_ne!(former, b.address);
    assert_eq!(seen(&b), seen_b);
}

#[test]
fn namespaces_in_memory_do_not_become_one_disk() {
    let directory = tempfile::tempdir().unwrap();
    let start = || Rig::start(directory.path(), &["ram:1MiB", "ram:1MiB"]);
    let (seen_a, seen_b) = (seen(&start()), seen(&start()));
    let all: Vec<_> = seen_a.namespaces.iter().chain(&seen_b.namespaces).collect();
    for (place, one) in all.iter().enumerate() {
        assert!(!all[..place].contains(one), "{all:?}");
        assert_eq!((one.1.guid, one.1.uuid), (Some(one.0), Some(one.0)));
        assert_ne!(one.0, [0; 16]);
    }
    assert_ne!(seen_a.nqn, seen_b.nqn);
}
