//! Servers and clients that nobody here wrote, as they are: responses of the servers go to the clients
//! directly.

use std::path::Path;

use system_tests::counters::{Metrics, wait_for};
use system_tests::direct::{HOST, PATIENCE, RETURNS, connect, count, lab, receive, request};
use system_tests::servers::{Server, go_program, minio, objects};
use system_tests::{Lab, needs, said, text, turn};

/// Puts another server in the place of the lab's, and asks for large and small objects.
fn returns_of(server: Server) {
    let _turn = turn();
    let lab = lab();
    lab.end("s1", "TERM");
    let running = server.start(&lab, 8080);
    let url = format!("http://{}/{}1KiB", server_address(&lab), running.prefix);
    let answers = || lab.exec("lb", &["curl", "-sf", "-o", "/dev/null", &url]).status.success();
    assert!(wait_for(PATIENCE, answers), "{server:?} does not answer at {url}");
    // The balancer may have found that the earlier server has ended.
    let url = format!("http://{HOST}/{}1KiB", running.prefix);
    let is_known =
        || lab.exec("client", &["curl", "-sf", "-o", "/dev/null", &url]).status.success();
    assert!(wait_for(PATIENCE, is_known), "the balancer sends nothing to {server:?}");
    let mut clients = [connect(&lab, 0), connect(&lab, 0)];
    const ROUNDS: u64 = 10;
    for _ in 0..ROUNDS {
        for object in ["1MiB", "4KiB", "1MiB", "256KiB", "64KiB", "1MiB", "1MiB"] {
            for client in &mut clients {
                request(client, HOST, &format!("{}{object}", running.prefix));
                receive(&lab, client, object);
            }
        }
    }
    let counted = wait_for(PATIENCE, || count(&lab, RETURNS) >= 6 * ROUNDS);
    assert!(counted, "{server:?}: {}", Metrics::read(&lab, "lb").noteworthy());
}

/// Returns the address of the lab's server.
fn server_address(lab: &Lab) -> String {
    let text = std::fs::read_to_string(lab.dir().join("config/lb.toml")).unwrap();
    let servers = text.lines().find(|line| line.starts_with("servers = ")).unwrap();
    format!("{}:8080", servers.split('"').nth(1).unwrap())
}

#[test]
fn nginx_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "nginx");
    returns_of(Server::Nginx);
}

#[test]
fn pythons_server_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "python3");
    returns_of(Server::Python);
}

#[test]
fn a_server_in_go_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "go");
    returns_of(Server::Go);
}

#[test]
fn apache_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl", "apache2");
    returns_of(Server::Apache);
}

#[test]
fn minio_returns_directly_as_it_is() {
    needs!("ip", "setsid", "kill", "curl");
    match minio() {
        Ok(_) => returns_of(Server::Minio),
        Err(reason) => println!("skipped: {}: {reason}", module_path!()),
    }
}

/// Hosts that begin early if they can, that begin late, and whose pool has no agents.
const HOSTS: [&str; 3] = ["early.objects.lab", "late.objects.lab", "forward.objects.lab"];
/// Objects that are compared by a client; the responses of most can be direct.
const NAMES: &str = "1MiB 4KiB 256KiB 64KiB 256KiB set/05 1MiB 1KiB";

/// Runs a command at the client, which must succeed.
fn at_client(lab: &Lab, command: &str) -> String {
    let output = lab.exec("client", &["sh", "-c", command]);
    let lb = || Metrics::read(lab, "lb").noteworthy();
    assert!(output.status.success(), "{command}: {}; balancer: {}", said(&output), lb());
    text(&output)
}

/// Lets a client do its work at each host: so many responses at least must have been direct.
fn serves(work: &dyn Fn(&Lab, &str), due: u64) {
    let _turn = turn();
    let lab = lab();
    for host in HOSTS {
        let before = count(&lab, RETURNS);
        work(&lab, host);
        let counted = wait_for(PATIENCE, || count(&lab, RETURNS) >= before + due);
        let found = count(&lab, RETURNS) - before;
        assert!(counted, "{host}: {found} of {due}: {}", Metrics::read(&lab, "lb").noteworthy());
    }
}

#[test]
fn curl_is_served_directly() {
    needs!("ip", "setsid", "curl", "cmp");
    let dir = tempfile::tempdir().unwrap();
    let work = |lab: &Lab, host: &str| {
        let (objects, out) = (objects(lab), dir.path().display());
        let names: Vec<&str> = NAMES.split(' ').collect();
        let many: String = (names.iter().enumerate())
            .map(|(at, name)| format!(" -o {out}/{at} http://{host}/{name}"))
            .collect();
        let wanted = vec!["200"; names.len()].join("\n");
        // The later runs have connections to the server whose responses are limited.
        for _ in 0..3 {
            let curl = "curl -sS --max-time 30 -w '%{http_code}\\n'";
            assert_eq!(at_client(lab, &format!("{curl}{many}")), wanted);
            for (at, name) in names.iter().enumerate() {
                at_client(lab, &format!("cmp {out}/{at} {objects}/{name}"));
            }
        }
        let part = format!("cmp -i 0:1000 -n 999001 - {objects}/1MiB");
        at_client(lab, &format!("curl -sS -f -r 1000-1000000 http://{host}/1MiB | {part}"));
        at_client(lab, &format!("curl -sS -0 -f http://{host}/1MiB | cmp - {objects}/1MiB"));
    };
    serves(&work, 4);
}

#[test]
fn wrk_is_served_directly() {
    needs!("ip", "setsid", "wrk");
    let work = |lab: &Lab, host: &str| {
        let report =
            at_client(lab, &format!("wrk -t1 -c8 -d1s --timeout 10s http://{host}/256KiB"));
        assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    };
    serves(&work, 50);
}

/// It speaks HTTP/1.0, and keeps connections if it is told to.
#[test]
fn ab_is_served_directly() {
    needs!("ip", "setsid", "ab");
    let work = |lab: &Lab, host: &str| {
        for (keep, kept) in [("-k", "500"), ("", "0")] {
            let report = at_client(lab, &format!("ab -q {keep} -n 500 -c 8 http://{host}/256KiB"));
            for (name, value) in [("Complete", "500"), ("Failed", "0"), ("Keep-Alive", kept)] {
                let line =
                    report.lines().find(|line| line.starts_with(&format!("{name} requests")));
                let found = line.and_then(|line| line.split_whitespace().last());
                // A report has no line of kept connections if there was none.
                assert!(found.unwrap_or("0") == value, "{host}, {keep}, {name}: {report}");
            }
        }
    };
    serves(&work, 50);
}

#[test]
fn h2load_is_served_directly() {
    needs!("ip", "setsid", "h2load");
    let work = |lab: &Lab, host: &str| {
        let report = at_client(lab, &format!("h2load --h1 -n 1000 -c 8 http://{host}/256KiB"));
        let all =
            "1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout";
        assert!(report.contains(all), "{report}");
    };
    serves(&work, 50);
}

#[test]
fn python_is_served_directly() {
    needs!("ip", "setsid", "python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/keep_alive.py");
    let work = |lab: &Lab, host: &str| {
        let (script, objects) = (script.display(), objects(lab));
        let command = format!("python3 {script} http://{host} - {objects} 80 {NAMES}");
        assert_eq!(at_client(lab, &command), "80");
    };
    serves(&work, 10);
}

#[test]
fn go_is_served_directly() {
    needs!("ip", "setsid", "go");
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("client");
    go_program("clients/go", &program);
    let work = |lab: &Lab, host: &str| {
        let (program, objects, own) = (program.display(), objects(lab), &host[..4]);
        let options = format!("-base http://{host} -objects {objects} -own go-{own} -parallel 3");
        let said = at_client(lab, &format!("{program} {options} {NAMES}"));
        assert!(said.ends_with(" requests 150"), "{said}");
    };
    serves(&work, 10);
}

#[test]
fn node_is_served_directly() {
    needs!("ip", "setsid", "node");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/node/client.js");
    let work = |lab: &Lab, host: &str| {
        let (script, objects) = (script.display(), objects(lab));
        let command = format!("node {script} http://{host} {objects} 50 3 {NAMES}");
        assert_eq!(at_client(lab, &command), "connections 3 requests 150");
    };
    serves(&work, 10);
}

#[test]
fn java_is_served_directly() {
    needs!("ip", "setsid", "java", "javac");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/java/Client.java");
    let work = |lab: &Lab, host: &str| {
        let (source, objects) = (source.display(), objects(lab));
        let command = format!("java {source} http://{host} {objects} 50 3 {NAMES}");
        assert_eq!(at_client(lab, &command), "requests 150");
    };
    serves(&work, 10);
}
