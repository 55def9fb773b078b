//! A small host for tests: blocking, on a plain socket, sharing only the codec with the target.
#![allow(dead_code)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use unlade_nvme_wire::fabrics::{
    ATTRIBUTE_NO_FLOW_CONTROL, Connect, ConnectData, Property, PropertyAccess,
};
use unlade_nvme_wire::pdu::{Data, InitRequest, InitResponse, ReadyToTransfer, Terminate};
use unlade_nvme_wire::{
    Command, CommonHeader, Completion, DataPlace, Digests, Nqn, Pdu, PduKind, Status,
};
use unlade_testkit::Random;

pub const NQN: &str = "nqn.2026-01.io.unlade:test";
/// Timeout of every wait; reached only in case of a defect.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parameters that a host requests when it connects.
#[derive(Clone, Copy, Debug)]
pub struct HostParameters {
    pub digests: Digests,
    pub alignment_bytes: usize,
    pub transfers_max: u32,
    pub flow_control: bool,
    pub depth: u16,
}

impl Default for HostParameters {
    fn default() -> HostParameters {
        let (digests, flow_control) = (Digests::NONE, true);
        HostParameters { digests, alignment_bytes: 4, transfers_max: 1, flow_control, depth: 32 }
    }
}

/// A PDU from the target.
#[derive(Debug)]
pub enum TargetPdu {
    Response(Completion),
    Data(Data, Vec<u8>),
    Request(ReadyToTransfer),
    Terminated(Terminate),
    Closed,
}

/// A command to execute, with data to send, or a buffer size for data.
#[derive(Clone, Debug)]
pub struct Job {
    pub command: Command,
    pub send: Vec<u8>,
    pub in_capsule: bool,
    pub room: usize,
}

impl Job {
    pub fn new(command: Command) -> Job {
        Job { command, send: Vec::new(), in_capsule: false, room: 0 }
    }

    pub fn reading(command: Command, room: usize) -> Job {
        let command = command.with_data(DataPlace::Transport { bytes: room as u32 });
        Job { room, ..Job::new(command) }
    }

    pub fn sending(command: Command, send: Vec<u8>, in_capsule: bool) -> Job {
        let bytes = send.len() as u32;
        let place = match in_capsule {
            true => DataPlace::InCapsule { offset: 0, bytes },
            false => DataPlace::Transport { bytes },
        };
        Job { send, in_capsule, ..Job::new(command.with_data(place)) }
    }
}

/// One connection.
pub struct Host {
    pub stream: TcpStream,
    pub init: InitResponse,
    alignment_bytes: usize,
    next_id: u16,
    /// Number of R2Ts received, and largest number outstanding at once.
    pub requests: usize,
    pub damage_next: bool,
}

impl Host {
    /// Sends ICReq, receives ICResp.
    pub fn init(address: SocketAddr, parameters: &HostParameters) -> Host {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let init = InitRequest {
            version: 0,
            alignment_bytes: parameters.alignment_bytes,
            digests: parameters.digests,
            transfers_max: parameters.transfers_max,
        };
        stream.write_all(&Pdu::InitRequest(init).without_data(Digests::NONE)).unwrap();
        let mut bytes = [0; 128];
        stream.read_exact(&mut bytes).unwrap();
        let common = CommonHeader::parse(&bytes).unwrap();
        let Pdu::InitResponse(init) = Pdu::parse(&common, &bytes).unwrap() else {
            panic!("{common:?}")
        };
        let alignment_bytes = parameters.alignment_bytes;
        Host { stream, init, alignment_bytes, next_id: 1, requests: 0, damage_next: false }
    }

    /// Connects the admin queue of a new controller, enables it, and returns it with CNTLID.
    pub fn admin(address: SocketAddr, parameters: &HostParameters) -> (Host, u16) {
        let mut host = Host::init(address, parameters);
        let done = host.connect(0, 0xffff, parameters, NQN);
        assert!(done.status.is_success(), "{done:?}");
        let enable = PropertyAccess::set(Property::Configuration, 0x46_0001, 0);
        assert!(host.run(vec![Job::new(enable)])[0].0.status.is_success());
        (host, done.result as u16)
    }

    /// Connects an I/O queue of a controller.
    pub fn io(
        address: SocketAddr,
        parameters: &HostParameters,
        queue: u16,
        controller: u16,
    ) -> Host {
        let mut host = Host::init(address, parameters);
        let done = host.connect(queue, controller, parameters, NQN);
        assert!(done.status.is_success(), "{done:?}");
        host
    }

    pub fn connect(
        &mut self,
        queue: u16,
        controller: u16,
        parameters: &HostParameters,
        nqn: &str,
    ) -> Completion {
        let job = Job::sending(connect(queue, parameters), connect_data(controller, nqn), true);
        self.run(vec![job]).remove(0).0
    }

    /// Runs all jobs concurrently; returns completions and data in the order of the jobs.
    pub fn run(&mut self, jobs: Vec<Job>) -> Vec<(Completion, Vec<u8>)> {
        self.run_with(jobs, &mut Random::new(1))
    }

    /// As `run`, with data sent in chunks of random sizes.
    pub fn run_with(&mut self, jobs: Vec<Job>, random: &mut Random) -> Vec<(Completion, Vec<u8>)> {
        let mut ids = Vec::new();
        let mut open = HashMap::new();
        let mut out = Vec::new();
        for job in jobs {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1).max(1);
            let mut entry = *job.command.as_bytes();
            entry[2..4].copy_from_slice(&id.to_le_bytes());
            let data = if job.in_capsule { &job.send[..] } else { &[] };
            self.encode(&Pdu::CommandCapsule(entry), data, &mut out);
            ids.push(id);
            open.insert(id, (job.send, vec![0; job.room], 0));
        }
        self.stream.write_all(&out).unwrap();
        let mut done = HashMap::new();
        while !open.is_empty() {
            match self.receive() {
                TargetPdu::Response(completion) => {
                    let id = completion.command_id;
                    let (_, data, received) = open.remove(&id).expect("a command of ours");
                    assert!(!completion.status.is_success() || received == data.len());
                    done.insert(id, (completion, data));
                }
                TargetPdu::Data(header, bytes) => {
                    let (_, data, received) = open.get_mut(&header.command_id).expect("ours");
                    assert_eq!(header.offset as usize, *received, "data comes in order");
                    data[*received..*received + bytes.len()].copy_from_slice(&bytes);
                    *received += bytes.len();
                    assert_eq!(header.is_last, *received == data.len());
                    if header.is_success {
                        let (_, data, _) = open.remove(&header.command_id).expect("ours");
                        let completion = Completion::new(header.command_id, Status::SUCCESS);
                        done.insert(header.command_id, (completion, data));
                    }
                }
                TargetPdu::Request(request) => {
                    self.requests += 1;
                    let (send, _, _) = open.get(&request.command_id).expect("ours");
                    self.answer(&request, send, random);
                }
                other => panic!("{other:?}"),
            }
        }
        ids.iter().map(|id| done.remove(id).expect("it is done")).collect()
    }

    fn answer(&mut self, request: &ReadyToTransfer, send: &[u8], random: &mut Random) {
        let end = (request.offset + request.bytes) as usize;
        let mut at = request.offset as usize;
        let mut out = Vec::new();
        while at < end {
            let most = (end - at).min(self.init.data_bytes_max as usize);
            let bytes = if random.percent(50) { most } else { (random.below(most / 4) + 1) * 4 };
            let bytes = bytes.min(most);
            let data = Data {
                command_id: request.command_id,
                transfer_tag: request.transfer_tag,
                offset: at as u32,
                bytes: bytes as u32,
                is_last: at + bytes == end,
                is_success: false,
            };
            self.encode(&Pdu::HostData(data), &send[at..at + bytes], &mut out);
            at += bytes;
        }
        self.stream.write_all(&out).unwrap();
    }

    /// Appends a PDU with its digests.
    pub fn encode(&mut self, pdu: &Pdu, data: &[u8], out: &mut Vec<u8>) {
        encode(pdu, data, self.init.digests, out);
        if std::mem::take(&mut self.damage_next) {
            *out.last_mut().unwrap() ^= 1;
        }
    }

    /// Reads a PDU and checks its digests.
    pub fn receive(&mut self) -> TargetPdu {
        let mut bytes = vec![0; 8];
        if self.stream.read_exact(&mut bytes).is_err() {
            return TargetPdu::Closed;
        }
        let common = CommonHeader::parse(&bytes).unwrap();
        common.agrees_with(self.init.digests, self.alignment_bytes).unwrap();
        bytes.resize(common.bytes as usize, 0);
        self.stream.read_exact(&mut bytes[8..]).unwrap();
        let layout = common.layout();
        let le = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        if layout.has_header_digest {
            let at = layout.header_bytes;
            assert_eq!(le(at), unlade_aead::crc32c::update(0, &bytes[..at]), "header digest");
        }
        let data = bytes[layout.data.clone()].to_vec();
        if layout.has_data_digest {
            assert_eq!(le(layout.data.end), unlade_aead::crc32c::update(0, &data), "data digest");
        }
        assert!(!common.kind.is_from_host());
        match Pdu::parse(&common, &bytes).unwrap() {
            Pdu::ResponseCapsule(entry) => TargetPdu::Response(Completion::parse(&entry)),
            Pdu::ControllerData(header) => TargetPdu::Data(header, data),
            Pdu::ReadyToTransfer(request) => TargetPdu::Request(request),
            Pdu::ControllerTerminate(end) => TargetPdu::Terminated(end),
            other => panic!("{other:?}"),
        }
    }
}

/// Creates Connect; its data is [`connect_data`].
pub fn connect(queue: u16, parameters: &HostParameters) -> Command {
    let attributes = if parameters.flow_control { 0 } else { ATTRIBUTE_NO_FLOW_CONTROL };
    let queue_size_zero_based = parameters.depth - 1;
    let connect = Connect { format: 0, queue, queue_size_zero_based, attributes, keep_alive_ms: 0 };
    connect.command(0)
}

pub fn connect_data(controller: u16, nqn: &str) -> Vec<u8> {
    let (subsystem, host) = (Nqn::new(nqn), Nqn::new("nqn.2026-01.io.unlade:host"));
    let (subsystem, host) = (subsystem.unwrap(), host.unwrap());
    ConnectData { host_id: [7; 16], controller, subsystem, host }.encode()
}

/// A PDU with its digests.
pub fn encode(pdu: &Pdu, data: &[u8], digests: Digests, out: &mut Vec<u8>) {
    let start = out.len();
    let common = pdu.common(data.len(), digests, 4);
    pdu.write(&common, out);
    let layout = common.layout();
    if layout.has_header_digest {
        let digest = unlade_aead::crc32c::update(0, &out[start..]);
        out.extend_from_slice(&digest.to_le_bytes());
    }
    out.resize(start + layout.head_bytes(), 0);
    out.extend_from_slice(data);
    if layout.has_data_digest {
        out.extend_from_slice(&unlade_aead::crc32c::update(0, data).to_le_bytes());
    }
    assert!(pdu.kind() != PduKind::InitResponse);
}
