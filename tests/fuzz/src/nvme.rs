//! NVMe over TCP: PDUs, and their content.

use unlade_nvme_wire::command::{BlockRange, Completion};
use unlade_nvme_wire::fabrics;
use unlade_nvme_wire::fabrics::{Connect, ConnectData, DISCOVERY_NQN, Property, PropertyAccess};
use unlade_nvme_wire::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NamespaceNames, encode_namespaces,
    parse_namespaces,
};
use unlade_nvme_wire::opcode::Direction;
use unlade_nvme_wire::pdu::{
    Data, FatalStatus, InitRequest, InitResponse, ReadyToTransfer, TERM_BYTES_MAX, Terminate,
};
use unlade_nvme_wire::{
    Command, CommonHeader, DataPlace, Digests, Nqn, Pdu, PduKind, Status, discovery,
};

/// A stream of PDUs: each header is parsed or refused; a parsed PDU contains its parts, and
/// encodes to a header with the same meaning.
pub fn nvme_pdu(data: &[u8]) {
    let mut rest = data;
    while let Ok(common) = CommonHeader::parse(rest) {
        let layout = common.layout();
        assert!(layout.bytes == common.bytes as usize && layout.bytes >= layout.header_bytes);
        assert!(layout.data.start >= layout.header_bytes && layout.data.end <= layout.bytes);
        assert!(layout.data.start <= layout.data.end);
        if common.kind == PduKind::HostTerminate {
            assert!(common.bytes <= TERM_BYTES_MAX);
        }
        if let Ok(pdu) = Pdu::parse(&common, rest) {
            again(&pdu, &common);
            contents(&pdu);
        }
        let Some(behind) = rest.get(layout.bytes..) else { break };
        payload(&rest[layout.data.clone()]);
        rest = behind;
    }
    payload(data);
}

fn again(pdu: &Pdu, common: &CommonHeader) {
    let mut content = Vec::new();
    pdu.write(common, &mut content);
    assert_eq!(CommonHeader::parse(&content).as_ref(), Ok(common));
    assert_eq!(Pdu::parse(common, &content).as_ref(), Ok(pdu));
    let bytes = common.layout().data.len().min(1 << 20);
    if matches!(pdu, Pdu::HostTerminate(_) | Pdu::ControllerTerminate(_)) {
        return;
    }
    let own = pdu.common(bytes, Digests::BOTH, 64);
    assert_eq!(own.agrees_with(Digests::BOTH, 64), Ok(()));
    assert_eq!(own.layout().data.len(), if kind_has_data(pdu) { bytes } else { 0 });
}

fn kind_has_data(pdu: &Pdu) -> bool {
    matches!(pdu, Pdu::CommandCapsule(_) | Pdu::HostData(_) | Pdu::ControllerData(_))
}

fn contents(pdu: &Pdu) {
    match pdu {
        Pdu::CommandCapsule(entry) => {
            let command = Command::new(*entry);
            if let Ok(place) = command.data() {
                assert_eq!(DataPlace::parse(&place.encode()), Ok(place));
            }
            let connect = Connect::parse(&command);
            assert_eq!(Connect::parse(&connect.command(1)), connect);
            let _ = (command.direction() == Direction::None, PropertyAccess::parse(&command));
            let same = command.with_blocks(command.first_block(), command.block_count());
            assert_eq!(same.block_count(), command.block_count());
        }
        Pdu::ResponseCapsule(entry) => {
            let completion = Completion::parse(entry);
            assert_eq!(Completion::parse(&completion.encode()), completion);
            assert!(!completion.status.to_string().is_empty());
        }
        _ => {}
    }
}

/// Structures that are data of commands; tries each.
fn payload(data: &[u8]) {
    if let Ok(connect) = ConnectData::parse(data) {
        assert_eq!(ConnectData::parse(&connect.encode()), Ok(connect));
    }
    if let Ok(controller) = IdentifyController::parse(data) {
        assert_eq!(IdentifyController::parse(&controller.encode()), Ok(controller.clone()));
        let _ = (controller.in_capsule_bytes(), controller.transfer_bytes_max());
    }
    if let Ok(space) = IdentifyNamespace::parse(data) {
        assert_eq!(IdentifyNamespace::parse(&space.encode()), Ok(space));
    }
    if let Ok(names) = NamespaceNames::parse(data) {
        assert_eq!(NamespaceNames::parse(&names.encode()), Ok(names));
    }
    if let Ok(numbers) = parse_namespaces(data) {
        assert!(numbers.len() <= IDENTIFY_BYTES / 4);
    }
    if let Ok((header, entries)) = discovery::parse_page(data) {
        assert_eq!(header.entries, entries.len() as u64);
        let page = discovery::encode_page(header.generation, &entries);
        assert_eq!(discovery::parse_page(&page).map(|(_, again)| again.len()), Ok(entries.len()));
    }
    if let Some(range) = data.first_chunk() {
        assert_eq!(BlockRange::parse(&BlockRange::parse(range).encode()), BlockRange::parse(range));
    }
}

/// Seeds: PDUs with the possible content.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let digests = Digests { header: true, data: false };
    let init = InitRequest { version: 0, alignment_bytes: 8, digests, transfers_max: 4 };
    let (version, alignment_bytes, data_bytes_max) = (0, 4, 131_072);
    let answer = InitResponse { version, alignment_bytes, digests, data_bytes_max };
    let end = Terminate { status: FatalStatus::DataOutOfRange as u16, information: 12 };
    let (offset, bytes, is_last, is_success) = (0, 64, true, false);
    let data = Data { command_id: 3, transfer_tag: 9, offset, bytes, is_last, is_success };
    let request = ReadyToTransfer { command_id: 3, transfer_tag: 9, offset, bytes };
    let (name, host) = (Nqn::new(DISCOVERY_NQN), Nqn::new("nqn.2026-01.example:host"));
    let (subsystem, host) = (name.expect("a name"), host.expect("a name"));
    let connect = ConnectData { host_id: [7; 16], controller: 0xffff, subsystem, host };
    let fabric = Connect {
        format: 0,
        queue: 1,
        queue_size_zero_based: 31,
        attributes: 4,
        keep_alive_ms: 5000,
    };
    let place = DataPlace::InCapsule { offset: 0, bytes: 1024 };
    let connecting = Pdu::CommandCapsule(*fabric.command(1).with_data(place).as_bytes());
    let get = Pdu::CommandCapsule(*PropertyAccess::get(Property::Capabilities, 2).as_bytes());
    let read = Command::build(2, 3, 1).with_blocks(8, 8);
    let read = read.with_data(DataPlace::Transport { bytes: 4096 });
    let done = Completion::new(3, Status::LBA_OUT_OF_RANGE);
    let leave = Pdu::CommandCapsule(*fabrics::disconnect(4).as_bytes());
    vec![
        ("ic-request", pdu(&Pdu::InitRequest(init), &[])),
        ("ic-response", pdu(&Pdu::InitResponse(answer), &[])),
        ("terminate", pdu(&Pdu::ControllerTerminate(end), &[6; 24])),
        ("connect", pdu(&connecting, &connect.encode())),
        ("property", [pdu(&get, &[]), pdu(&leave, &[])].concat()),
        ("read", pdu(&Pdu::CommandCapsule(*read.as_bytes()), &[])),
        ("response", pdu(&Pdu::ResponseCapsule(done.encode()), &[])),
        ("host-data", pdu(&Pdu::HostData(data), &[1; 64])),
        ("controller-data", pdu(&Pdu::ControllerData(data), &[2; 64])),
        ("request", pdu(&Pdu::ReadyToTransfer(request), &[])),
        ("namespaces", pdu(&Pdu::ControllerData(long(data)), &encode_namespaces([1, 2], 0))),
    ]
}

fn long(data: Data) -> Data {
    Data { bytes: IDENTIFY_BYTES as u32, ..data }
}

/// A PDU with zeroes as digests: the codec does not check them.
fn pdu(pdu: &Pdu, data: &[u8]) -> Vec<u8> {
    let common = pdu.common(data.len(), Digests::BOTH, 4);
    let layout = common.layout();
    let mut out = Vec::new();
    pdu.write(&common, &mut out);
    out.resize(layout.data.start, 0);
    out.extend_from_slice(data);
    out.resize(layout.bytes, 0);
    out
}
