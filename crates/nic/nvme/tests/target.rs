//! The target over real sockets, with a small host: random I/O against a model disk, and hostile
//! hosts. `UNLADE_SEED` repeats the run of a seed; `UNLADE_NVME_ROUNDS` sets the number of
//! rounds.

mod host;

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use host::{Host, HostParameters, Job, NQN, TargetPdu, connect, connect_data, encode};
use unlade_config::ByteSize;
use unlade_nvme::target::{NamespaceConfig, Source, Subsystem, Target, TargetConfig};
use unlade_nvme_wire::command::BlockRange;
use unlade_nvme_wire::fabrics::{CONTROLLER_DYNAMIC, DISCOVERY_NQN, disconnect};
use unlade_nvme_wire::identify::IdentifyController;
use unlade_nvme_wire::pdu::{FatalStatus, InitRequest, Terminate};
use unlade_nvme_wire::{AdminOpcode, Command, DataPlace, Digests, IoOpcode, Pdu, Status};
use unlade_runtime::{Control, Ended};
use unlade_testkit::{Random, seed};

const BLOCK: usize = 512;
const BLOCKS: usize = 2048;

/// A target in this process; ended in order when dropped.
struct Rig {
    address: SocketAddr,
    subsystem: Arc<Subsystem>,
    control: Control<()>,
    thread: Option<JoinHandle<Ended>>,
    image: PathBuf,
    /// Removed with the image and with the identity that is kept beside it.
    _directory: tempfile::TempDir,
}

impl Rig {
    fn start(change: impl FnOnce(&mut TargetConfig)) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("disk.img");
        File::create(&image).unwrap().set_len((BLOCKS * BLOCK) as u64).unwrap();
        let space =
            |source| NamespaceConfig { source, block_bytes: 512, read_only: false, uuid: None };
        let ram = Source::Ram(ByteSize((BLOCKS * BLOCK) as u64));
        let mut config = TargetConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            nqn: Some(NQN.to_owned()),
            namespaces: vec![space(ram), space(Source::File(image.clone()))],
            workers: 2,
            ..TargetConfig::default()
        };
        change(&mut config);
        let target = Target::bind(config, None).unwrap();
        let (address, subsystem) = (target.address(), target.subsystem());
        let control = target.control();
        let thread = Some(std::thread::spawn(move || target.run(false).unwrap()));
        Rig { address, subsystem, control, thread, image, _directory: directory }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.control.drain();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(Ended::Finished))), "{ended:?}");
        }
    }
}

fn io(opcode: IoOpcode, namespace: u32, first: usize, count: usize) -> Command {
    Command::build(opcode as u8, 0, namespace).with_blocks(first as u64, count as u32)
}

fn write(namespace: u32, first: usize, data: Vec<u8>, in_capsule: bool) -> Job {
    let command = io(IoOpcode::Write, namespace, first, data.len() / BLOCK);
    Job::sending(command, data, in_capsule)
}

fn read(namespace: u32, first: usize, count: usize) -> Job {
    Job::reading(io(IoOpcode::Read, namespace, first, count), count * BLOCK)
}

/// A model of both namespaces, and random steps on it.
struct Model {
    disks: [Vec<u8>; 2],
    random: Random,
}

impl Model {
    fn new(seed: u64) -> Model {
        let disk = vec![0; BLOCKS * BLOCK];
        Model { disks: [disk.clone(), disk], random: Random::new(seed) }
    }

    /// Jobs with disjoint blocks, and the data that each must return.
    fn batch(&mut self, most: usize) -> Vec<(Job, Vec<u8>)> {
        let random = &mut self.random;
        let count = random.below(most) + 1;
        let share = BLOCKS / count;
        let number = random.below(2);
        let mut batch = Vec::new();
        for part in 0..count {
            let longest = if random.percent(30) { share } else { share.min(24) };
            let blocks = (random.below(longest.min(300)) + 1).min(share);
            let first = part * share + random.below(share - blocks + 1);
            let place = first * BLOCK..(first + blocks) * BLOCK;
            let (disk, namespace) = (&mut self.disks[number], number as u32 + 1);
            batch.push(match random.below(10) {
                0..=3 => (read(namespace, first, blocks), disk[place].to_vec()),
                4..=7 => {
                    let data = random.bytes(place.len());
                    disk[place].copy_from_slice(&data);
                    let in_capsule = data.len() <= 8192 && random.percent(60);
                    (write(namespace, first, data, in_capsule), Vec::new())
                }
                8 => {
                    disk[place].fill(0);
                    (Job::new(io(IoOpcode::WriteZeroes, namespace, first, blocks)), Vec::new())
                }
                _ => match random.percent(50) {
                    true => (Job::new(io(IoOpcode::Flush, namespace, 0, 1)), Vec::new()),
                    false => {
                        let command = io(IoOpcode::Compare, namespace, first, blocks);
                        let data = disk[place].to_vec();
                        (Job::sending(command, data, false), Vec::new())
                    }
                },
            });
        }
        batch
    }
}

fn random_io(rig: &Rig, seed: u64, rounds: usize) {
    let mut model = Model::new(seed);
    let random = &mut model.random;
    let digests = Digests { header: random.percent(50), data: random.percent(50) };
    let parameters = HostParameters {
        digests,
        alignment_bytes: random.pick(&[4, 8, 64, 128]),
        transfers_max: random.pick(&[1, 2, 8]),
        flow_control: random.percent(50),
        depth: 32,
    };
    let (_admin, controller) = Host::admin(rig.address, &parameters);
    let mut queues: Vec<Host> =
        (1..=3).map(|queue| Host::io(rig.address, &parameters, queue, controller)).collect();
    assert_eq!(queues[0].init.digests, digests);
    for round in 0..rounds {
        let batch = model.batch(20);
        let (jobs, expected): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        // The jobs are spread over the queues, and started on all before the first wait.
        let ends = std::thread::scope(|scope| {
            let share = jobs.len().div_ceil(queues.len());
            let parts = jobs.chunks(share).zip(&mut queues).enumerate();
            let running: Vec<_> = parts
                .map(|(part, (jobs, queue))| {
                    let mut random = Random::new(seed ^ (round * 8 + part) as u64);
                    scope.spawn(move || queue.run_with(jobs.to_vec(), &mut random))
                })
                .collect();
            running.into_iter().flat_map(|end| end.join().unwrap()).collect::<Vec<_>>()
        });
        for (place, ((end, data), expected)) in ends.iter().zip(&expected).enumerate() {
            let job = &jobs[place].command;
            assert!(end.status.is_success(), "round {round}: {job:?}: {end:?}");
            assert!(data == expected, "round {round}: {job:?} returned other data");
        }
    }
    let whole = queues[0].run((0..8).map(|n| read(1, n * 256, 256)).collect());
    let whole: Vec<u8> = whole.into_iter().flat_map(|(_, data)| data).collect();
    assert!(whole == model.disks[0], "the memory differs");
    assert!(std::fs::read(&rig.image).unwrap() == model.disks[1], "the file differs");
}

fn rounds() -> usize {
    let text = std::env::var("UNLADE_NVME_ROUNDS");
    text.map_or(40, |text| text.parse().expect("UNLADE_NVME_ROUNDS is a number"))
}

#[test]
fn random_io_equals_a_model_disk() {
    let seed = seed();
    for number in 0..4 {
        println!("host {number}");
        random_io(&Rig::start(|_| {}), seed.wrapping_add(number), rounds());
    }
}

#[test]
fn random_io_equals_a_model_disk_where_everything_is_tight() {
    let seed = seed();
    for number in 0..4 {
        println!("host {number}");
        let rig = Rig::start(|config| {
            config.request_bytes_max = ByteSize(8192);
            config.host_data_bytes_max = ByteSize(4096);
            config.send_bytes_max = ByteSize(4096);
            config.transfer_bytes_max = ByteSize(256 << 10);
            config.in_flight_bytes_max = ByteSize(256 << 10);
        });
        random_io(&rig, seed.wrapping_add(number), rounds());
        let counts = rig.subsystem.counts();
        assert!(counts.waits > 0 && counts.data_requests > 0, "{counts:?}");
    }
}

#[test]
fn discovery_names_the_subsystem() {
    let rig = Rig::start(|_| {});
    let parameters = HostParameters::default();
    let mut host = Host::init(rig.address, &parameters);
    let connected = host.connect(0, CONTROLLER_DYNAMIC, &parameters, DISCOVERY_NQN);
    assert!(connected.status.is_success());
    let enable = unlade_nvme_wire::fabrics::PropertyAccess::set(
        unlade_nvme_wire::fabrics::Property::Configuration,
        1,
        0,
    );
    host.run(vec![Job::new(enable)]);
    let page = Command::build(AdminOpcode::GetLogPage as u8, 0, 0).with_dword(10, 0x70 | 767 << 16);
    let (end, data) = host.run(vec![Job::reading(page, 3072)]).remove(0);
    assert!(end.status.is_success());
    let (_, entries) = unlade_nvme_wire::discovery::parse_page(&data).unwrap();
    assert_eq!(entries[1].subsystem.as_str(), NQN);
    assert_eq!(entries[1].service, rig.address.port().to_string());
}

#[test]
fn errors_of_commands_are_said_and_leave_the_queue_alive() {
    let rig = Rig::start(|config| config.namespaces[1].read_only = true);
    let (mut admin, controller) = Host::admin(rig.address, &HostParameters::default());
    let mut queue = Host::io(rig.address, &HostParameters::default(), 1, controller);
    let identify = Command::build(AdminOpcode::Identify as u8, 0, 0).with_dword(10, 1);
    let (end, data) = admin.run(vec![Job::reading(identify, 4096)]).remove(0);
    assert!(end.status.is_success());
    assert_eq!(IdentifyController::parse(&data).unwrap().controller, controller);
    let (end, _) = admin.run(vec![Job::reading(identify, 512)]).remove(0);
    assert!(end.status.is(Status::SGL_DATA_LENGTH));
    let mut status = |job: Job| queue.run(vec![job]).remove(0).0.status;
    assert!(status(read(3, 0, 1)).is(Status::INVALID_NAMESPACE));
    assert!(status(read(1, BLOCKS, 1)).is(Status::LBA_OUT_OF_RANGE));
    assert!(status(write(2, 0, vec![1; BLOCK], true)).is(Status::WRITE_PROTECTED));
    assert!(status(write(2, 0, vec![1; BLOCK], false)).is(Status::WRITE_PROTECTED));
    let differs = Job::sending(io(IoOpcode::Compare, 1, 0, 1), vec![1; BLOCK], true);
    assert!(status(differs).is(Status::COMPARE_FAILURE));
    let early = Job::new(Command::build(0x77, 0, 1));
    assert!(status(early).is(Status::INVALID_OPCODE));
    // In the capsule, but incomplete.
    let mut short = write(1, 0, vec![1; BLOCK], true);
    short.command = short.command.with_data(DataPlace::InCapsule { offset: 8, bytes: 512 });
    assert!(status(short).is(Status::SGL_OFFSET));
    let range = BlockRange { first: 0, count: 8 }.encode().to_vec();
    let discard = Command::build(IoOpcode::DatasetManagement as u8, 0, 1).with_dword(11, 4);
    assert!(status(Job::sending(discard, range, true)).is_success());
    assert!(status(Job::new(disconnect(0))).is_success());
    assert!(matches!(queue.receive(), TargetPdu::Closed));
}

#[test]
fn a_flush_with_any_unused_data_pointer_is_done() {
    let rig = Rig::start(|_| {});
    let (_admin, controller) = Host::admin(rig.address, &HostParameters::default());
    let mut queue = Host::io(rig.address, &HostParameters::default(), 1, controller);
    // The last byte is the type of the descriptor: none, an offset in the capsule, a keyed one.
    for kind in [0, 1, 0x40] {
        let mut entry = *io(IoOpcode::Flush, 2, 0, 1).as_bytes();
        entry[24..40].fill(0);
        entry[39] = kind;
        let (end, _) = queue.run(vec![Job::new(Command::new(entry))]).remove(0);
        assert!(end.status.is_success(), "{kind:#x}: {end:?}");
    }
}

#[test]
fn damaged_data_fails_its_command_only() {
    let rig = Rig::start(|_| {});
    let parameters = HostParameters { digests: Digests::BOTH, ..HostParameters::default() };
    let (_admin, controller) = Host::admin(rig.address, &parameters);
    let mut queue = Host::io(rig.address, &parameters, 1, controller);
    queue.damage_next = true;
    let (end, _) = queue.run(vec![write(1, 0, vec![5; BLOCK], true)]).remove(0);
    assert!(end.status.is(Status::TRANSIENT_TRANSPORT));
    let (end, data) = queue.run(vec![read(1, 0, 1)]).remove(0);
    assert!(end.status.is_success() && data == vec![0; BLOCK]);
    assert_eq!(rig.subsystem.counts().data_digest_errors, 1);
}

/// The last PDU of the target on a connection, after `send` was written to it.
fn last_word(mut host: Host, send: &[u8]) -> TargetPdu {
    use std::io::Write;
    host.stream.write_all(send).unwrap();
    loop {
        match host.receive() {
            TargetPdu::Response(_) | TargetPdu::Data(..) | TargetPdu::Request(_) => {}
            end => return end,
        }
    }
}

fn ended_with(end: TargetPdu) -> (FatalStatus, u32) {
    match end {
        TargetPdu::Terminated(end) => {
            (FatalStatus::from_number(end.status).unwrap(), end.information)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_with_a_reason() {
    let rig = Rig::start(|_| {});
    let parameters = HostParameters { digests: Digests::BOTH, ..HostParameters::default() };
    let fresh = || Host::init(rig.address, &parameters);
    assert_eq!(ended_with(last_word(fresh(), &[0x55; 8])), (FatalStatus::InvalidHeader, 0));
    let mut capsule = Vec::new();
    encode(&Pdu::CommandCapsule([0; 64]), &[], Digests::BOTH, &mut capsule);
    let mut damaged = capsule.clone();
    damaged[20] ^= 1;
    let sent = u32::from_le_bytes(damaged[72..76].try_into().unwrap());
    assert_eq!(ended_with(last_word(fresh(), &damaged)), (FatalStatus::HeaderDigest, sent));
    let mut bare = Vec::new();
    encode(&Pdu::CommandCapsule([0; 64]), &[], Digests::NONE, &mut bare);
    assert_eq!(ended_with(last_word(fresh(), &bare)), (FatalStatus::InvalidHeader, 1));
    let init =
        InitRequest { version: 0, alignment_bytes: 4, digests: Digests::NONE, transfers_max: 1 };
    let again = Pdu::InitRequest(init).without_data(Digests::NONE);
    assert_eq!(ended_with(last_word(fresh(), &again)), (FatalStatus::Sequence, 0));
    let mut long = Vec::new();
    encode(&Pdu::CommandCapsule([0; 64]), &[0; 8196], Digests::BOTH, &mut long);
    assert_eq!(ended_with(last_word(fresh(), &long)), (FatalStatus::LimitExceeded, 4));
    assert_eq!(rig.subsystem.counts().protocol_errors, 5);
    assert_eq!(rig.subsystem.counts().header_digest_errors, 1);
}

/// Waits until the target closes a connection.
fn closed(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
}

#[test]
fn a_connection_beyond_the_limit_is_closed_and_counted() {
    let rig = Rig::start(|config| config.connections_max = 1);
    let _first = Host::init(rig.address, &HostParameters::default());
    closed(TcpStream::connect(rig.address).unwrap());
    let counts = rig.subsystem.counts();
    assert_eq!((counts.accepted, counts.refused), (1, 1));
}

#[test]
fn a_host_that_does_not_connect_in_time_is_closed_and_counted() {
    let rig = Rig::start(|config| config.connect_timeout = Duration::from_millis(100));
    closed(TcpStream::connect(rig.address).unwrap());
    assert_eq!(rig.subsystem.counts().timeouts, 1);
}

#[test]
fn a_host_that_ends_the_connection_with_an_error_is_counted() {
    let rig = Rig::start(|_| {});
    let mut host = Host::init(rig.address, &HostParameters::default());
    let end = Terminate { status: FatalStatus::InvalidHeader as u16, information: 0 };
    let bytes = Pdu::HostTerminate(end).without_data(Digests::NONE);
    std::io::Write::write_all(&mut host.stream, &bytes).unwrap();
    assert!(matches!(host.receive(), TargetPdu::Closed));
    let counts = rig.subsystem.counts();
    assert_eq!((counts.host_terminations, counts.protocol_errors), (1, 0));
}

#[test]
fn a_host_that_goes_takes_its_controller_along() {
    let rig = Rig::start(|_| {});
    let parameters = HostParameters::default();
    let (admin, controller) = Host::admin(rig.address, &parameters);
    let mut queue = Host::io(rig.address, &parameters, 1, controller);
    assert_eq!(rig.subsystem.counts().controllers, 1);
    drop(admin);
    assert!(matches!(queue.receive(), TargetPdu::Closed));
    assert_eq!(rig.subsystem.counts().controllers, 0);
}

#[test]
fn a_drain_answers_what_is_in_work_and_closes() {
    let rig = Rig::start(|_| {});
    let parameters = HostParameters::default();
    let (mut admin, controller) = Host::admin(rig.address, &parameters);
    let mut queue = Host::io(rig.address, &parameters, 1, controller);
    // A write whose data is not yet sent.
    let mut out = Vec::new();
    let job = write(1, 0, vec![9; 32 * BLOCK], false);
    queue.encode(&Pdu::CommandCapsule(*job.command.as_bytes()), &[], &mut out);
    std::io::Write::write_all(&mut queue.stream, &out).unwrap();
    let TargetPdu::Request(request) = queue.receive() else { panic!("no request") };
    rig.control.drain();
    let data = unlade_nvme_wire::pdu::Data {
        command_id: request.command_id,
        transfer_tag: request.transfer_tag,
        offset: 0,
        bytes: request.bytes,
        is_last: true,
        is_success: false,
    };
    let mut out = Vec::new();
    queue.encode(&Pdu::HostData(data), &job.send, &mut out);
    std::io::Write::write_all(&mut queue.stream, &out).unwrap();
    let TargetPdu::Response(end) = queue.receive() else { panic!("no response") };
    assert!(end.status.is_success());
    assert!(matches!(queue.receive(), TargetPdu::Closed));
    assert!(matches!(admin.receive(), TargetPdu::Closed));
}

#[test]
fn a_silent_connection_does_not_hold_up_a_drain() {
    let rig = Rig::start(|config| config.connect_timeout = Duration::from_secs(3600));
    let _silent = TcpStream::connect(rig.address).unwrap();
    let _unconnected = Host::init(rig.address, &HostParameters::default());
    while rig.subsystem.counts().connections < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The drop of the rig checks the result.
}

/// A stream of valid PDUs of a hostile host, and the positions in it that must not be changed,
/// since it might become a valid command for a namespace of other hosts.
fn hostile_stream(random: &mut Random, controller: u16, digests: Digests) -> (Vec<u8>, Vec<usize>) {
    let parameters = HostParameters { digests, ..HostParameters::default() };
    let init = InitRequest { version: 0, alignment_bytes: 4, digests, transfers_max: 4 };
    let mut out = Pdu::InitRequest(init).without_data(Digests::NONE);
    let mut kept = Vec::new();
    let queue = random.pick(&[0, 2, 3]);
    let to = if queue == 0 { CONTROLLER_DYNAMIC } else { controller };
    let connect = Job::sending(connect(queue, &parameters), connect_data(to, NQN), true);
    encode(&Pdu::CommandCapsule(*connect.command.as_bytes()), &connect.send, digests, &mut out);
    for id in 0..random.below(12) as u16 {
        let blocks = random.below(40) + 1;
        let data = vec![0xee; blocks * BLOCK];
        let job = match random.below(5) {
            0 => read(2, random.below(BLOCKS), blocks),
            1 => write(2, random.below(BLOCKS), data, blocks <= 16),
            2 => Job::new(io(IoOpcode::Flush, 2, 0, 1)),
            3 => Job::reading(Command::build(AdminOpcode::Identify as u8, 0, 2), 4096),
            _ => Job::new(Command::build(AdminOpcode::AsyncEvent as u8, 0, 0)),
        };
        let mut entry = *job.command.as_bytes();
        entry[2..4].copy_from_slice(&id.to_le_bytes());
        kept.extend(out.len() + 12..out.len() + 16);
        let payload = if job.in_capsule { &job.send[..] } else { &[] };
        encode(&Pdu::CommandCapsule(entry), payload, digests, &mut out);
        if random.percent(30) {
            let data = unlade_nvme_wire::pdu::Data {
                command_id: id,
                transfer_tag: random.below(6) as u16,
                offset: 0,
                bytes: 4096,
                is_last: random.percent(50),
                is_success: false,
            };
            encode(&Pdu::HostData(data), &[0xee; 4096], digests, &mut out);
        }
    }
    (out, kept)
}

#[test]
fn hostile_hosts_harm_nobody_else() {
    let seed = seed();
    let rig = Rig::start(|_| {});
    let parameters =
        HostParameters { digests: Digests::BOTH, transfers_max: 4, ..HostParameters::default() };
    let (_admin, controller) = Host::admin(rig.address, &parameters);
    let mut queue = Host::io(rig.address, &parameters, 1, controller);
    let mut disk = vec![0; BLOCKS * BLOCK];
    let mut random = Random::new(seed);
    for round in 0..rounds() * 5 {
        let digests = if random.percent(50) { Digests::BOTH } else { Digests::NONE };
        let (mut stream, kept) = hostile_stream(&mut random, controller, digests);
        for _ in 0..random.below(4) {
            let at = random.below(stream.len());
            if !kept.contains(&at) {
                stream[at] ^= 1 << random.below(8);
            }
        }
        stream.truncate(stream.len() - if random.percent(30) { random.below(600) } else { 0 });
        let mut hostile = TcpStream::connect(rig.address).unwrap();
        // The target may close it at once.
        let _ = std::io::Write::write_all(&mut hostile, &stream);
        let first = random.below(BLOCKS - 64);
        let blocks = random.below(64) + 1;
        let data = random.bytes(blocks * BLOCK);
        disk[first * BLOCK..first * BLOCK + data.len()].copy_from_slice(&data);
        let in_capsule = data.len() <= 8192;
        let (end, _) =
            queue.run_with(vec![write(1, first, data, in_capsule)], &mut random).remove(0);
        assert!(end.status.is_success(), "round {round}: {end:?}");
        if random.percent(50) {
            let _ = hostile.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = std::io::Read::read_to_end(&mut hostile, &mut answer);
        }
    }
    let jobs = (0..8).map(|n| read(1, n * 256, 256)).collect();
    let there: Vec<u8> = queue.run(jobs).into_iter().flat_map(|(_, data)| data).collect();
    assert!(there == disk, "data of the good host was changed");
    println!("{:?}", rig.subsystem.counts());
}
