//! The ends of connections: places are freed, and nothing leaves in the clear.

use std::sync::Arc;

use unlade_net::packet::TcpFlags;
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::{Tls, tls::Version};
use unlade_tls::device::{Begin, Refused};

use super::ended::{QUIET_MS, SPENT_MS};
use super::flow::{Flow, Receiving};
use super::flow_table::{FlowTable, IDLE_MS, Offer, Verdict};
use crate::classify::Segment;

const SYN_ACK: TcpFlags = TcpFlags(0x12);
const FIN_ACK: TcpFlags = TcpFlags(0x11);
const RST_ACK: TcpFlags = TcpFlags(0x14);
/// The first sequence numbers of host and peer.
const HOST: u32 = u32::MAX - 3;
const PEER: u32 = 77;
/// Bytes of a record.
const RECORD_BYTES: u32 = 100;

/// One connection, from the kernel's and the peer's view.
#[derive(Clone, Copy)]
struct Talk {
    name: FlowKey,
    host: u32,
}

impl Talk {
    fn number(number: u32) -> Talk {
        let [_, high, middle, low] = (number >> 14).to_be_bytes();
        let port = 1024 + (number & 0x3fff) as u16;
        let peer = ([10, high, middle, low], port).into();
        Talk { name: FlowKey::new(([10, 255, 0, 1], 443).into(), peer), host: HOST }
    }

    fn segment(&self, by_host: bool, flags: TcpFlags, at: u32, ack: u32, bytes: usize) -> Segment {
        let FlowKey { client, service } = self.name;
        let flow = if by_host { self.name } else { FlowKey { client: service, service: client } };
        let (first, other) = if by_host { (self.host, PEER) } else { (PEER, self.host) };
        let seq = SeqNumber(first) + at;
        let ack = SeqNumber(other) + ack;
        Segment { flow, flags, seq, ack, window: 9, tcp_at: 34, payload: 54..54 + bytes }
    }

    /// The verdict on the kernel's payload `at` bytes behind the stream's start.
    fn sends<'t>(&self, table: &'t mut FlowTable, now_ms: u64, at: u32) -> Verdict<'t> {
        let segment = self.segment(true, TcpFlags::ACK, at, 0, RECORD_BYTES as usize);
        table.host_segment(now_ms, &segment)
    }

    fn drops(&self, table: &mut FlowTable, now_ms: u64, at: u32) -> bool {
        matches!(self.sends(table, now_ms, at), Verdict::Drop)
    }

    /// The kernel accepts the peer's connection; it is offloaded.
    fn open(&self, table: &mut FlowTable, now_ms: u64) -> Result<Arc<Flow>, Refused> {
        let mut answer = self.segment(true, SYN_ACK, 0, 0, 0);
        answer.seq = SeqNumber(self.host.wrapping_sub(1));
        table.host_segment(now_ms, &answer);
        table.wire_segment(now_ms, &self.segment(false, TcpFlags::ACK, 0, 0, 0));
        let tls = || Tls::new(Version::Tls13, &[7; 16], [9; 12]).unwrap();
        let receiving = Receiving { tls: tls(), offset: 0, number: 0, read: 0 };
        let (name, begin) = (self.name, Begin::Seen);
        let (sent_bytes, sent_number, sending) = (0, 0, tls());
        table.create(now_ms, Offer { name, begin, sent_bytes, sent_number, sending, receiving })
    }

    /// A record goes out, and both ends finish; each acknowledges the other's FIN.
    fn finish(&self, table: &mut FlowTable, now_ms: u64) {
        assert!(matches!(self.sends(table, now_ms, 0), Verdict::Work(_)));
        let end = RECORD_BYTES;
        table.host_segment(now_ms, &self.segment(true, FIN_ACK, end, 0, 0));
        table.wire_segment(now_ms, &self.segment(false, FIN_ACK, 0, end + 1, 0));
        table.host_segment(now_ms, &self.segment(true, TcpFlags::ACK, end + 1, 1, 0));
    }
}

#[test]
fn after_half_a_million_connections_the_next_one_is_offloaded() {
    const CONNECTIONS: u32 = 500_000;
    const PER_SECOND: u32 = 1000;
    let mut table = FlowTable::default();
    for number in 0..CONNECTIONS {
        let now_ms = u64::from(number);
        let talk = Talk::number(number);
        let flow = talk.open(&mut table, now_ms).unwrap_or_else(|why| panic!("{number}: {why}"));
        match number % 4 {
            // The software has seen that all is acknowledged.
            0 => {
                talk.finish(&mut table, now_ms);
                flow.spend();
            }
            // It has not.
            1 => talk.finish(&mut table, now_ms),
            // The kernel resets.
            2 => {
                table.host_segment(now_ms, &talk.segment(true, RST_ACK, 0, 0, 0));
            }
            // The peer resets.
            _ => {
                let _ = talk.sends(&mut table, now_ms, 0);
                table.wire_segment(now_ms, &talk.segment(false, TcpFlags::RST, 0, 0, 0));
                flow.spend();
            }
        }
        drop(flow);
        if number % PER_SECOND == 0 {
            table.sweep(now_ms);
            assert_eq!((table.offloaded(), table.len()), (0, 0), "{number}: only the living count");
        }
    }
    assert_eq!(table.refused, 0);
    table.sweep(u64::from(CONNECTIONS) + QUIET_MS);
    assert_eq!((table.len(), table.ended()), (0, 0));
}

#[test]
fn idle_connections_keep_their_places_and_one_that_ends_gives_its_place_at_once() {
    const PLACES: u32 = 100;
    let mut table = FlowTable::with_places(PLACES as usize);
    let mut flows: Vec<_> =
        (0..PLACES).map(|number| Talk::number(number).open(&mut table, 0).unwrap()).collect();
    let day_ms = 24 * 3_600_000;
    table.sweep(day_ms);
    assert_eq!((table.offloaded(), table.len()), (100, 100));
    for number in 0..PLACES {
        assert!(matches!(Talk::number(number).sends(&mut table, day_ms, 0), Verdict::Work(_)));
    }
    let late = Talk::number(PLACES);
    assert_eq!(late.open(&mut table, day_ms).err(), Some(Refused::Unknown));
    assert_eq!(table.refused, 1);
    // Software seals the records of the refused connection; they pass.
    assert!(matches!(late.sends(&mut table, day_ms, 0), Verdict::Through));
    Talk::number(7).finish(&mut table, day_ms);
    flows.swap_remove(7);
    // A sweep by the clock is not needed.
    Talk::number(PLACES + 1).open(&mut table, day_ms + 20).unwrap();
    assert_eq!((table.offloaded(), table.refused), (100, 1));
}

#[test]
fn payload_after_the_end_is_dropped_until_the_kernel_has_nothing_left() {
    let mut table = FlowTable::default();
    let spent = Talk::number(1);
    let flow = spent.open(&mut table, 0).unwrap();
    spent.finish(&mut table, 0);
    flow.spend();
    drop(flow);
    table.sweep(1);
    assert_eq!((table.offloaded(), table.ended()), (0, 1));
    // The engine was stopped for long; the frames that waited for it since the end arrive now.
    assert!(spent.drops(&mut table, 60_000, 0));
    table.sweep(2);
    assert!(spent.drops(&mut table, 60_000, 0));
    // Acknowledgements pass.
    let ack = spent.segment(true, TcpFlags::ACK, RECORD_BYTES + 1, 1, 0);
    assert!(matches!(table.host_segment(60_000, &ack), Verdict::Drop) && ack.payload.is_empty());
    table.sweep(60_000 + SPENT_MS);
    assert_eq!(table.ended(), 0);
}

#[test]
fn an_acknowledgement_that_the_kernel_refuses_ends_nothing_for_it() {
    // A segment on the wire acknowledges the FIN, and the kernel rejects that segment.
    let mut table = FlowTable::default();
    let talk = Talk::number(1);
    let flow = talk.open(&mut table, 0).unwrap();
    table.host_segment(0, &talk.segment(true, FIN_ACK, RECORD_BYTES, 0, 0));
    table.wire_segment(0, &talk.segment(false, TcpFlags::ACK, 9, RECORD_BYTES + 1, 0));
    drop(flow);
    table.sweep(1000);
    // The kernel retransmits its record, at the longest interval.
    for again in 1..10 {
        let now_ms = again * 120_000;
        assert!(talk.drops(&mut table, now_ms, 0), "{now_ms}");
        table.sweep(now_ms);
    }
    table.sweep(9 * 120_000 + QUIET_MS);
    assert_eq!(table.ended(), 0);
}

#[test]
fn a_connection_that_its_software_has_left_is_sealed_until_its_end() {
    let mut table = FlowTable::default();
    let talk = Talk::number(1);
    drop(talk.open(&mut table, 0).unwrap());
    // The kernel still delivers what was written.
    for now_ms in (0..500_000).step_by(100_000) {
        table.sweep(now_ms);
        assert!(matches!(talk.sends(&mut table, now_ms, 0), Verdict::Work(_)));
    }
    // The kernel obeys a reset only at the next byte.
    table.wire_segment(500_000, &talk.segment(false, TcpFlags::RST, 1, 0, 0));
    table.sweep(500_000);
    assert_eq!(table.offloaded(), 1);
    table.wire_segment(500_000, &talk.segment(false, TcpFlags::RST, 0, 0, 0));
    table.sweep(500_000);
    assert_eq!((table.offloaded(), table.ended()), (0, 1));
}

#[test]
fn a_name_that_is_used_again_is_offloaded_again() {
    let mut table = FlowTable::default();
    for round in 0..5 {
        let talk = Talk { host: HOST.wrapping_add(round * 70_000), ..Talk::number(1) };
        let now_ms = u64::from(round);
        let flow = talk.open(&mut table, now_ms).unwrap();
        assert_eq!((table.offloaded(), table.len(), table.ended()), (1, 1, 0));
        // A late acknowledgement and a late RST of the connection before.
        table.wire_segment(now_ms, &talk.segment(false, TcpFlags::RST, 5000, 0, 0));
        talk.finish(&mut table, now_ms);
        drop(flow);
        table.sweep(now_ms);
        assert_eq!((table.offloaded(), table.len(), table.ended()), (0, 0, 1));
        assert!(talk.drops(&mut table, now_ms, 0));
    }
    // The same holds if the next one stays in software, since all places are taken.
    let mut table = FlowTable::with_places(1);
    let first = Talk::number(1);
    drop(first.open(&mut table, 0).unwrap());
    table.host_segment(0, &first.segment(true, RST_ACK, 0, 0, 0));
    table.sweep(0);
    let _living = Talk::number(2).open(&mut table, 1).unwrap();
    let again = Talk { host: HOST.wrapping_add(9), ..first };
    assert_eq!(again.open(&mut table, 1).err(), Some(Refused::Unknown));
    assert!(matches!(again.sends(&mut table, 1, 0), Verdict::Through));
}

#[test]
fn connections_that_were_never_offloaded_leave_their_places_when_they_end() {
    let mut table = FlowTable::with_places(1);
    let mut number = 0;
    let mut next = |table: &mut FlowTable, now_ms| {
        number += 1;
        let talk = Talk::number(number);
        let answer = Segment { seq: SeqNumber(HOST - 1), ..talk.segment(true, SYN_ACK, 0, 0, 0) };
        table.host_segment(now_ms, &answer);
        assert_eq!((table.len(), table.refused), (1, 0));
        talk
    };
    let talk = next(&mut table, 0);
    table.host_segment(0, &talk.segment(true, FIN_ACK, 0, 0, 0));
    table.wire_segment(0, &talk.segment(false, FIN_ACK, 0, 1, 0));
    table.host_segment(0, &talk.segment(true, TcpFlags::ACK, 1, 1, 0));
    let talk = next(&mut table, 100);
    table.host_segment(100, &talk.segment(true, RST_ACK, 0, 0, 0));
    next(&mut table, 200);
    table.sweep(200 + IDLE_MS);
    assert!(table.is_empty() && table.ended() == 0);
}
