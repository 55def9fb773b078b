//! Messages from a controller to the initiator, and from either end of a TLS handshake with a
//! pre-shared key to the other.

use bytes::Bytes;
use std::time::Duration;
use unlade_net::SeqNumber;
use unlade_nic_engine::software::pdus::Input;
use unlade_nvme::initiator::queue::{Payload, Queue, Request, Settings};
use unlade_nvme_wire::pdu::{Data, ReadyToTransfer, Terminate};
use unlade_nvme_wire::{Command, Completion, Digests, IoOpcode, Pdu, Status};
use unlade_tls::psk::{Client, Hash, Psk, Server};

/// Identifiers of the three commands in flight: slot and first generation.
const READ: u16 = 1 << 10;
const WRITE: u16 = 1 << 10 | 1;
const FLUSH: u16 = 1 << 10 | 2;
const READ_BYTES: usize = 1024;
const WRITE_BYTES: usize = 2048;

fn queue(choice: u8) -> Queue<u8> {
    let settings = Settings {
        depth: 4,
        digests: Digests { header: choice & 1 != 0, data: choice & 2 != 0 },
        alignment_bytes: 4,
        data_bytes_max: 4096,
        in_capsule_bytes: 0,
        transfers_max: 1 + u32::from(choice >> 2 & 3),
    };
    let mut queue = Queue::new(settings, SeqNumber(u32::from(choice) << 24));
    let commands = [
        (IoOpcode::Read, Payload::In(vec![0; READ_BYTES])),
        (IoOpcode::Write, Payload::Out(Bytes::from(vec![1; WRITE_BYTES]))),
        (IoOpcode::Flush, Payload::None),
    ];
    for (tag, (opcode, payload)) in (0..).zip(commands) {
        let command = Command::build(opcode as u8, 0, 1);
        let request = Request { command, payload, timeout: None };
        queue.submit(request, tag, Duration::ZERO).expect("there is room");
    }
    let sent = queue.outgoing().map(<[u8]>::len).sum();
    queue.sent(sent);
    queue
}

/// All observable results of a queue that received `bytes` in chunks.
fn outcome(choice: u8, bytes: &[u8], chunk_bytes: usize) -> String {
    let mut queue = queue(choice);
    let mut seen = String::new();
    for piece in bytes.chunks(chunk_bytes) {
        let received = queue.receive(&mut Input::plain(piece));
        // Requested bytes leave at once, so that their timing does not matter.
        let sent: Vec<u8> = queue.outgoing().flatten().copied().collect();
        queue.sent(sent.len());
        assert!(sent.len() <= 2 * WRITE_BYTES * 8, "more is sent than can have been asked for");
        while let Some(completed) = queue.completed() {
            if let (0, Ok(answer)) = (completed.tag, &completed.outcome) {
                assert_eq!(answer.data.len(), READ_BYTES);
            }
            seen.push_str(&format!("{completed:?}"));
        }
        if let Err(error) = received {
            seen.push_str(&format!("{error:?}"));
            queue.terminate();
            break;
        }
    }
    seen.push_str(&format!("{:?}", queue.abandon()));
    seen
}

/// The first byte selects digests, the rest comes from the controller. Without requests for data,
/// which wait until they are sent, the result does not depend on how the bytes arrive.
pub fn nvme_initiator(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let whole = outcome(*choice, bytes, usize::MAX);
    let single = outcome(*choice, bytes, 1);
    let waits = whole.contains("LimitExceeded") || whole.contains("Incomplete");
    assert!(whole == single || waits, "{whole} and {single}");
}

/// Exchanges of an honest controller.
pub fn nvme_initiator_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let data = |offset, bytes, is_success| {
        let (is_last, transfer_tag) = (is_success, 0);
        let command_id = READ;
        Pdu::ControllerData(Data { command_id, transfer_tag, offset, bytes, is_last, is_success })
    };
    let done = |id| Pdu::ResponseCapsule(Completion::new(id, Status::SUCCESS).encode());
    let ready = Pdu::ReadyToTransfer(ReadyToTransfer {
        command_id: WRITE,
        transfer_tag: 7,
        offset: 0,
        bytes: WRITE_BYTES as u32,
    });
    let end = Pdu::ControllerTerminate(Terminate { status: 2, information: 0 });
    let seed = |choice: u8, pdus: &[(&Pdu, usize)]| {
        let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
        let mut out = vec![choice];
        for (pdu, bytes) in pdus {
            let is_end = matches!(pdu, Pdu::ControllerTerminate(_));
            let digests = if is_end { Digests::NONE } else { digests };
            let common = pdu.common(*bytes, digests, 4);
            let layout = common.layout();
            let start = out.len();
            pdu.write(&common, &mut out);
            if layout.has_header_digest {
                let digest = crc32c::crc32c(&out[start..]);
                out.extend_from_slice(&digest.to_le_bytes());
            }
            out.resize(start + layout.head_bytes() + bytes, 0x5a);
            if layout.has_data_digest {
                let digest = crc32c::crc32c(&out[start + layout.head_bytes()..]);
                out.extend_from_slice(&digest.to_le_bytes());
            }
        }
        out
    };
    let half = READ_BYTES / 2;
    let (first, second) = (data(0, half as u32, false), data(half as u32, half as u32, true));
    vec![
        ("read", seed(0, &[(&first, half), (&second, half)])),
        ("read-digests", seed(3, &[(&first, half), (&second, half), (&done(FLUSH), 0)])),
        ("write", seed(1, &[(&ready, 0), (&done(WRITE), 0)])),
        ("end", seed(2, &[(&done(FLUSH), 0), (&end, 0)])),
    ]
}

fn key() -> Psk {
    Psk { identity: b"NVMe0R01 a b".to_vec(), key: vec![3; 32].into(), hash: Hash::Sha256 }
}

/// The first byte selects the receiving end, and how the bytes arrive.
pub fn psk(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let chunk_bytes = 1 + usize::from(choice >> 1);
    let ends = |chunk_bytes: usize| {
        let mut out = Vec::new();
        let mut client = Client::new(key(), &mut out).expect("a key");
        let mut server = Server::new(|name: &[u8]| (name == key().identity).then(key));
        for piece in bytes.chunks(chunk_bytes) {
            let failed = match choice & 1 {
                0 => server.advance(piece, &mut out).map(|done| assert!(done.is_none())).is_err(),
                _ => client.advance(piece, &mut out).map(|done| assert!(done.is_none())).is_err(),
            };
            if failed {
                return true;
            }
        }
        false
    };
    // An attacker without the key completes the handshake at neither end, and fails in the same
    // way however its bytes arrive.
    assert_eq!(ends(chunk_bytes), ends(usize::MAX));
}

/// A ClientHello with a wrong binder, and a HelloRetryRequest.
pub fn psk_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let message = |choice: u8, kind: u8, body: &[u8]| {
        let mut out = vec![choice, 22, 3, 3];
        out.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&(body.len() as u16).to_be_bytes());
        out.extend_from_slice(body);
        out
    };
    let mut hello = vec![3, 3];
    hello.extend_from_slice(&[9; 32]);
    hello.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    let mut extensions = vec![0, 43, 0, 3, 2, 3, 4, 0, 45, 0, 2, 1, 1];
    extensions.extend_from_slice(&[0, 10, 0, 4, 0, 2, 0, 29]);
    extensions.extend_from_slice(&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32]);
    extensions.extend_from_slice(&[9; 32]);
    let identity = key().identity;
    extensions.extend_from_slice(&[0, 41, 0, 2 + 2 + 12 + 4 + 2 + 33, 0, 2 + 12 + 4, 0, 12]);
    extensions.extend_from_slice(&identity);
    extensions.extend_from_slice(&[0, 0, 0, 0, 0, 33, 32]);
    extensions.extend_from_slice(&[5; 32]);
    hello.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    hello.extend_from_slice(&extensions);
    let mut retry = vec![3, 3];
    retry.extend_from_slice(&[
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ]);
    retry.extend_from_slice(&[0, 0x13, 0x01, 0, 0, 12, 0, 43, 0, 2, 3, 4, 0, 51, 0, 2, 0, 23]);
    vec![
        ("client-hello", message(6, 1, &hello)),
        ("retry", message(7, 2, &retry)),
        ("alert", vec![1, 21, 3, 3, 0, 2, 2, 51]),
    ]
}
