//! Members of one pool with different rights: a member that is not a balancer can neither hand
//! connections over nor read a server's state of a balancer's connections.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use system_tests::client::{Client, Target};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, pool, said, turn};
use unlade_channel::channel::ChannelError;
use unlade_handoff_protocol::frame::Frame;

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(20);
const ROLE: &str = "URI:unlade://role/balancer";

/// Issues a certificate of the pool as in the README.
fn issue(lab: &Lab, member: &str, names: &str, usages: &str) {
    let pki = lab.dir().join("pki");
    let path = |file: &str| -> String { pki.join(file).display().to_string() };
    let (key, csr) = (path(&format!("{member}.key")), path(&format!("{member}.csr")));
    let (subject, names) = (format!("/CN={member}"), format!("subjectAltName={names}"));
    let usages = format!("extendedKeyUsage={usages}");
    let request = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        &subject,
        "-addext",
        &names,
        "-addext",
        &usages,
        "-keyout",
        &key,
        "-out",
        &csr,
    ];
    let (ca, ca_key) = (path("pool-ca.crt"), path("pool-ca.key"));
    let certificate = path(&format!("{member}.crt"));
    let sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        &csr,
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-days",
        "1",
        "-copy_extensions",
        "copy",
        "-out",
        &certificate,
    ];
    for command in [&request[..], &sign] {
        let output = lab.exec("lb", command);
        assert!(output.status.success(), "{}", said(&output));
    }
}

/// Returns the instance of the balancer's first worker, from a server's log.
fn instance(lab: &Lab, server: &str) -> u64 {
    let log: PathBuf = lab.dir().join(format!("logs/{server}.log"));
    let text = std::fs::read_to_string(Path::new(&log)).unwrap();
    let line = text.lines().find(|line| line.contains("channel up")).expect("a channel");
    let digits = line.split("instance").nth(1).expect("its instance");
    let digits = digits.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap()
}

/// Sends HELLO for `instance` to an agent; returns the agent's list of connections.
fn hello(
    lab: &Lab,
    from: &str,
    to: SocketAddr,
    member: &str,
    instance: u64,
) -> Result<Frame, ChannelError> {
    pool::run_at(lab, from, async || {
        let mut channel = pool::hello(lab, to, member, instance).await?;
        channel.receive().await
    })
}

#[test]
fn a_server_cannot_take_the_connections_of_others_in_the_name_of_the_balancer() {
    needs!("ip", "setsid", "curl", "openssl");
    let _turn = turn();
    let args = ["--servers", "2", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--lb-workers", "1"]].concat());
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    // One connection stays at each server.
    let target = Target {
        address: (v4, 80).into(),
        tls: None,
        receive_buffer_bytes: None,
        patience: PATIENCE,
    };
    let get = "GET /64KiB HTTP/1.1\r\nHost: unlimited.objects.lab\r\n\r\n";
    let whole = std::fs::read(lab.dir().join("objects/64KiB")).unwrap();
    let ask = |client: &mut Client| {
        client.send(get.as_bytes()).unwrap();
        let response = client.response(false).unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.body == whole, "other bytes");
    };
    let mut clients: Vec<Client> = std::thread::scope(|scope| {
        let connect = || {
            lab.enter("client");
            (0..4).map(|_| Client::connect(&target).unwrap()).collect()
        };
        scope.spawn(connect).join().unwrap()
    });
    clients.iter_mut().for_each(ask);
    let broken = || Metrics::read(&lab, "lb").get("unlade_channel_breaks_total");
    let (before, instance) = (broken(), instance(&lab, "s1"));

    // A server's certificate; one with both usages and without the role; another balancer's.
    let members = [
        ("s1", None, true),
        ("both", Some(("DNS:both.lab".to_owned(), "serverAuth,clientAuth")), true),
        ("other", Some((format!("DNS:other.lab,{ROLE}"), "clientAuth")), false),
    ];
    let to = pool::agent(&lab, "s2");
    for (member, certificate, untrusted) in members {
        if let Some((names, usages)) = certificate {
            issue(&lab, member, &names, usages);
        }
        let told = hello(&lab, "s1", to, member, instance);
        clients.iter_mut().for_each(ask);
        match told {
            Ok(frame) => panic!("{member} is told {frame:?}"),
            Err(error) => assert_eq!(error.is_untrusted(), untrusted, "{member}: {error}"),
        }
    }
    let counted = || Metrics::read(&lab, "s2").get("unlade_untrusted_peers_total");
    assert!(wait_for(PATIENCE, || counted() == 3), "{}", counted());
    assert_eq!(broken(), before, "the balancer's channel was displaced");
    // The log names the remedy.
    let log = std::fs::read_to_string(lab.dir().join("logs/s2.log")).unwrap();
    assert!(log.contains("subjectAltName=IP:ADDRESS,URI:unlade://role/balancer"), "{log}");
    // Another balancer with its own instance is accepted.
    let told = hello(&lab, "lb", to, "other", instance ^ 1);
    assert!(matches!(&told, Ok(Frame::Owned(owned)) if owned.is_empty()), "{told:?}");
}
