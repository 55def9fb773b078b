//! Rare events of the device, and their counters in the text that a process serves.

use std::io;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use unlade_sys::namespaces::{Namespace, unshare};
use unlade_sys::vnet::VnetTap;

use super::super::channel::Device;
use super::super::delivery_log::RANGES_MAX;
use super::super::flow_table::FlowTable;
use super::super::thread::{QUEUE_FRAMES, Setup, Wire, start};
use super::*;

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);
const MTU_BYTES: u32 = 1500;

/// The value of a sample in the text that a process serves.
fn rendered(counted: &DeviceCounters, sample: &str) -> u64 {
    let mut text = OpenMetrics::new();
    add_device(&mut text, counted);
    let text = text.finish();
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{sample}\n{text}"))
}

fn counted(engine: &Engine) -> DeviceCounters {
    let (device, engine) = (*engine.stats(), engine.counters());
    DeviceCounters { device, engine, ..DeviceCounters::default() }
}

#[test]
fn a_segment_whose_delivery_cannot_be_noted_is_dropped() {
    const DROPPED: &str = "unlade_nic_rx_dropped_frames_total";
    let (mut engine, flow) = offloaded();
    let byte = |at: usize| frame(false, TcpFlags::ACK, PEER + at as u32, HOST, b"x");
    // Every other byte: none joins another, and the kernel acknowledges none.
    for range in 0..RANGES_MAX {
        assert_eq!(from_wire(&mut engine, byte(2 * range)).len(), 1);
    }
    assert_eq!(rendered(&counted(&engine), DROPPED), 0);
    assert!(from_wire(&mut engine, byte(2 * RANGES_MAX)).is_empty());
    assert_eq!(rendered(&counted(&engine), DROPPED), 1);
    // The peer sends it again, after software has read some of the others.
    flow.rx().read(RANGES_MAX, &mut Vec::new());
    assert_eq!(from_wire(&mut engine, byte(2 * RANGES_MAX)).len(), 1);
    assert_eq!(rendered(&counted(&engine), DROPPED), 1);
}

#[test]
fn a_connection_without_a_place_passes_and_stays_in_software() {
    const UNKNOWN: &str = "unlade_nic_unknown_connections_total";
    let mut engine = Engine::new(false);
    *engine.table() = FlowTable::with_places(1);
    from_host(&mut engine, 0, frame(true, SYN_ACK, HOST - 1, PEER, &[]));
    assert_eq!(rendered(&counted(&engine), UNKNOWN), 0);
    let other = FlowKey { service: "10.9.0.2:5001".parse().unwrap(), ..name() };
    let answer = Made {
        flow: other,
        direction: Direction::ToService,
        seq: SeqNumber(HOST - 1),
        ack: SeqNumber(PEER),
        flags: SYN_ACK,
        window: 900,
        options: TcpOptions::default(),
        payload: &[],
    };
    let answer = answer.ethernet_frame([2; 6], [4; 6]).unwrap();
    assert_eq!(from_host(&mut engine, 0, answer.clone()), [answer]);
    let refused = engine.table().create(0, Offer { name: other, ..offer(0, 0) }).err();
    assert_eq!(refused, Some(Refused::Unknown));
    assert_eq!(rendered(&counted(&engine), UNKNOWN), 1);
    engine.table().create(0, offer(0, 0)).unwrap();
}

#[test]
fn a_question_expires_while_a_gap_keeps_software_from_the_answer() {
    const EXPIRED: &str = "unlade_nic_rx_resync_expired_total";
    const SEGMENT_BYTES: usize = 1400;
    let (mut engine, flow) = offloaded();
    // The device asks, instead of presuming the number of the record.
    flow.presume(false);
    let stream = stream(&mut Random::new(11), 300, 16_000);
    let sealed = &stream.sealed;
    let came = |start: usize, end: usize| {
        frame(false, TcpFlags::ACK, PEER + start as u32, HOST, &sealed[start..end])
    };
    // The first segment has the head of a record whose rest is lost, up to another record.
    let record = stream.records.iter().position(|record| record.len() > 3 * SEGMENT_BYTES).unwrap();
    let lost = stream.records[..record].iter().map(Bytes::len).sum::<usize>() + SEGMENT_BYTES;
    let found = lost + stream.records[record].len();
    for (from, until) in [(0, lost), (found, sealed.len())] {
        for start in (from..until).step_by(SEGMENT_BYTES) {
            from_wire(&mut engine, came(start, (start + SEGMENT_BYTES).min(until)));
        }
    }
    // Software has read up to the gap only, so it cannot tell the number of the record.
    let counted = counted(&engine);
    assert!(rendered(&counted, EXPIRED) >= 1);
    assert_eq!(rendered(&counted, "unlade_nic_rx_tls_resync_res_ok_total"), 0);
    assert!(flow.rx().request().is_some());
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Sends datagrams to a host that is not there, so that the kernel asks for its address, until
/// `is_so`.
fn ask_until(to: &str, what: &str, is_so: impl Fn() -> bool) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
        // The kernel may report that the host was not found before.
        let _ = socket.send_to(b"anything", to);
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn frames_that_neither_side_accepts() -> io::Result<()> {
    const UNSENT: &str = "unlade_nic_unsent_frames_total";
    unshare(&[Namespace::Network])?;
    let tap = |name, mac| VnetTap::create(name, mac, QUEUE_FRAMES, MTU_BYTES);
    let (host, wire) = (tap("host", [2, 0, 0, 0, 0, 1])?, tap("wire", [2, 0, 0, 0, 0, 2])?);
    ip("addr add 10.9.1.1/24 dev host");
    ip("addr add 10.9.2.1/24 dev wire");
    let device = Device::new()?;
    let running = start(
        device.clone(),
        Setup {
            host,
            wire: Wire::Tap(wire),
            wire_is_large: false,
            impairment: None,
            capture: None,
            core: None,
            spin: Duration::ZERO,
            is_timed: false,
        },
    )?;
    let unsent = || rendered(&device.counters(), UNSENT);
    let passed = || {
        let counted = device.counters().engine;
        (counted.host_frames, counted.wire_frames)
    };
    // Both sides accept frames.
    ask_until("10.9.1.9:9", "a frame of the kernel", || passed().0 > 0);
    ask_until("10.9.2.9:9", "a frame of the wire", || passed().1 > 0);
    assert_eq!(unsent(), 0);
    // A device that is down accepts none.
    ip("link set wire down");
    ask_until("10.9.1.9:9", "a frame that the wire does not accept", || unsent() > 0);
    ip("link set wire up");
    let before = passed().0;
    ask_until("10.9.1.9:9", "another frame of the kernel", || passed().0 > before);
    ip("link set host down");
    let before = unsent();
    ask_until("10.9.2.9:9", "a frame that the kernel does not accept", || unsent() > before);
    drop(running);
    Ok(())
}

#[test]
fn a_frame_that_one_side_does_not_accept_is_counted() {
    // A network namespace is a property of a thread.
    let tested = std::thread::spawn(frames_that_neither_side_accepts).join();
    match tested.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(()) => {}
        Err(error) => println!("skipped: no namespace with TAP devices: {error}"),
    }
}
