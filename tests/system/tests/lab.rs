//! `unlade lab`: builds labs and removes them completely.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use system_tests::counters::Metrics;
use system_tests::{Lab, needs, run, said, text, unable, unique_name, unlade};

const TOOLS: [&str; 4] = ["ip", "tc", "ethtool", "setsid"];

/// Waits at most ten seconds for `condition`.
fn within_ten_seconds(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn pids(lab: &Lab) -> Vec<u64> {
    let status = lab.status();
    let processes = status["processes"].as_array().unwrap();
    processes.iter().map(|process| process["pid"].as_u64().unwrap()).collect()
}

fn kill_9(pids: &[u64]) {
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(*pid as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Removes a lab whose `up` was killed after `delay_ms`. Repeats it if the kill was between fork
/// and exec of a tool, when the process cannot be identified yet.
fn assert_removed(lab: &Lab, delay_ms: u64) {
    for _ in 0..2 {
        let down = lab.run("down", &[]);
        assert!(down.status.success(), "after {delay_ms} ms: {}", said(&down));
        if lab.traces().is_empty() {
            return;
        }
    }
    assert_eq!(lab.traces(), Vec::<String>::new(), "after {delay_ms} ms");
}

#[test]
fn up_and_down_twice_leave_nothing() {
    needs!("ip", "setsid");
    let lab = Lab::up(&["--servers", "2", "--objects", "small", "--tls"]);
    for _ in 0..2 {
        let status = lab.status();
        assert_eq!(status["ready"], true);
        for process in status["processes"].as_array().unwrap() {
            assert_eq!(process["alive"], true, "{process}");
        }
        // A lab in use is not replaced without the option for it.
        let again = lab.run("up", &["--servers", "1"]);
        assert_eq!(again.status.code(), Some(1), "{}", said(&again));
        let down = lab.run("down", &[]);
        assert!(down.status.success(), "{}", said(&down));
        assert_eq!(lab.traces(), Vec::<String>::new());
        let down = lab.run("down", &[]);
        assert!(down.status.success(), "down is idempotent: {}", said(&down));
        let up = lab.run("up", &["--servers", "1", "--objects", "small"]);
        assert!(up.status.success(), "{}", said(&up));
    }
    let replaced = lab.run("up", &["--servers", "1", "--objects", "small", "--replace"]);
    assert!(replaced.status.success(), "{}", said(&replaced));
}

#[test]
fn up_returns_when_the_balancers_have_their_servers() {
    needs!("ip", "setsid", "curl");
    let lab = Lab::up(&["--servers", "3", "--objects", "small", "--lb-workers", "2"]);
    let [lb, proxy] = ["lb", "lb-proxy"].map(|process| Metrics::read(&lab, process));
    assert_eq!(lb.get("unlade_channels_up"), 6);
    for metrics in [lb, proxy] {
        assert_eq!(metrics.get("unlade_lb_healthy_servers"), 3);
    }
}

#[test]
fn nginx_is_behind_with_sidecars_and_direct_return() {
    needs!("ip", "setsid", "curl", "nginx");
    let servers = ["--servers", "2", "--objects", "small", "--tls", "--behind", "nginx"];
    let lab = Lab::up(&[&servers[..], &["--offload", "always", "--direct-return"]].concat());
    let ca = lab.dir().join("pki/ca.crt").display().to_string();
    let fetch = |url: &str| {
        let curl = ["curl", "-sS", "--fail", "-D", "-", "-o", "/dev/null", "--cacert", &ca, url];
        let head = lab.exec_text("client", &curl).to_lowercase();
        assert!(head.contains("server: nginx"), "{url}: {head}");
    };
    for url in ["http://one.objects.lab/64KiB", "https://one.objects.lab/1MiB"] {
        fetch(url);
    }
    // The first response of a connection to a server can come whole before there is a limit.
    for _ in 0..6 {
        fetch("http://direct.objects.lab/1MiB");
    }
    let metrics = Metrics::read(&lab, "lb");
    assert_eq!(metrics.get("unlade_lb_migrations_completed_total"), 2, "{}", metrics.noteworthy());
    assert!(metrics.get("unlade_lb_direct_returns_total") > 0, "{}", metrics.noteworthy());
}

#[test]
fn two_labs_coexist() {
    needs!("ip", "setsid", "curl");
    let labs = [0, 1].map(|_| Lab::up(&["--servers", "1", "--objects", "small"]));
    let ids = labs.each_ref().map(|lab| lab.status()["id"].clone());
    assert_ne!(ids[0], ids[1]);
    let fetch = ["curl", "-sf", "-o", "/dev/null", "-w", "%{http_code}", "http://s1.lab:8080/4KiB"];
    for lab in &labs {
        assert_eq!(lab.exec_text("client", &fetch), "200");
    }
    let [first, second] = labs;
    drop(first);
    assert_eq!(second.exec_text("client", &fetch), "200");
}

#[test]
fn what_was_killed_is_cleaned_up() {
    needs!("ip", "setsid");
    let lab = Lab::up(&["--servers", "2", "--objects", "small"]);
    let killed = pids(&lab);
    kill_9(&killed);
    assert!(within_ten_seconds(|| {
        let status = lab.status();
        status["processes"].as_array().unwrap().iter().all(|process| process["alive"] == false)
    }));
    // A lab without processes is stale, and `up` removes it.
    let up = lab.run("up", &["--servers", "1", "--objects", "small"]);
    assert!(up.status.success(), "{}", said(&up));
    kill_9(&pids(&lab)[..1]);
    let down = lab.run("down", &[]);
    assert!(down.status.success(), "{}", said(&down));
    assert_eq!(lab.traces(), Vec::<String>::new());
}

#[test]
fn an_interrupted_up_is_cleaned_up() {
    needs!("ip", "setsid");
    for delay_ms in [20, 60, 150, 400] {
        let lab = Lab { name: unique_name() };
        let mut up = Command::new(unlade())
            .args(["lab", "up", "--servers", "3", "--name", &lab.name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        up.kill().unwrap();
        up.wait().unwrap();
        assert_removed(&lab, delay_ms);
    }
}

/// SIGINT at any moment removes the lab of an experiment or `up`.
#[test]
fn an_interrupt_removes_the_lab() {
    needs!("ip", "setsid");
    for delay_ms in [100, 300, 900] {
        let lab = Lab { name: unique_name() };
        let mut up = Command::new(unlade())
            .args(["lab", "up", "--servers", "2", "--name", &lab.name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        let pid = rustix::process::Pid::from_child(&up);
        // If the process has ended already, the lab is up and stays.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let status = up.wait().unwrap();
        match status.code() {
            Some(0) => assert_eq!(lab.status()["ready"], true),
            code => {
                // 130 from the handler, or the signal itself before the handler is installed.
                assert!(code == Some(130) || code.is_none(), "after {delay_ms} ms: {status}");
                if code.is_some() {
                    assert!(!lab.dir().exists(), "after {delay_ms} ms");
                }
                if !lab.traces().is_empty() {
                    assert_removed(&lab, delay_ms);
                }
            }
        }
    }
}

#[test]
fn a_bare_lab_runs_nothing() {
    needs!("ip", "setsid");
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--bare"]);
    let status = lab.status();
    let output = lab.run("restart", &["s1"]);
    assert_eq!(output.status.code(), Some(1), "a bare lab runs nothing: {}", said(&output));
    assert_eq!(lab.status(), status);
}

#[test]
fn exec_passes_the_status_on() {
    needs!("ip", "setsid");
    let lab = Lab::up(&["--servers", "1", "--objects", "small", "--bare"]);
    assert_eq!(lab.exec("s1", &["sh", "-c", "exit 42"]).status.code(), Some(42));
    assert_eq!(
        lab.exec_text("client", &["sh", "-c", "echo $UNLADE_LAB_DIR"]),
        lab.dir().display().to_string()
    );
    let unknown = lab.exec("s9", &["true"]);
    assert!(!unknown.status.success());
    let wrong = lab.exec("printer", &["true"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    let absent = run(["lab", "exec", "--name", "no_such_lab_here", "client", "--", "true"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(said(&absent).contains("unlade-lab: there is no lab"), "{}", said(&absent));
}

#[test]
fn links_are_as_asked_for() {
    if let Some(reason) = unable(&TOOLS) {
        println!("skipped: links_are_as_asked_for: {reason}");
        return;
    }
    let lab = Lab::up(&[
        "--servers",
        "1",
        "--bare",
        "--objects",
        "small",
        "--rate",
        "200mbit",
        "--offloads",
        "off",
    ]);
    for (node, device, shaped) in [
        ("lb", "eth0", true),
        ("s1", "eth0", true),
        ("sw", "lb", true),
        ("sw", "s1", true),
        ("client", "eth0", false),
        ("sw", "client", false),
    ] {
        let qdisc = lab.exec_text(node, &["tc", "qdisc", "show", "dev", device]);
        assert_eq!(qdisc.contains("tbf") && qdisc.contains("200Mbit"), shaped, "{node}: {qdisc}");
        let features = lab.exec_text(node, &["ethtool", "-k", device]);
        assert!(features.contains("tx-checksumming: off"), "{node}: {features}");
    }
    // The balancer announces the virtual IP, and every server has it as a local address.
    let status = lab.status();
    for key in ["virtual_v4", "virtual_v6"] {
        let ip = status[key].as_str().unwrap();
        let on_lb = lab.exec_text("lb", &["ip", "-o", "addr", "show", "dev", "eth0"]);
        let on_server = lab.exec_text("s1", &["ip", "-o", "addr", "show", "dev", "lo"]);
        assert!(on_lb.contains(ip) && on_server.contains(ip), "{ip}: {on_lb} {on_server}");
    }
    let own =
        lab.exec_text("lb", &["ip", "-4", "route", "get", status["virtual_v4"].as_str().unwrap()]);
    assert!(own.contains("local"), "{own}");
    let to_server = lab
        .exec_text("lb", &["sh", "-c", "ip -4 route get $(getent hosts s1.lab | cut -d' ' -f1)"]);
    assert!(
        !to_server.contains(&format!("src {}", status["virtual_v4"].as_str().unwrap())),
        "{to_server}"
    );
}

#[test]
fn objects_are_what_the_sums_say() {
    needs!("ip", "setsid", "sha256sum", "openssl");
    let lab = Lab::up(&["--servers", "1", "--bare", "--objects", "small", "--tls"]);
    let check = Command::new("sha256sum")
        .args(["--check", "--quiet"])
        .arg(lab.dir().join("SHA256SUMS"))
        .current_dir(lab.dir().join("objects"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", said(&check));
    let pki = lab.dir().join("pki");
    for (ca, certificate) in
        [("ca.crt", "objects.crt"), ("pool-ca.crt", "lb.crt"), ("pool-ca.crt", "s1.crt")]
    {
        let verify = Command::new("openssl")
            .args(["verify", "-CAfile"])
            .args([pki.join(ca), pki.join(certificate)])
            .output()
            .unwrap();
        assert!(verify.status.success(), "{}", said(&verify));
        let verify = text(&verify);
        assert!(verify.ends_with("OK"), "{verify}");
    }
}
