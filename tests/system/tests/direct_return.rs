//! Large responses go to the client directly, while both connections stay at the balancer; what does
//! not fit is relayed and counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use system_tests::counters::{Metrics, moved, tcp_faults, wait_for, without_checks};
use system_tests::direct::{
    HOST, PATIENCE, RETURNS, ask, ask_host, connect, connect_with, count, lab, receive,
    receive_head, request,
};
use system_tests::{Lab, needs, said, turn, unlade_lab};
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions};
use unlade_net::{FlowKey, SeqNumber};
use unlade_steering::impair::{ImpairConfig, Impairment};
use unlade_testkit::line::{Chance, Chances};

const EARLY: &str = "unlade_lb_direct_returns_total{begin=\"early\"}";
const LATE: &str = "unlade_lb_direct_returns_total{begin=\"late\"}";
const UNFIT: &str = "unlade_lb_direct_returns_unfit_total";
const PROXIED: &str = "unlade_lb_fallbacks_total{reason=\"direct_return\"}";
const BYTES: &str = "unlade_lb_direct_return_bytes_total";
const WAY_CHANGES: &str = "unlade_lb_direct_return_way_changes_total";
const FORWARDED: &str = "unlade_lb_direct_return_forwarded_bytes_total";

/// Responses that were relayed for a reason.
fn unfit(lab: &Lab, reason: &str) -> u64 {
    count(lab, &format!("{UNFIT}{{reason=\"{reason}\"}}"))
}

#[test]
fn large_responses_bypass_the_balancer() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    // The first response of a connection to a server can come whole before there is a limit.
    for object in ["4KiB", "1MiB", "64KiB", "1KiB", "1MiB", "256KiB", "1MiB"] {
        ask(&lab, &mut client, object);
    }
    // Three of 1 MiB; at most 64 KiB of the first are relayed, and 16 KiB of the others.
    let bytes = (3 << 20) - (96 << 10);
    let counted = wait_for(PATIENCE, || count(&lab, BYTES) >= bytes && count(&lab, RETURNS) >= 3);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    // Other clients use the same connection to the server.
    let connected = "unlade_lb_upstream_connects_total";
    let before = count(&lab, connected);
    for _ in 0..3 {
        ask(&lab, &mut connect(&lab, 0), "1MiB");
    }
    assert_eq!(count(&lab, connected), before);
}

#[test]
fn a_response_that_is_expected_is_direct_from_its_first_byte_on() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    for object in ["64KiB", "256KiB", "1MiB"] {
        ask(&lab, &mut clients[0], object);
        let (early, bytes) = (count(&lab, EARLY), count(&lab, BYTES));
        for _ in 0..3 {
            for client in &mut clients {
                ask(&lab, client, object);
            }
        }
        let length = std::fs::metadata(lab.dir().join("objects").join(object)).unwrap().len();
        let counted = wait_for(PATIENCE, || {
            count(&lab, EARLY) >= early + 5 && count(&lab, BYTES) >= bytes + 5 * length
        });
        assert!(counted, "{object}: {}", Metrics::read(&lab, "lb").noteworthy());
    }
    assert!(count(&lab, LATE) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_head_that_is_not_fit_comes_through_the_balancer() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    for _ in 0..3 {
        ask(&lab, &mut client, "64KiB");
    }
    assert!(wait_for(PATIENCE, || count(&lab, EARLY) > 0));
    let ended = "HTTP/1.1 304 ";
    for turn in 0..4 {
        let fields = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n";
        let request = format!("GET /64KiB HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let head = receive_head(&mut client);
        assert!(head.starts_with(ended.as_bytes()), "{}", String::from_utf8_lossy(&head));
        // The path is known to be long again.
        (0..1 + turn % 2).for_each(|_| ask(&lab, &mut client, "64KiB"));
    }
    let counted = wait_for(PATIENCE, || unfit(&lab, "head") > 0);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_client_with_a_small_window_is_relayed_to() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, |text| {
        text.replace("direct_return = {", "direct_return = { from_bytes = \"8KiB\",")
    });
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    // It reads nothing before the balancer has decided: its window is shorter than what was relayed.
    let mut client = connect(&lab, 8192);
    request(&mut client, HOST, "256KiB");
    let counted = wait_for(PATIENCE, || unfit(&lab, "window") > 0);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    receive(&lab, &mut client, "256KiB");
}

/// Restarts the balancer with another configuration.
fn reconfigure(lab: &Lab, change: impl FnOnce(&str) -> String) {
    let file = lab.dir().join("config/lb.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = change(&text);
    assert_ne!(changed, text);
    std::fs::write(&file, changed).unwrap();
    let restarted = lab.run("restart", &["lb"]);
    assert!(restarted.status.success(), "{}", said(&restarted));
}

/// Its sequence numbers are not those of its socket, also at its end.
#[test]
fn an_idle_connection_to_a_server_ends_in_order() {
    needs!("ip", "setsid", "ss");
    let _turn = turn();
    let lab = lab();
    without_checks(&lab, &["lb"]);
    reconfigure(&lab, |text| {
        text.replace("direct_return = {", "upstream = { idle_timeout = \"1s\" }\ndirect_return = {")
    });
    let mut client = connect(&lab, 0);
    for _ in 0..2 {
        ask(&lab, &mut client, "1MiB");
    }
    assert!(wait_for(PATIENCE, || count(&lab, RETURNS) >= 2), "no direct return");
    let before = tcp_faults(&lab);
    let open = || {
        let of_server = ["ss", "-tnH", "state", "established", "sport", "=", ":8080"];
        let listed = lab.nodes().into_iter().filter(|node| node.starts_with('s') && node != "sw");
        listed.map(|node| lab.exec_text(&node, &of_server)).collect::<String>()
    };
    assert!(wait_for(PATIENCE, || open().is_empty()), "still open: {}", open());
    let moved = moved(&before, &tcp_faults(&lab));
    assert!(moved.is_empty(), "{moved:?}");
}

#[test]
fn connections_that_do_not_fit_are_relayed_to_and_counted() {
    needs!("ip", "setsid", "sysctl");
    let _turn = turn();
    let lab = lab();
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    let mut narrow = connect_with(&lab, |socket| socket.set_tcp_mss(536).unwrap());
    ask(&lab, &mut narrow, "1MiB");
    assert!(unfit(&lab, "segments") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    // Of new connections of the client's network.
    let set = lab.exec("client", &["sysctl", "-q", "-w", "net.ipv4.tcp_timestamps=0"]);
    assert!(set.status.success(), "{}", said(&set));
    ask(&lab, &mut connect(&lab, 0), "1MiB");
    assert!(unfit(&lab, "timestamps") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_full_table_relays_and_is_counted() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    reconfigure(&lab, |text| text.replace("[offload]", "[offload]\nflows_max = 1"));
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    for client in &mut clients {
        ask(&lab, client, "1MiB");
    }
    assert!(unfit(&lab, "failed") > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn a_connection_with_direct_responses_is_not_handed_over() {
    needs!("ip", "setsid");
    let _turn = turn();
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(
        &[&args[..], &["--lb-workers", "1", "--direct-return", "--offload", "always"]].concat(),
    );
    lab.wait_channels();
    let mut client = connect(&lab, 0);
    for _ in 0..3 {
        ask(&lab, &mut client, "1MiB");
    }
    assert!(count(&lab, RETURNS) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    ask_host(&lab, &mut client, "objects.lab", "4KiB");
    assert!(count(&lab, PROXIED) > 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    // The next response of such a connection goes its own way again.
    ask(&lab, &mut client, "1MiB");
}

#[test]
fn without_an_agent_responses_pass_the_balancer_as_packets() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    ask(&lab, &mut client, "1MiB");
    assert_eq!(count(&lab, FORWARDED), 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    lab.end("s1-agent", "KILL");
    for object in ["256KiB", "64KiB", "256KiB"] {
        ask(&lab, &mut client, object);
    }
    ask(&lab, &mut connect(&lab, 0), "256KiB");
    // So much comes here that the host cannot have taken the rule.
    for _ in 0..2 {
        ask(&lab, &mut client, "1MiB");
    }
    let log = || std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    let warned = wait_for(PATIENCE, || log().matches("does not take rules").count() == 1);
    assert!(warned, "{}", log());
    // The balancer's program does what the agent did: no byte waits for one.
    let (early, bytes) = (count(&lab, EARLY), count(&lab, FORWARDED));
    for _ in 0..3 {
        ask(&lab, &mut client, "1MiB");
    }
    let counted = wait_for(PATIENCE, || {
        count(&lab, EARLY) >= early + 3 && count(&lab, FORWARDED) >= bytes + (3 << 20)
    });
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    assert_eq!(log().matches("does not take rules").count(), 1);
}

#[test]
fn without_agents_in_the_configuration_nothing_but_the_balancer_is_needed() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    lab.end("s1-agent", "TERM");
    let mut client = connect(&lab, 0);
    for object in ["1MiB", "4KiB", "256KiB", "1MiB", "64KiB", "1MiB"] {
        ask_host(&lab, &mut client, "forward.objects.lab", object);
    }
    // The first response of the path comes through the sockets up to the limit, the others are early.
    let bytes = (3 << 20) - (56 << 10);
    let counted = wait_for(PATIENCE, || count(&lab, FORWARDED) >= bytes && count(&lab, EARLY) >= 2);
    assert!(counted, "{}", Metrics::read(&lab, "lb").noteworthy());
    assert_eq!(count(&lab, BYTES), 0);
    let log = std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    assert!(!log.contains("does not take rules"), "{log}");
}

#[test]
fn an_agent_that_ends_within_a_response_costs_no_byte() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    for signal in ["KILL", "TERM", "KILL"] {
        // The second one begins early.
        for _ in 0..2 {
            let mut client = connect(&lab, 16 << 10);
            // It has read nothing else when the agent ends.
            request(&mut client, HOST, "1MiB");
            let head = receive_head(&mut client);
            assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
            let mut rest = vec![0; 100 << 10];
            client.read_exact(&mut rest).unwrap();
            lab.end("s1-agent", signal);
            let expected = std::fs::read(lab.dir().join("objects/1MiB")).unwrap();
            rest.resize(expected.len(), 0);
            client.read_exact(&mut rest[100 << 10..]).unwrap();
            assert!(rest == expected, "other bytes after {signal}");
            let restarted = lab.run("restart", &["s1-agent"]);
            assert!(restarted.status.success(), "{}", said(&restarted));
        }
    }
    let forwarded = wait_for(PATIENCE, || count(&lab, FORWARDED) > 1 << 20);
    assert!(forwarded, "{}", Metrics::read(&lab, "lb").noteworthy());
}

#[test]
fn short_responses_show_that_there_is_no_agent() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    ask(&lab, &mut client, "256KiB");
    lab.end("s1-agent", "KILL");
    let log = || std::fs::read_to_string(lab.dir().join("logs/lb.log")).unwrap();
    let warnings = || log().matches("does not take rules").count();
    // Some do not begin: their connections do not fit each other just then.
    for _ in 0..40 {
        if warnings() > 0 {
            break;
        }
        ask(&lab, &mut client, "256KiB");
    }
    assert_eq!(warnings(), 1, "{}", log());
}

/// Sends two acknowledgements half of the sequence space apart in the name of a client, of which one is
/// ahead of the true one at least; then both with a wrong checksum.
fn forge(lab: &Lab, client: &TcpStream) {
    let [v4, _] = lab.virtual_ips();
    let flow = FlowKey::new(client.local_addr().unwrap(), SocketAddr::new(v4, 80));
    let send = || {
        lab.enter("client");
        for damage in [0, 0x55] {
            for ack in [0, 1 << 31] {
                let segment = Segment {
                    flow,
                    direction: Direction::ToService,
                    seq: SeqNumber(0),
                    ack: SeqNumber(ack),
                    flags: TcpFlags::ACK,
                    window: 0,
                    options: TcpOptions::default(),
                    payload: &[],
                };
                let mut packet = segment.ip_packet().unwrap();
                let checksum_at = packet.len() - 4;
                packet[checksum_at] ^= damage;
                unlade_sys::raw::send_packet(&packet, flow.service.ip()).unwrap();
            }
        }
    };
    std::thread::scope(|scope| scope.spawn(send).join().unwrap());
}

/// Requests an object so often, while each second packet of the server's link comes twice.
fn ask_with_duplicates(lab: &Lab, client: &mut TcpStream, object: &str, times: u32) {
    let config = ImpairConfig {
        interface: "s1".to_owned(),
        chances: Chances { duplicate: Chance::of(0.5), ..Chances::default() },
        delay_max: Duration::ZERO,
        seed: unlade_testkit::seed(),
    };
    let run = || {
        lab.enter("sw");
        let _link = Impairment::open(&config).unwrap();
        for _ in 0..times {
            ask(lab, client, object);
        }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

#[test]
fn segments_that_no_socket_gets_are_counted() {
    needs!("ip", "setsid", "kill");
    let _turn = turn();
    let lab = lab();
    let mut client = connect(&lab, 0);
    for _ in 0..3 {
        ask(&lab, &mut client, "256KiB");
    }
    // A response waits for this client to read. Only during one the programs judge all segments.
    ask(&lab, &mut client, "1MiB");
    let mut slow = connect(&lab, 64 << 10);
    request(&mut slow, HOST, "1MiB");
    receive_head(&mut slow);
    forge(&lab, &slow);
    slow.read_exact(&mut vec![0; 1 << 20]).unwrap();
    // A copy of a head is one of these packets.
    ask_with_duplicates(&lab, &mut client, "256KiB", 20);
    lab.end("s1-agent", "KILL");
    ask(&lab, &mut client, "256KiB");
    for treatment in ["acknowledged", "forwarded", "dropped", "refused", "corrupt"] {
        let sample = format!("unlade_lb_direct_return_segments_total{{treatment=\"{treatment}\"}}");
        let is_counted = wait_for(PATIENCE, || count(&lab, &sample) > 0);
        assert!(is_counted, "{sample}: {}", Metrics::read(&lab, "lb").noteworthy());
    }
    ask(&lab, &mut client, "256KiB");
}

#[test]
fn a_key_that_is_no_key_is_named() {
    needs!("ip", "setsid");
    let _turn = turn();
    let lab = lab();
    std::fs::write(lab.dir().join("pki/rules.key"), "short").unwrap();
    let restarted = lab.run("restart", &["lb"]);
    let said = said(&restarted);
    assert!(!restarted.status.success() && said.contains("32 hexadecimal digits"), "{said}");
}

/// The pool's configuration has no sizes, so the balancer chooses. Each link of balancer and servers has the
/// same rate: what the servers' hosts send does not need the balancer's.
#[test]
fn a_full_link_is_left_to_the_servers_hosts() {
    needs!("ip", "setsid", "tc");
    let _turn = turn();
    let args = ["--servers", "4", "--objects", "small", "--fronts", "offload", "--rate", "40mbit"];
    let lab = Lab::up(&[&args[..], &["--direct-return", "--offload", "off"]].concat());
    let url = "http://chosen.objects.lab";
    let load = ["load", "--url", url, "--path", "/64KiB", "--connections", "16"];
    let load = [&load[..], &["--duration", "10min"]].concat();
    let _load = lab.start("client", &unlade_lab(), &load);
    let is_left = wait_for(2 * PATIENCE, || count(&lab, WAY_CHANGES) > 0);
    assert!(is_left, "{}", Metrics::read(&lab, "lb").noteworthy());
    assert!(count(&lab, FORWARDED) > 0 && count(&lab, BYTES) > 0);
}
