//! Tests of the connection table: demultiplexing, limits and refusals.

use bytes::Bytes;
use unlade_testkit::{Random, cases};

use super::*;

fn address(host: u8, port: u16) -> SocketAddr {
    ([10, 0, 0, host], port).into()
}

fn stack(connections_max: usize) -> Stack<Bytes> {
    let config = Config { receive_buffer_bytes: 100_000, ..Config::default() };
    let config = StackConfig { connections_max, ..StackConfig::new(config, [7; 16]) };
    Stack::new(config)
}

/// Exchanges all pending segments between two stacks at one point in time.
fn exchange(stacks: &mut [Stack<Bytes>; 2], now: Time) -> usize {
    let mut gather = Vec::new();
    let mut count = 0;
    loop {
        let mut quiet = true;
        for from in 0..2 {
            while let Some(out) = stacks[from].poll_transmit(now, &mut gather) {
                quiet = false;
                count += 1;
                assert!(count < 100_000, "they never end");
                let flow = FlowKey { client: out.flow.service, service: out.flow.client };
                let mut pieces = core::mem::take(&mut gather);
                stacks[1 - from].receive(now, flow, &out.segment.header, &mut pieces);
            }
        }
        if quiet {
            return count;
        }
    }
}

fn read_all(stack: &mut Stack<Bytes>, id: Id) -> Vec<u8> {
    let connection = stack.get_mut(id).unwrap();
    let mut all = Vec::new();
    while let Some((_, part)) = connection.read() {
        all.extend_from_slice(&part);
    }
    all
}

#[test]
fn connections_are_asked_for_accepted_used_and_forgotten() {
    let mut both = [stack(10), stack(10)];
    let now = Time::from_ms(5);
    both[1].listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    let id = both[0].connect(now, address(1, 40_000), address(2, 80)).unwrap();
    let twice = both[0].connect(now, address(1, 40_000), address(2, 80));
    assert_eq!(twice, Err(ConnectError::InUse));
    both[0].get_mut(id).unwrap().send(Bytes::from_static(b"request")).unwrap();
    exchange(&mut both, now);
    let accepted = both[1].accept("0.0.0.0:80".parse().unwrap()).unwrap();
    assert_eq!(both[1].flow(accepted), Some(FlowKey::new(address(1, 40_000), address(2, 80))));
    assert_eq!(read_all(&mut both[1], accepted), b"request");
    both[1].get_mut(accepted).unwrap().send(Bytes::from_static(b"response")).unwrap();
    both[1].release(accepted);
    assert!(both[1].get(accepted).is_none());
    exchange(&mut both, now);
    assert_eq!(read_all(&mut both[0], id), b"response");
    both[0].release(id);
    exchange(&mut both, now);
    assert!(both[0].is_empty(), "it closed last");
    assert_eq!(both[1].len(), 1, "it waits for old segments");
    let later = both[1].poll_timeout().unwrap();
    assert!(later.ns_since(now) <= 60_000_000_000);
    let over = Time::from_ns(now.ns() + 61_000_000_000);
    both[1].handle_timeout(over);
    exchange(&mut both, over);
    assert!(both[1].is_empty());
    assert_eq!(both[1].poll_timeout(), None);
}

#[test]
fn nobody_there_is_a_refusal() {
    let mut both = [stack(10), stack(10)];
    let now = Time::from_ms(5);
    let id = both[0].connect(now, address(1, 40_000), address(2, 80)).unwrap();
    exchange(&mut both, now);
    let connection = both[0].get(id).unwrap();
    assert_eq!(connection.error(), Some(crate::ConnectionError::Refused));
    both[0].release(id);
    exchange(&mut both, now);
    assert!(both[0].is_empty() && both[0].get_mut(id).is_none());
}

#[test]
fn a_backlog_is_limited_and_gets_room_again() {
    let mut both = [stack(100), stack(100)];
    let now = Time::from_ms(5);
    let listener = address(2, 80);
    both[1].listen(listener, 3).unwrap();
    assert_eq!(both[1].listen(listener, 3), Err(ListenError::InUse));
    for port in 1..=5 {
        both[0].connect(now, address(1, port), listener).unwrap();
    }
    exchange(&mut both, now);
    assert_eq!((both[1].len(), both[1].accepting(listener).unwrap().refused), (3, 2));
    let first = both[1].accept(listener).unwrap();
    assert!(both[1].get(first).is_some_and(Connection::is_established));
    // The other clients retransmit their requests.
    let later = Time::from_ms(1100);
    both[0].handle_timeout(later);
    exchange(&mut both, later);
    assert_eq!((both[1].len(), both[1].accepting(listener).unwrap().refused), (4, 3));
}

#[test]
fn one_in_a_backlog_that_goes_makes_room() {
    let mut both = [stack(100), stack(100)];
    let now = Time::from_ms(5);
    let listener = address(2, 80);
    both[1].listen(listener, 1).unwrap();
    let id = both[0].connect(now, address(1, 1), listener).unwrap();
    exchange(&mut both, now);
    both[0].get_mut(id).unwrap().abort();
    exchange(&mut both, now);
    assert_eq!(both[1].len(), 0);
    assert_eq!(both[1].accept(listener), None);
    both[0].connect(now, address(1, 2), listener).unwrap();
    exchange(&mut both, now);
    assert!(both[1].accept(listener).is_some());
}

#[test]
fn connections_are_limited() {
    let mut both = [stack(2), stack(1)];
    let now = Time::from_ms(5);
    both[1].listen(address(2, 80), 10).unwrap();
    for port in 1..=2 {
        both[0].connect(now, address(1, port), address(2, 80)).unwrap();
    }
    let third = both[0].connect(now, address(1, 3), address(2, 80));
    assert_eq!(third, Err(ConnectError::TooMany));
    exchange(&mut both, now);
    assert_eq!((both[1].len(), both[1].accepting(address(2, 80)).unwrap().refused), (1, 1));
}

#[test]
fn strays_are_reset_so_many_at_a_time() {
    let mut stack = stack(10);
    let flow = FlowKey::new(address(1, 1), address(2, 2));
    let header = Header { flags: TcpFlags::ACK, ..Header::default() };
    for _ in 0..STRAY_RESETS_MAX + 10 {
        stack.receive(Time::default(), flow, &header, &mut Vec::new());
    }
    let mut gather = Vec::new();
    let mut count = 0;
    while let Some(out) = stack.poll_transmit(Time::default(), &mut gather) {
        assert!(out.id.is_none() && out.segment.header.has(TcpFlags::RST));
        count += 1;
    }
    assert_eq!(count, STRAY_RESETS_MAX);
}

#[test]
fn a_new_connection_takes_the_place_of_one_in_time_wait() {
    let mut both = [stack(10), stack(10)];
    let now = Time::from_ms(5);
    both[1].listen(address(2, 80), 10).unwrap();
    let id = both[0].connect(now, address(1, 1), address(2, 80)).unwrap();
    exchange(&mut both, now);
    let accepted = both[1].accept(address(2, 80)).unwrap();
    both[1].release(accepted);
    exchange(&mut both, now);
    both[0].release(id);
    exchange(&mut both, now);
    assert_eq!((both[0].len(), both[1].len()), (0, 1));
    // The same timestamp: it may be an old duplicate.
    let again = both[0].connect(now, address(1, 1), address(2, 80)).unwrap();
    exchange(&mut both, now);
    assert!(!both[0].get(again).unwrap().is_established());
    // With a later timestamp it is none.
    let later = Time::from_ms(1500);
    both[0].handle_timeout(later);
    exchange(&mut both, later);
    assert!(both[0].get(again).unwrap().is_established());
    assert!(both[1].accept(address(2, 80)).is_some());
}

#[test]
fn every_connection_gets_its_own_bytes() {
    cases(50, |random| {
        let mut both = [stack(100), stack(100)];
        let mut now = Time::from_ms(random.below(1 << 30));
        both[1].listen(address(2, 80), 100).unwrap();
        let ports: Vec<u16> = (0..random.below(60) as u16).map(|port| 1000 + port).collect();
        let ids: Vec<Id> = ports
            .iter()
            .map(|&port| both[0].connect(now, address(1, port), address(2, 80)).unwrap())
            .collect();
        for (id, port) in ids.iter().zip(&ports) {
            let text = Bytes::from(port.to_be_bytes().repeat(50 + usize::from(*port) / 100));
            both[0].get_mut(*id).unwrap().send(text).unwrap();
            both[0].release(*id);
        }
        for _ in 0..5 {
            exchange(&mut both, now);
            now = now.after_ns(random.below(1_000_000));
            both.iter_mut().for_each(|stack| stack.handle_timeout(now));
        }
        check_each(&mut both, &ports, random, now);
    });
}

fn check_each(both: &mut [Stack<Bytes>; 2], ports: &[u16], random: &mut Random, now: Time) {
    for _ in ports {
        let id = both[1].accept(address(2, 80)).expect("each is accepted");
        let port = both[1].flow(id).unwrap().client.port();
        let due = port.to_be_bytes().repeat(50 + usize::from(port) / 100);
        assert_eq!(read_all(&mut both[1], id), due);
        if random.once_in(2) {
            both[1].get_mut(id).unwrap().abort();
        }
        both[1].release(id);
    }
    exchange(both, now);
    let over = Time::from_ns(now.ns() + 200_000_000_000);
    both.iter_mut().for_each(|stack| stack.handle_timeout(over));
    exchange(both, over);
    assert_eq!((both[0].len(), both[1].len()), (0, 0));
    assert!(both[0].flows.is_empty() && both[1].flows.is_empty());
}
