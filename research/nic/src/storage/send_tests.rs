use unlade_nic_engine::tls::Version;
use unlade_nvme_wire::pdu::Data;
use unlade_tls::Cipher;
use zeroize::Zeroizing;

use super::*;
use crate::tls::keys::Secrets;

const START: SeqNumber = SeqNumber(u32::MAX - 5000);

fn nvme() -> Nvme {
    Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 }
}

fn sealed() -> Sealed {
    let key = Zeroizing::new(vec![1; 16]);
    let (version, cipher) = (Version::Tls13, Cipher::Aes128Gcm);
    let traffic_secret = Some(Zeroizing::new(vec![5; 32]));
    let secrets = Secrets { version, cipher, key, iv: [3; 12], traffic_secret };
    Sealed::new(secrets, START, 0).unwrap()
}

fn pdu(bytes: usize) -> Pdu {
    let (command_id, transfer_tag, offset) = (1, 2, 0);
    let (is_last, is_success) = (true, false);
    let bytes = bytes as u32;
    Pdu::HostData(Data { command_id, transfer_tag, offset, bytes, is_last, is_success })
}

/// Number of bytes of `pieces` that are references into `data`, in order.
fn by_reference(pieces: &[Span], data: &Bytes) -> usize {
    let all = data.as_ptr() as usize..data.as_ptr() as usize + data.len();
    let mut next = all.start;
    for piece in pieces.iter().flat_map(Span::parts) {
        let at = piece.as_ptr() as usize;
        if all.contains(&at) {
            assert_eq!(at, next);
            next += piece.len();
        }
    }
    next - all.start
}

fn bytes(pieces: &[Span]) -> Vec<u8> {
    let mut raw = Vec::new();
    pieces.iter().for_each(|piece| piece.copy(&mut raw));
    raw
}

#[test]
fn data_is_sent_from_where_it_lies_until_it_has_arrived() {
    for bytes in [512, 16 << 10, (128 << 10) - 4] {
        for mut sender in [PduSender::device(nvme(), START), PduSender::sealed(nvme(), sealed())] {
            let data = Bytes::from(vec![9; bytes]);
            let mut pieces = Vec::new();
            sender.write((&pdu(bytes), data.clone()), None, &mut pieces).unwrap();
            assert_eq!(by_reference(&pieces, &data), bytes);
            let (needed_bytes, needed_pieces) = sender.needs(bytes);
            let sent_bytes: usize = pieces.iter().map(Span::len).sum();
            assert!(sent_bytes <= needed_bytes && pieces.len() <= needed_pieces);
            drop(pieces);
            let end = START + sent_bytes as u32;
            sender.acknowledge(end - 1);
            assert!(!data.is_unique());
            assert_eq!(sender.unacknowledged(), 1);
            sender.acknowledge(end);
            assert!(data.is_unique(), "{bytes}");
            assert_eq!(sender.unacknowledged(), 0);
        }
    }
}

/// The state before a retransmitted byte contains exactly the bytes that were sent before it.
#[test]
fn every_byte_of_a_record_can_be_sent_again() {
    let mut sender = PduSender::sealed(nvme(), sealed());
    let mut pieces = Vec::new();
    let data: Bytes = (0..40_000_u32).map(|value| value as u8).collect();
    for bytes in [20, 40_000, 16_384 - 32, 16_384 - 30] {
        sender.write((&pdu(bytes), data.slice(..bytes)), None, &mut pieces).unwrap();
    }
    let (record, change, _) = sender.update_keys(false).unwrap();
    pieces.push(record);
    sender.write((&pdu(8), data.slice(..8)), None, &mut pieces).unwrap();
    let sent = bytes(&pieces);
    let mut framer = Framer::new(Digests::BOTH, Fill::Device);
    let mut inner = Vec::new();
    for bytes in [20, 40_000, 16_384 - 32, 16_384 - 30, 8] {
        framer.frame(&pdu(bytes), data.slice(..bytes)).copy(0, usize::MAX, &mut inner);
    }
    let mut keys = [0, 0];
    for at in (0..sent.len()).step_by(7) {
        let seq = START + at as u32;
        let Found::Message(message) = sender.find(seq) else { panic!("byte {at} is unknown") };
        let start = message.start.since(START) as usize;
        let mut before = Vec::new();
        let (message_start, key) = (message.start, message.key);
        sender.gather(message_start, seq, &mut before);
        assert_eq!(bytes(&before), sent[start..at], "the record of byte {at}");
        let mut recovery = InnerRecovery::default();
        assert!(sender.inner(message_start, &mut recovery) && recovery.wanted);
        let (from, until) = (recovery.start.0 as usize, recovery.content_start.0 as usize);
        assert_eq!(recovery.raw, inner[from..until], "before the record of byte {at}");
        keys[usize::from(key)] += 1;
        assert_eq!(key == change.key, !seq.before(change.start));
    }
    assert!(keys[0] > 0 && keys[1] > 0);
    assert!(matches!(sender.find(START + sent.len() as u32), Found::Unknown));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_kept() {
    let mut sender = PduSender::device(nvme(), START);
    let mut pieces = Vec::new();
    let long = Bytes::from(vec![0; (1 << 20) + 4]);
    let refused = sender.write((&pdu(long.len()), long), None, &mut pieces);
    assert_eq!(refused, Err(SendError::TooLong));
    for _ in 0..PDUS_MAX {
        sender.write((&pdu(4), Bytes::from_static(b"data")), None, &mut pieces).unwrap();
    }
    let kept = pieces.len();
    let refused = sender.write((&pdu(4), Bytes::from_static(b"data")), None, &mut pieces);
    assert_eq!((refused, pieces.len()), (Err(SendError::Full), kept));
    // Room for two of the longest PDUs, and zero without room.
    assert_eq!(PduSender::data_bytes_max(0), 0);
    assert_eq!(PduSender::data_bytes_max(1 << 20), PDU_DATA_BYTES_MAX);
    assert!(PduSender::data_bytes_max(100_000) < 50_000);
}
