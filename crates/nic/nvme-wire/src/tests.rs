//! Wire format tests with bytes from the tables of the specifications.

use super::command::{BlockRange, Completion, DataPlace};
use super::discovery::{self, DiscoveryEntry, DiscoveryError, EntryKind, Security};
use super::fabrics::{self, Connect, ConnectData, DISCOVERY_NQN, NqnError, Property};
use super::identify::{
    IdentifyController, IdentifyError, IdentifyNamespace, NamespaceNames, encode_namespaces,
    parse_namespaces,
};
use super::opcode::Direction;
use super::pdu::{
    Data, FatalStatus, InitRequest, InitResponse, PduError, ReadyToTransfer, Terminate,
};
use super::*;

fn parsed(bytes: &[u8]) -> (CommonHeader, Pdu) {
    let common = CommonHeader::parse(bytes).unwrap();
    (common, Pdu::parse(&common, bytes).unwrap())
}

fn field_error(bytes: &[u8]) -> (&'static str, u8) {
    match CommonHeader::parse(bytes).and_then(|common| Pdu::parse(&common, bytes)).unwrap_err() {
        PduError::Field { what, offset, .. } => (what, offset),
        PduError::Truncated => panic!("truncated"),
    }
}

/// NVMe/TCP figure 13 (ICReq): PFV at 8, HPDA at 10, DGST at 11, MAXR2T at 12.
#[test]
fn init_request() {
    let mut bytes = vec![0; 128];
    bytes[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 7, 0b10, 15, 0, 0, 0]);
    let (common, pdu) = parsed(&bytes);
    let digests = Digests { header: false, data: true };
    let init = InitRequest { version: 0, alignment_bytes: 32, digests, transfers_max: 16 };
    assert_eq!(pdu, Pdu::InitRequest(init));
    assert_eq!(common.layout().bytes, 128);
    assert_eq!(pdu.without_data(Digests::BOTH), bytes, "it has no digests");
    bytes[10] = 32;
    assert_eq!(field_error(&bytes), ("HPDA", 10));
}

/// NVMe/TCP figure 14 (ICResp): CPDA at 10, DGST at 11, MAXH2CDATA at 12, at least 4096.
#[test]
fn init_response() {
    let mut bytes = vec![0; 128];
    bytes[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0b11, 0, 0x10, 0, 0]);
    let (_, pdu) = parsed(&bytes);
    let digests = Digests::BOTH;
    let init = InitResponse { version: 0, alignment_bytes: 4, digests, data_bytes_max: 4096 };
    assert_eq!(pdu, Pdu::InitResponse(init));
    assert_eq!(pdu.without_data(Digests::NONE), bytes);
    bytes[13] = 0x0f;
    assert_eq!(field_error(&bytes), ("MAXH2CDATA", 12));
}

/// NVMe/TCP figure 22 (CapsuleCmd): the entry at 8, digests and data as §3.1 orders them.
#[test]
fn command_capsule_with_data_and_digests() {
    let entry = *Command::build(1, 7, 1).as_bytes();
    let pdu = Pdu::CommandCapsule(entry);
    let common = pdu.common(512, Digests::BOTH, 64);
    let mut bytes = Vec::new();
    pdu.write(&common, &mut bytes);
    // 72 header, 4 digest, up to 128 padding, 512 data, 4 digest.
    assert_eq!(bytes[..8], [4, 0b11, 72, 128, 0x84, 0x02, 0, 0]);
    assert_eq!(bytes[8..], entry);
    let layout = common.layout();
    assert_eq!((layout.data.clone(), layout.bytes), (128..640, 644));
    assert!(layout.has_header_digest && layout.has_data_digest);
    assert_eq!(parsed(&bytes), (common, pdu));
    assert_eq!(common.agrees_with(Digests::BOTH, 64), Ok(()));
    let flags = PduError::Field { what: "FLAGS", offset: 1, value: 3 };
    assert_eq!(common.agrees_with(Digests { header: true, data: false }, 4), Err(flags));
    let offset = PduError::Field { what: "PDO", offset: 3, value: 128 };
    assert_eq!(common.agrees_with(Digests::BOTH, 96), Err(offset));
}

/// Without data there is no data digest, and PDO is ignored.
#[test]
fn command_capsule_without_data() {
    let pdu = Pdu::CommandCapsule([0; 64]);
    let bytes = pdu.without_data(Digests::BOTH);
    assert_eq!(bytes[..8], [4, 1, 72, 0, 76, 0, 0, 0]);
    let (common, _) = parsed(&bytes);
    assert!(common.layout().data.is_empty() && !common.layout().has_data_digest);
    assert_eq!(common.agrees_with(Digests::BOTH, 4), Ok(()));
    // A host may nevertheless set the flag.
    let mut flagged = bytes.clone();
    flagged[1] = 3;
    let (common, _) = parsed(&flagged);
    assert_eq!(common.agrees_with(Digests::BOTH, 4), Ok(()));
}

/// NVMe/TCP figures 24, 25 (H2CData, C2HData): CCCID 8, TTAG 10, DATAO 12, DATAL 16.
#[test]
fn data_both_ways() {
    let mut bytes = vec![6, 4, 24, 24, 32, 0, 0, 0, 0x34, 0x12, 9, 0, 0, 0x10, 0, 0, 8, 0, 0, 0];
    bytes.resize(24, 0);
    let (common, pdu) = parsed(&bytes);
    let data = Data {
        command_id: 0x1234,
        transfer_tag: 9,
        offset: 0x1000,
        bytes: 8,
        is_last: true,
        is_success: false,
    };
    assert_eq!(pdu, Pdu::HostData(data));
    assert_eq!(common.layout().data, 24..32);
    let mut out = Vec::new();
    pdu.write(&pdu.common(8, Digests::NONE, 4), &mut out);
    assert_eq!(out, bytes);
    bytes[16] = 12;
    assert_eq!(field_error(&bytes), ("DATAL", 16));
    let sent = Pdu::ControllerData(Data { is_success: true, transfer_tag: 0, ..data });
    let common = sent.common(8, Digests::NONE, 16);
    let mut out = Vec::new();
    sent.write(&common, &mut out);
    assert_eq!(out[..8], [7, 0b1100, 24, 32, 40, 0, 0, 0]);
    assert_eq!(parsed(&out), (common, sent));
}

/// NVMe/TCP figure 26 (R2T): CCCID 8, TTAG 10, R2TO 12, R2TL 16.
#[test]
fn ready_to_transfer() {
    let transfer =
        ReadyToTransfer { command_id: 3, transfer_tag: 0x0102, offset: 65536, bytes: 131072 };
    let bytes = Pdu::ReadyToTransfer(transfer).without_data(Digests { header: true, data: true });
    assert_eq!(bytes[..8], [9, 1, 24, 0, 28, 0, 0, 0]);
    assert_eq!(bytes[8..20], [3, 0, 2, 1, 0, 0, 1, 0, 0, 0, 2, 0]);
    assert_eq!(parsed(&bytes).1, Pdu::ReadyToTransfer(transfer));
}

/// NVMe/TCP figures 18 to 21 (terminations): FES 8, FEI 10, then the header of the wrong PDU.
#[test]
fn terminations() {
    let end = Terminate { status: FatalStatus::HeaderDigest as u16, information: 0xa1b2_c3d4 };
    let pdu = Pdu::ControllerTerminate(end);
    let mut bytes = Vec::new();
    let common = pdu.common(72, Digests::BOTH, 4);
    pdu.write(&common, &mut bytes);
    assert_eq!(bytes[..14], [3, 0, 24, 0, 96, 0, 0, 0, 3, 0, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(parsed(&bytes), (common, pdu));
    assert_eq!(common.layout().data, 24..96);
    bytes[4] = 153;
    assert_eq!(field_error(&bytes), ("PLEN", 4));
    assert_eq!(FatalStatus::from_number(6), Some(FatalStatus::Unsupported));
    assert_eq!(FatalStatus::from_number(0), None);
}

#[test]
fn headers_that_cannot_be() {
    let capsule = |change: &[(usize, u8)]| {
        let mut bytes = Pdu::CommandCapsule([0; 64]).without_data(Digests::NONE);
        change.iter().for_each(|(at, value)| bytes[*at] = *value);
        bytes
    };
    assert_eq!(field_error(&capsule(&[(0, 8)])), ("PDU-Type", 0));
    assert_eq!(field_error(&capsule(&[(2, 71)])), ("HLEN", 2));
    assert_eq!(field_error(&capsule(&[(4, 71)])), ("PLEN", 4));
    assert_eq!(field_error(&capsule(&[(1, 1)])), ("PLEN", 4), "no room for the header's digest");
    assert_eq!(field_error(&capsule(&[(4, 80)])), ("PDO", 3), "data without a place");
    assert_eq!(field_error(&capsule(&[(3, 73), (4, 80)])), ("PDO", 3), "not a multiple of four");
    assert_eq!(field_error(&capsule(&[(3, 80), (4, 80)])), ("PLEN", 4), "no data at its place");
    let only_digest = capsule(&[(1, 2), (3, 72), (4, 76)]);
    assert_eq!(field_error(&only_digest), ("PLEN", 4), "a digest of nothing");
    let mut response = Pdu::ResponseCapsule([0; 16]).without_data(Digests::NONE);
    response[4] = 25;
    assert_eq!(field_error(&response), ("PLEN", 4), "a response has no data");
    for length in 0..8 {
        assert_eq!(CommonHeader::parse(&response[..length]), Err(PduError::Truncated));
    }
    assert_eq!(PduError::Truncated.fatal(), (FatalStatus::InvalidHeader, 0));
}

/// NVMe Base figure 87: OPC 0, FUSE/PSDT 1, CID 2, NSID 4, DPTR 24, dwords 10 to 15 from 40.
#[test]
fn command_fields() {
    let command = Command::build(2, 0x0708, 3)
        .with_blocks(0x0102_0304_0506_0708, 65536)
        .with_data(DataPlace::Transport { bytes: 0x2000 });
    let bytes = command.as_bytes();
    assert_eq!(bytes[..8], [2, 0x40, 8, 7, 3, 0, 0, 0]);
    assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0x5a]);
    assert_eq!(bytes[40..52], [8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xff, 0, 0]);
    assert_eq!((command.first_block(), command.block_count()), (0x0102_0304_0506_0708, 65536));
    assert_eq!(command.direction(), Direction::ToHost);
    assert!(!command.force_unit_access());
    assert!(command.with_dword(12, 1 << 30).force_unit_access());
    assert_eq!(command.with_dword(9, 1), command, "only dwords 10 to 15 are its own");
    let in_capsule = DataPlace::InCapsule { offset: 16, bytes: 4096 };
    let descriptor = in_capsule.encode();
    assert_eq!(descriptor, [16, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 1]);
    assert_eq!(DataPlace::parse(&descriptor), Ok(in_capsule));
    let keyed = DataPlace::parse(&[0x40; 16]).unwrap_err();
    assert_eq!((keyed.kind, keyed.subtype), (4, 0));
}

/// NVMe Base figure 92: result 0, SQHD 8, SQID 10, CID 12, phase and status 14.
#[test]
fn completion_fields() {
    let done = Completion {
        result: 0x1122,
        submission_head: 5,
        queue: 0,
        command_id: 9,
        status: Status::CONNECT_INVALID.and_final(),
    };
    let bytes = done.encode();
    assert_eq!(bytes, [0x22, 0x11, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0x04, 0x83]);
    assert_eq!(Completion::parse(&bytes), done);
    let status = done.status;
    assert_eq!((status.kind(), status.code(), status.is_final()), (1, 0x82, true));
    assert!(status.is(Status::CONNECT_INVALID) && !status.is_success());
    assert_eq!(status.to_string(), "connect invalid parameters (not to be tried again)");
    assert_eq!(Status::from_bits(0x07ab).to_string(), "status type 7 code 0xab");
}

/// NVM figure 40: context attributes 0, length 4, first block 8.
#[test]
fn ranges() {
    let range = BlockRange { first: 0x1_0000_0000, count: 8 };
    assert_eq!(range.encode(), [0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(BlockRange::parse(&range.encode()), range);
}

/// NVMe Base figures 380 to 382 (Connect).
#[test]
fn connect() {
    let connect = Connect {
        format: 0,
        queue: 2,
        queue_size_zero_based: 127,
        attributes: fabrics::ATTRIBUTE_NO_FLOW_CONTROL,
        keep_alive_ms: 0x0001_d4c0,
    };
    let command = connect.command(1);
    let bytes = command.as_bytes();
    assert_eq!(bytes[..5], [0x7f, 0x40, 1, 0, 1]);
    assert_eq!(bytes[40..52], [0, 0, 2, 0, 127, 0, 4, 0, 0xc0, 0xd4, 1, 0]);
    assert_eq!(Connect::parse(&command), connect);
    assert_eq!(command.direction(), Direction::ToController);
    let data = ConnectData {
        host_id: [7; 16],
        controller: 0xffff,
        subsystem: Nqn::new(DISCOVERY_NQN).unwrap(),
        host: Nqn::new("nqn.2014-08.org.nvmexpress:uuid:host").unwrap(),
    };
    let mut bytes = data.encode();
    assert_eq!(bytes.len(), 1024);
    assert_eq!(bytes[16..18], [0xff, 0xff]);
    assert_eq!(bytes[256..260], *b"nqn.");
    assert_eq!(bytes[512..516], *b"nqn.");
    assert_eq!(ConnectData::parse(&bytes), Ok(data));
    bytes[512] = 0;
    let error = ConnectData::parse(&bytes).unwrap_err();
    assert_eq!((error.offset, error.reason), (512, NqnError::Length(0)));
    assert!(ConnectData::parse(&bytes[..1023]).is_err());
}

#[test]
fn names() {
    assert_eq!(Nqn::new("nqn.a\n"), Err(NqnError::Text));
    assert_eq!(Nqn::new("iqn.a"), Err(NqnError::Prefix));
    let long = format!("nqn.{}", "a".repeat(219));
    assert!(Nqn::new(&long).is_ok());
    assert_eq!(Nqn::new(&format!("{long}a")), Err(NqnError::Length(224)));
    assert_eq!(Nqn::parse(&[b'n'; 256]), Err(NqnError::Length(256)));
    assert_eq!(Nqn::parse(&[0xff; 256]), Err(NqnError::Text));
}

/// NVMe Base figures 386 to 389 (Property Get, Property Set).
#[test]
fn properties() {
    let get = fabrics::PropertyAccess::get(Property::Capabilities, 3);
    assert_eq!(get.as_bytes()[..5], [0x7f, 0x40, 3, 0, 4]);
    assert_eq!(get.as_bytes()[40..48], [1, 0, 0, 0, 0, 0, 0, 0]);
    let set = fabrics::PropertyAccess::set(Property::Configuration, 0x46_0001, 4);
    assert_eq!(set.as_bytes()[40..56], [0, 0, 0, 0, 0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
    let access = fabrics::PropertyAccess::parse(&set).unwrap();
    assert_eq!((access.offset, access.value, access.is_wide), (0x14, 0x46_0001, false));
    assert_eq!(Property::from_offset(access.offset), Some(Property::Configuration));
    assert_eq!(fabrics::PropertyAccess::parse(&set.with_dword(10, 2)), None);
    assert_eq!(fabrics::disconnect(9).fabrics_type(), 8);
}

/// NVMe Base figure 275, by its offsets.
#[test]
fn controller_data() {
    let controller = IdentifyController {
        serial: "0123456789".into(),
        model: "Unlade".into(),
        firmware: "0.1".into(),
        is_one_of_many: true,
        transfer_power: 8,
        controller: 0x0102,
        version: 0x0002_0000,
        events: 0x100,
        kind: 1,
        event_requests_zero_based: 3,
        aborts_zero_based: 2,
        log_attributes: 4,
        error_entries_zero_based: 7,
        keep_alive_grain: 10,
        commands_max: 128,
        namespaces_max: 4,
        commands: 0x0d,
        write_cache: 1,
        sgl: 1 | 1 << 20 | 1 << 21,
        subsystem: Some(Nqn::new("nqn.2026-01.example:disk").unwrap()),
        command_capsule_16: 0x204,
        response_capsule_16: 1,
        in_capsule_offset_16: 0,
        descriptors_max: 1,
    };
    let bytes = controller.encode();
    assert_eq!(bytes[4..25], *b"0123456789          U");
    assert_eq!(bytes[76..84], [2, 8, 2, 1, 0, 0, 2, 0]);
    assert_eq!((bytes[111], bytes[258], bytes[259], bytes[261]), (1, 2, 3, 4));
    assert_eq!(bytes[512..520], [0x66, 0x44, 128, 0, 4, 0, 0, 0]);
    assert_eq!(bytes[536..540], [1, 0, 0x30, 0]);
    assert_eq!(bytes[1792..1796], [4, 2, 0, 0]);
    assert_eq!(IdentifyController::parse(&bytes), Ok(controller.clone()));
    assert_eq!(controller.in_capsule_bytes(), 8192);
    assert_eq!(controller.transfer_bytes_max(), Some(1 << 20));
    let unlimited = IdentifyController { transfer_power: 0, ..controller.clone() };
    assert_eq!(unlimited.transfer_bytes_max(), None);
    let absurd = IdentifyController { transfer_power: 255, ..controller };
    assert_eq!(absurd.transfer_bytes_max(), None);
    assert_eq!(IdentifyController::parse(&bytes[1..]), Err(IdentifyError::Length(4095)));
}

/// NVM figure 97: NSZE 0, NLBAF 25, FLBAS 26, NSATTR 99, NGUID 104, LBAF0 128.
#[test]
fn namespace_data() {
    let space = IdentifyNamespace {
        blocks: 0x0102,
        block_power: 12,
        deallocated_reads: 1,
        is_shared: true,
        is_read_only: true,
        guid: [9; 16],
    };
    let mut bytes = space.encode();
    assert_eq!(bytes[..3], [2, 1, 0]);
    assert_eq!(bytes[8..11], [2, 1, 0]);
    assert_eq!((bytes[33], bytes[99], bytes[104], bytes[130]), (1, 1, 9, 12));
    assert_eq!(IdentifyNamespace::parse(&bytes), Ok(space));
    bytes[130] = 17;
    assert_eq!(IdentifyNamespace::parse(&bytes), Err(IdentifyError::BlockSize(17)));
    bytes[128] = 8;
    assert_eq!(IdentifyNamespace::parse(&bytes), Err(IdentifyError::Metadata(8)));
    bytes[26] = 1;
    assert_eq!(IdentifyNamespace::parse(&bytes), Err(IdentifyError::Format(1)));
}

#[test]
fn lists_of_namespaces_and_names() {
    let list = encode_namespaces([1, 2, 5], 1);
    assert_eq!(list[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse_namespaces(&list), Ok(vec![2, 5]));
    assert_eq!(encode_namespaces(1..5000, 0).len(), 4096);
    let names = NamespaceNames { guid: Some([1; 16]), uuid: None, command_set: Some(0) };
    let bytes = names.encode();
    assert_eq!(bytes[..4], [2, 16, 0, 0]);
    assert_eq!(bytes[20..25], [4, 1, 0, 0, 0]);
    assert_eq!(NamespaceNames::parse(&bytes), Ok(names));
    let hostile = [0xff; 4096];
    assert_eq!(NamespaceNames::parse(&hostile), Ok(NamespaceNames::default()));
}

/// NVMe Base figures 264 and 265, NVMe/TCP figure 8.
#[test]
fn discovery_page() {
    let entry = DiscoveryEntry {
        kind: EntryKind::Nvm,
        is_tcp: true,
        secure_channel: 2,
        port_id: 1,
        controller: 0xffff,
        admin_queue_size: 32,
        service: "4420".into(),
        subsystem: Nqn::new("nqn.2026-01.example:disk").unwrap(),
        address: "192.0.2.1".into(),
        security: Security::None,
    };
    let mut page = discovery::encode_page(7, &[entry.clone(), entry.clone()]);
    assert_eq!(page.len(), 3072);
    assert_eq!((page[0], page[8], page[16]), (7, 2, 0));
    assert_eq!(page[1024..1034], [3, 1, 2, 2, 1, 0, 0xff, 0xff, 32, 0]);
    assert_eq!(page[1024 + 32..1024 + 37], *b"4420 ");
    assert_eq!(page[1024 + 512..1024 + 521], *b"192.0.2.1");
    let (header, entries) = discovery::parse_page(&page).unwrap();
    assert_eq!((header.generation, entries), (7, vec![entry.clone(), entry]));
    assert_eq!(discovery::parse_page(&page[..3071]), Err(DiscoveryError::Truncated(3071)));
    page[15] = 1;
    assert!(matches!(discovery::parse_page(&page), Err(DiscoveryError::TooMany(_))));
    page[16] = 1;
    assert_eq!(discovery::parse_page(&page), Err(DiscoveryError::Format(1)));
}
