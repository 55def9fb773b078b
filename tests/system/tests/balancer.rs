//! Changes of a balancer while servers own its connections: a drain, new certificates, routes and
//! servers, a silent server.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};
use system_tests::client::{Broken, Client, End, Target, TlsVersions, tls_config};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, Program, needs, turn, unlade};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// Host whose connections stay at their servers.
const STAYS: &str = "unlimited.objects.lab";

fn lab(servers: &str) -> Lab {
    let lab =
        Lab::up(&["--tls", "--servers", servers, "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    lab
}

fn metric(lab: &Lab, node: &str, name: &str) -> u64 {
    Metrics::read(lab, node).get(name)
}

fn signal(lab: &Lab, process: &str, signal: &str) {
    let processes = lab.processes();
    let (_, pid) = processes.iter().find(|(name, _)| name == process).expect("it runs");
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "{process} cannot be signalled");
}

fn target(lab: &Lab, tls: bool) -> Target {
    let [v4, _] = lab.virtual_ips();
    let config = tls_config(&lab.dir().join("pki/ca.crt"), TlsVersions::Both);
    Target {
        address: SocketAddr::new(v4, if tls { 443 } else { 80 }),
        tls: tls.then(|| (config, "objects.lab".to_owned())),
        receive_buffer_bytes: None,
        patience: PATIENCE,
    }
}

/// Runs `work` on a thread inside the client's network.
fn at_client<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            lab.enter("client");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Opens a connection of the client.
fn connect(lab: &Lab, tls: bool) -> Client {
    let target = target(lab, tls);
    at_client(lab, || Client::connect(&target)).expect("it connects")
}

/// Requests 4 KiB. Returns true if the connection continues.
fn get(client: &mut Client, host: &str) -> Result<bool, End> {
    let request = format!("GET /4KiB HTTP/1.1\r\nHost: {host}\r\n\r\n");
    // If sending fails, reading returns the reason.
    let _ = client.send(request.as_bytes());
    let response = client.response(false).map_err(|Broken { why, .. }| why)?;
    assert_eq!((response.status(), response.body.len()), (200, 4096), "{response:?}");
    Ok(!response.closes())
}

/// Runs clients that send requests without pause until the balancer ends the connection. Returns
/// the end of each.
fn busy_clients(lab: &Lab, count: usize, answered: &AtomicU64, then: impl FnOnce()) -> Vec<End> {
    let hosts = ["one.objects.lab", "eight.objects.lab", STAYS];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let target = target(lab, number % 2 == 0);
                scope.spawn(move || {
                    lab.enter("client");
                    let mut client = Client::connect(&target).expect("it connects");
                    loop {
                        match get(&mut client, hosts[number % hosts.len()]) {
                            Ok(true) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                            // `Connection: close` announced the end.
                            Ok(false) => return End::Closed,
                            Err(end) => return end,
                        }
                    }
                })
            })
            .collect();
        then();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Regression: connections that returned during a drain were handed over again, so the drain did
/// not end, and the rest was reset at its deadline.
#[test]
fn a_balancer_with_busy_clients_drains_without_a_reset() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab("2");
    let answered = AtomicU64::new(0);
    let ends = busy_clients(&lab, 12, &answered, || {
        assert!(wait_for(PATIENCE, || answered.load(Ordering::Relaxed) > 1000), "no answers");
        // The time limit of `end` is shorter than the drain's deadline.
        lab.end("lb", "TERM");
    });
    assert!(ends.iter().all(|end| *end == End::Closed), "{ends:?}");
}

/// Creates another CA for the pool, and new certificates of all its members.
fn reissue(lab: &Lab, servers: usize) {
    let pki = lab.dir().join("pki");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = CertifiedIssuer::self_signed(params, key).unwrap();
    let write = |file: &Path, text: String| std::fs::write(file, text).unwrap();
    write(&pki.join("pool-ca.crt"), authority.pem());
    let nodes = std::iter::once("lb".to_owned()).chain((1..=servers).map(|n| format!("s{n}")));
    for node in nodes {
        let mut params = CertificateParams::new(vec![format!("{node}.lab")]).unwrap();
        // Subject and names stay, since they identify the balancer.
        params.distinguished_name.push(DnType::CommonName, format!("{node}.lab"));
        params.subject_alt_names.push(match node.as_str() {
            "lb" => SanType::URI("unlade://role/balancer".try_into().unwrap()),
            _ => SanType::IpAddress(agent_of(lab, &node).0.ip()),
        });
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        write(&pki.join(format!("{node}.crt")), certificate.pem());
        write(&pki.join(format!("{node}.key")), key.serialize_pem());
    }
}

/// Returns the address of a server's agent, and the server's configuration.
fn agent_of(lab: &Lab, node: &str) -> (SocketAddr, String) {
    let config = std::fs::read_to_string(lab.dir().join(format!("config/{node}.toml"))).unwrap();
    let mut agent = config.lines().skip_while(|line| *line != "[agent]");
    let address = agent.nth(1).and_then(|line| line.split('"').nth(1)).unwrap().parse().unwrap();
    (address, config)
}

/// Regression: after a reload, channels kept their old certificates, so a broken channel did not
/// come back.
#[test]
fn certificates_of_the_pool_follow_a_reload_and_connections_that_are_away_go_on() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab("1");
    let mut away: Vec<Client> = (0..4).map(|n| connect(&lab, n % 2 == 0)).collect();
    for client in &mut away {
        assert_eq!(get(client, STAYS), Ok(true));
    }
    let connects = || metric(&lab, "lb", "unlade_channel_connects_total");
    let up = || metric(&lab, "lb", "unlade_channels_up");
    let (channels, before) = (up(), connects());
    let adopted = || metric(&lab, "s1", "unlade_backend_adoptions_total");
    reissue(&lab, 1);
    // The server reloads first and does not trust the balancer until that reloads, too.
    signal(&lab, "s1", "HUP");
    signal(&lab, "lb", "HUP");
    let renewed = wait_for(PATIENCE, || connects() >= before + channels && up() == channels);
    assert!(renewed, "{} of {channels} channels, {} connects", up(), connects() - before);
    for client in &mut away {
        assert_eq!(get(client, STAYS), Ok(true), "a connection was lost");
    }
    let reset = metric(&lab, "lb", "unlade_resets_sent_total");
    assert_eq!(reset, 0, "{}", Metrics::read(&lab, "lb").noteworthy());
    // New connections are handed over.
    let adoptions = adopted();
    assert_eq!(get(&mut connect(&lab, false), STAYS), Ok(true));
    assert!(wait_for(PATIENCE, || adopted() > adoptions), "nothing is handed over any more");
}

/// The lab's balancer with a modified configuration.
struct Own {
    _program: Program,
    path: std::path::PathBuf,
}

impl Own {
    fn start(lab: &Lab, config: &str) -> Own {
        lab.end("lb", "TERM");
        let path = lab.dir().join("config/own.toml");
        std::fs::write(&path, config).unwrap();
        let shown = path.display().to_string();
        let program = lab.start("lb", unlade(), &["lb", "--config", &shown]);
        let own = Own { _program: program, path };
        let answers = wait_for(PATIENCE, || {
            let target = target(lab, false);
            at_client(lab, || Client::connect(&target)).is_ok()
        });
        assert!(answers, "the balancer does not start");
        own
    }

    fn reload(&self, config: &str) {
        std::fs::write(&self.path, config).unwrap();
        let pid = self._program.id().to_string();
        assert!(Command::new("kill").args(["-s", "HUP", &pid]).status().unwrap().success());
    }
}

/// Regression: offload that was off at the start stayed off, counted as "unsupported"; connections
/// stayed at a server that was removed from all pools, and its channel was retried for ever.
#[test]
fn routes_and_servers_follow_a_reload() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab("2");
    let always = std::fs::read_to_string(lab.dir().join("config/lb.toml")).unwrap();
    let off = always.replace("offload = \"always\"", "offload = \"off\"");
    let off = off.replace("offload = \"auto\"", "offload = \"off\"");
    assert!(off != always && !off.contains("\"always\""), "{always}");
    let own = Own::start(&lab, &off);
    let lb = |name: &str| metric(&lab, "lb", name);
    assert_eq!(get(&mut connect(&lab, false), STAYS), Ok(true));
    assert_eq!(lb("unlade_lb_migrations_completed_total"), 0);

    own.reload(&always);
    lab.wait_channels();
    let mut away: Vec<Client> = (0..8).map(|n| connect(&lab, n % 2 == 0)).collect();
    for client in &mut away {
        assert_eq!(get(client, STAYS), Ok(true));
    }
    assert_eq!(lb("unlade_lb_migrations_completed_total"), 8);
    let channels = lb("unlade_channels_up");
    let adopted = |node: &str| metric(&lab, node, "unlade_backend_adoptions_total");
    assert!(adopted("s1") > 0 && adopted("s2") > 0, "{} {}", adopted("s1"), adopted("s2"));

    let (gone, _) = agent_of(&lab, "s1");
    let gone = format!("\"{}\", ", gone.ip());
    assert!(always.contains(&gone), "{always}");
    own.reload(&always.replace(&gone, ""));
    let closed = wait_for(PATIENCE, || lb("unlade_channels_up") == channels / 2);
    assert!(closed, "{} of {channels} channels", lb("unlade_channels_up"));
    let (connects, before) = (lb("unlade_channel_connects_total"), adopted("s1"));
    for client in &mut away {
        assert_eq!(get(client, STAYS), Ok(true), "a connection was lost");
    }
    assert_eq!(adopted("s1"), before);
    assert_eq!(lb("unlade_channel_connects_total"), connects);
    assert_eq!(lb("unlade_resets_sent_total"), 0, "{}", Metrics::read(&lab, "lb").noteworthy());

    // A key that needs a restart is named, and the rest of the file is not applied.
    own.reload(&always.replace("[offload]\n", "[offload]\nflows_max = 77\n"));
    own.reload(&always);
    lab.wait_channels();
}

/// A stopped process, continued on drop.
struct Stopped<'l>(&'l Lab, &'static str);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        signal(self.0, self.1, "CONT");
    }
}

/// Regression: the kernel of a stopped server accepts connections, which are not answered. A
/// request that could not be handed over was proxied to it.
#[test]
fn a_silent_server_gets_no_request_while_there_is_another() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = lab("2");
    let _stopped = Stopped(&lab, "s1");
    signal(&lab, "s1", "STOP");
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (target, failed, lab) = (target(&lab, number % 2 == 0), &failed, &lab);
            scope.spawn(move || {
                lab.enter("client");
                for _ in 0..3 {
                    let answer = Client::connect(&target).map_err(|error| End::of(&error));
                    let answer = answer.and_then(|mut client| get(&mut client, "one.objects.lab"));
                    if let Err(end) = answer {
                        println!("connection {number}: {end:?}");
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let noteworthy = Metrics::read(&lab, "lb").noteworthy();
    assert!(!failed.load(Ordering::Relaxed), "{noteworthy}");
}
