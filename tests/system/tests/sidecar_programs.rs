//! Servers that nobody here wrote, as they are, behind the sidecar: over HTTPS, on connections that were handed
//! over and in responses that are sealed for the balancer.

use system_tests::client::Client;
use system_tests::counters::{Metrics, wait_for};
use system_tests::servers::{Server, minio};
use system_tests::site::{PATIENCE, Site};
use system_tests::{needs, turn};

/// The host whose connections stay at a server for all of their requests.
const HANDED_OVER: &str = "unlimited.objects.lab";
/// The host whose responses are sealed at the server's host.
const SEALED: &str = "sealed.objects.lab";
/// The port of the local server.
const PORT: u16 = 8090;

/// Requests an object over a connection and compares its bytes. Returns true if it did not come from the server
/// that answers proxied requests.
fn is_local(site: &Site, client: &mut Client, (host, prefix): (&str, &str), object: &str) -> bool {
    let request = format!("GET /{prefix}{object} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let response = site.at_client(|| {
        client.send(request.as_bytes()).unwrap();
        client.response(false).unwrap_or_else(|broken| panic!("{object}: {broken:?}"))
    });
    if response.header("x-way") == Some("front") {
        return false;
    }
    assert_eq!(response.status(), 200, "{host} {object}: {response:?}");
    let expected = std::fs::read(site.lab.dir().join("objects").join(object)).unwrap();
    assert!(response.body == expected, "{host} {object}: other bytes");
    true
}

/// `has_log`: the server's log can have the client's address.
fn serves(server: Server, has_log: bool) {
    let _turn = turn();
    let mut site = Site::new();
    let running = server.start(&site.lab, PORT);
    site.start_agent_before(&format!("http://127.0.0.1:{PORT}"), "");
    for host in [HANDED_OVER, SEALED] {
        let mut client = site.connect(host, true);
        let place = (host, running.prefix);
        // The front has no such path where there is a prefix.
        let comes = || is_local(&site, &mut client, place, "1KiB");
        assert!(wait_for(PATIENCE, comes), "{server:?} {host}: proxied");
        for object in ["1MiB", "4KiB", "256KiB", "64KiB", "1MiB", "1KiB"].repeat(20) {
            assert!(is_local(&site, &mut client, place, object), "{server:?} {host}: proxied");
        }
    }
    let sealed = "unlade_lb_sealed_responses_total";
    let counted = wait_for(PATIENCE, || Metrics::read(&site.lab, "lb").get(sealed) >= 120);
    assert!(counted, "{server:?}: {}", Metrics::read(&site.lab, "lb").noteworthy());
    assert!(site.sidecar("unlade_backend_direct_bytes_total") > 40 << 20, "{server:?}");
    if has_log {
        let log = std::fs::read_to_string(site.lab.dir().join("logs/stock.log")).unwrap();
        let addresses = site.lab.exec_text("client", &["ip", "-o", "addr"]);
        let named = log.lines().filter(|line| {
            let address = line.split(' ').next().unwrap_or_default();
            !address.is_empty() && addresses.contains(&format!(" {address}/"))
        });
        assert!(named.count() >= 240, "{server:?}: {addresses}: {log}");
    }
}

#[test]
fn nginx_is_served_by_a_sidecar_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    serves(Server::Nginx, true);
}

#[test]
fn apache_is_served_by_a_sidecar_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx", "apache2");
    serves(Server::Apache, true);
}

#[test]
fn pythons_server_is_served_by_a_sidecar_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx", "python3");
    serves(Server::Python, false);
}

#[test]
fn a_server_in_go_is_served_by_a_sidecar_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx", "go");
    serves(Server::Go, true);
}

#[test]
fn minio_is_served_by_a_sidecar_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    match minio() {
        Ok(_) => serves(Server::Minio, false),
        Err(reason) => println!("skipped: {}: {reason}", module_path!()),
    }
}
