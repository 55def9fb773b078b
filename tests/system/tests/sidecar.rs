//! The sidecar: `unlade agent` adopts connections beside stock nginx, which answers over TCP or a
//! Unix socket. A second nginx answers the requests that the balancer proxies, so that each response
//! names the way that its request went.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use system_tests::client::{Client, Response};
use system_tests::counters::{Metrics, wait_for};
use system_tests::site::{LONG, LONG_BYTES, PATHS, PATIENCE, Site, Way, fetch};
use system_tests::{needs, said, turn};

/// The host whose connections stay at a server for all of their requests.
const HOST: &str = "unlimited.objects.lab";
/// Compares the responses to a client with those of the server, until all have come through the
/// sidecar. Returns the client's addresses.
fn assert_same(site: &Site, host: &str, options: &[&str]) -> BTreeSet<String> {
    let lab = &site.lab;
    let own = fetch(lab, "s1", "http://127.0.0.1:8081", options);
    assert_eq!(own.ways(), BTreeSet::from(["local"]));
    let ca = lab.dir().join("pki/ca.crt").display().to_string();
    let mut addresses = BTreeSet::new();
    for (scheme, port) in [("http", 80), ("https", 443)] {
        for address in lab.virtual_ips() {
            let to = match address.is_ipv4() {
                true => format!("{host}:{port}:{address}"),
                false => format!("{host}:{port}:[{address}]"),
            };
            let options = [&["--cacert", &ca, "--resolve", &to][..], options].concat();
            let all_came = wait_for(PATIENCE, || {
                let fetched = fetch(lab, "client", &format!("{scheme}://{host}"), &options);
                assert_eq!(fetched.lasting_heads(), own.lasting_heads(), "{scheme} {address}");
                for (at, path) in PATHS.iter().enumerate() {
                    // For HEAD, curl writes the head there.
                    let same = options.contains(&"--head") || fetched.bodies[at] == own.bodies[at];
                    assert!(same, "{scheme} {address} {options:?} {path}: other bytes");
                }
                addresses.insert(fetched.from.clone());
                fetched.ways() == BTreeSet::from(["local"])
            });
            let balancer = Metrics::read(lab, "lb");
            assert!(all_came, "{scheme} {address}: proxied; {}", balancer.noteworthy());
        }
    }
    addresses
}

#[test]
fn responses_are_those_of_nginx_and_its_log_has_the_clients_address() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    for way in [Way::Tcp, Way::Unix, Way::ProxyProtocol] {
        site.start_agent(way);
        let before = site.log().len();
        let addresses = assert_same(&site, HOST, &[]);
        if way == Way::Tcp {
            assert_same(&site, HOST, &["--head"]);
            assert_same(&site, HOST, &["--range", "100-900000"]);
            // A handover for each request.
            assert_same(&site, "one.objects.lab", &[]);
        }
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        // Requests without X-Forwarded-For are those of this test.
        let log = site.log();
        let forwarded: Vec<_> = log[before..].iter().filter(|line| line[2] != "-").collect();
        assert!(forwarded.len() >= 4 * PATHS.len(), "{way:?}: {log:?}");
        for [port, remote, forwarded, named, method, path, status] in forwarded {
            let line = format!("{way:?}: {port} {remote} {named} {method} {path} {status}");
            assert!(addresses.contains(forwarded), "{line}: {forwarded} of {addresses:?}");
            match way {
                Way::Tcp => assert_eq!((&port[..], &remote[..]), ("8081", "127.0.0.1"), "{line}"),
                Way::Unix => assert_eq!(remote, "unix:", "{line}"),
                Way::ProxyProtocol => {
                    assert_eq!((&port[..], &remote[..]), ("8082", "127.0.0.1"), "{line}");
                    assert_eq!(named, forwarded, "{line}");
                }
            }
        }
        assert!(site.sidecar("unlade_sidecar_connects_total") > 0, "{way:?}");
        assert!(site.sidecar("unlade_sidecar_reuses_total") > 0, "{way:?}");
        assert!(site.sidecar("unlade_backend_direct_bytes_total") > LONG_BYTES as u64, "{way:?}");
        // Idle ones are kept for other clients, or belong to clients that are gone.
        let none = wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") == 0);
        assert!(none, "{way:?}");
        let idle = site.sidecar("unlade_sidecar_idle_connections");
        assert_eq!(idle > 0, way != Way::ProxyProtocol, "{way:?}: {idle}");
        site.end_agent();
    }
}

#[test]
fn uploads_reach_nginx() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    let objects = site.lab.dir().join("objects");
    let ca = site.lab.dir().join("pki/ca.crt").display().to_string();
    for way in [Way::Tcp, Way::Unix] {
        site.start_agent(way);
        let [v4, v6] = site.lab.virtual_ips();
        for (scheme, to) in
            [("http", format!("{HOST}:80:{v4}")), ("https", format!("{HOST}:443:[{v6}]"))]
        {
            for (name, options) in [
                ("1KiB", &[][..]),
                ("set/00", &[]),
                (LONG, &[]),
                (LONG, &["-H", "Transfer-Encoding: chunked"]),
                ("1MiB", &["-H", "Transfer-Encoding: chunked", "-H", "Expect:"]),
            ] {
                let (source, path) = (objects.join(name), format!("uploads/{way:?}-{scheme}"));
                let source = source.display().to_string();
                let (get, put) =
                    (format!("{scheme}://{HOST}/1KiB"), format!("{scheme}://{HOST}/{path}"));
                let curl = ["curl", "-sS", "--max-time", "60", "--cacert", &ca, "--resolve", &to];
                // The request before it hands the connection over; a second upload is for nothing.
                let uploads = ["-o", "/dev/null", &get, "--next", "-sS", "--cacert", &ca];
                let uploads = [&uploads[..], &["--resolve", &to, "-D", "-"], options].concat();
                let command = [&curl[..], &uploads, &["-T", &source, &put]].concat();
                let stored = site.lab.dir().join(&path);
                let came = wait_for(PATIENCE, || {
                    let _ = fs::remove_file(&stored);
                    let output = site.lab.exec("client", &command);
                    assert!(output.status.success(), "{command:?}: {}", said(&output));
                    let head = String::from_utf8_lossy(&output.stdout).into_owned();
                    assert!(head.contains("HTTP/1.1 201 "), "{way:?} {scheme} {name}: {head}");
                    let same = fs::read(&stored).unwrap() == fs::read(&source).unwrap();
                    assert!(same, "{way:?} {scheme} {name} {options:?}: other bytes");
                    head.contains("X-Way: local\r\n")
                });
                assert!(came, "{way:?} {scheme} {name} {options:?}: proxied");
            }
        }
        site.end_agent();
    }
}

/// Sends a request and returns its response.
fn ask(site: &Site, client: &mut Client, path: &str) -> Response {
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    site.at_client(|| {
        client.send(request.as_bytes()).unwrap();
        client.response(false).unwrap_or_else(|broken| panic!("{path}: {broken:?}"))
    })
}

/// Returns true if a response came through the sidecar, or is the sidecar's own.
fn is_sidecars(response: &Response) -> bool {
    response.header("x-way").is_none_or(|way| way == "local")
}

#[test]
fn a_server_that_is_down_costs_the_client_a_response_and_no_connection() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    for way in [Way::Tcp, Way::Unix] {
        site.start_agent(way);
        for tls in [false, true] {
            let mut client = site.connect(HOST, tls);
            let served = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                assert_eq!(response.status(), 200, "{response:?}");
                is_sidecars(&response)
            });
            assert!(served, "{way:?}, TLS {tls}: proxied");
            site.local = None;
            let refused = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                if response.status() == 502 {
                    assert_eq!(response.body, b"the local server cannot be reached\n");
                    assert!(!response.closes(), "{response:?}");
                }
                response.status() == 502
            });
            assert!(refused, "{way:?}, TLS {tls}: no 502");
            site.start_local();
            let served = wait_for(PATIENCE, || {
                let response = ask(&site, &mut client, "64KiB");
                response.status() == 200 && is_sidecars(&response)
            });
            assert!(served, "{way:?}, TLS {tls}: not served again");
        }
        let failures = "unlade_sidecar_failures_total{reason=\"connect\"}";
        assert!(site.sidecar(failures) >= 2, "{way:?}");
        site.end_agent();
    }
}

#[test]
fn a_client_that_aborts_ends_its_request_at_nginx() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    site.start_agent(Way::Tcp);
    let abandoned = "unlade_sidecar_abandoned_total";
    for tls in [false, true] {
        let before = site.sidecar(abandoned);
        let counted = wait_for(PATIENCE, || {
            let mut client = site.connect(HOST, tls);
            ask(&site, &mut client, "1KiB");
            let request = format!("GET /slow/1MiB HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
            site.at_client(|| {
                client.send(request.as_bytes()).unwrap();
                // The response has begun, and would take minutes.
                client.budget_bytes = Some(1024);
                client.response(false).unwrap_err();
                client.abort();
            });
            wait_for(Duration::from_secs(5), || site.sidecar(abandoned) > before)
        });
        assert!(counted, "TLS {tls}: {}", Metrics::read(&site.lab, "lb").noteworthy());
        let none = wait_for(PATIENCE, || site.sidecar("unlade_sidecar_busy_connections") == 0);
        assert!(none, "TLS {tls}: the request goes on at the local server");
    }
    site.end_agent();
}

#[test]
fn an_agent_that_ends_gives_its_connections_back() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    let _turn = turn();
    let mut site = Site::new();
    site.start_agent(Way::Unix);
    let mut clients: Vec<Client> =
        [false, true, false, true].map(|tls| site.connect(HOST, tls)).into();
    let away = wait_for(PATIENCE, || {
        let responses = clients.iter_mut().map(|client| ask(&site, client, "64KiB"));
        let all: Vec<bool> = responses.map(|response| is_sidecars(&response)).collect();
        all.iter().all(|is| *is)
    });
    assert!(away, "{}", Metrics::read(&site.lab, "lb").noteworthy());
    site.end_agent();
    for client in &mut clients {
        let response = ask(&site, client, "64KiB");
        assert_eq!((response.status(), response.header("x-way")), (200, Some("front")));
    }
    assert_eq!(Metrics::read(&site.lab, "lb").get("unlade_resets_sent_total"), 0);
}
