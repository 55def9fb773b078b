//! Drain of a server with busy clients.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use system_tests::client::{Client, End, Target};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};
use unlade_testkit::{Random, seed};

const CLIENTS: u64 = 200;
const DRAINS: usize = 4;
/// Maximum number of requests of a client on one connection.
const REQUESTS_MAX: u64 = 30;
/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(25);
const OBJECTS: [&str; 3] = ["4KiB", "64KiB", "1MiB"];

struct Load {
    target: Target,
    objects: BTreeMap<&'static str, Vec<u8>>,
    stop: AtomicBool,
    answered: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Load {
    fn client(&self, mut random: Random) {
        while !self.stop.load(Ordering::Relaxed) {
            let mut requests = 0;
            match self.requests(&mut random, &mut requests) {
                // An announced end: the client connects again.
                Ok(()) => {}
                Err(end) => {
                    let fault = format!("{end:?} after {requests} requests");
                    self.faults.lock().unwrap().push(fault);
                }
            }
        }
    }

    fn requests(&self, random: &mut Random, requests: &mut u64) -> Result<(), End> {
        let mut client = Client::connect(&self.target).map_err(|error| End::of(&error))?;
        while !self.stop.load(Ordering::Relaxed) {
            let kinds = if random.percent(95) { 2 } else { 3 };
            let name = random.pick(&OBJECTS[..kinds]);
            let request = format!("GET /{name} HTTP/1.1\r\nHost: unlimited.objects.lab\r\n\r\n");
            let sent = client.send(request.as_bytes());
            sent.map_err(|error| End::of(&error))?;
            let response = client.response(false).map_err(|broken| broken.why)?;
            if response.status() != 200 || response.body != self.objects[name] {
                return Err(End::Garbage(format!("{name}: {response:?}")));
            }
            *requests += 1;
            self.answered.fetch_add(1, Ordering::Relaxed);
            // New connections give a restarted server its share again.
            if response.closes() || *requests >= REQUESTS_MAX {
                return Ok(());
            }
            // Think time of the client; sometimes longer than the server's idle time.
            let pause_ms = if random.percent(3) { 1_200 } else { 50 + random.below(300_u64) };
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
        Ok(())
    }
}

#[test]
fn a_server_that_drains_under_load_resets_no_client() {
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = Lab::up(&["--servers", "2", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let content =
        |name: &'static str| (name, std::fs::read(lab.dir().join("objects").join(name)).unwrap());
    let [v4, _] = lab.virtual_ips();
    let load = Load {
        target: Target {
            address: (v4, 80).into(),
            tls: None,
            receive_buffer_bytes: None,
            patience: PATIENCE,
        },
        objects: OBJECTS.map(content).into(),
        stop: AtomicBool::new(false),
        answered: AtomicU64::new(0),
        faults: Mutex::new(Vec::new()),
    };
    let seed = seed();
    std::thread::scope(|scope| {
        let (lab, load) = (&lab, &load);
        for number in 0..CLIENTS {
            scope.spawn(move || {
                lab.enter("client");
                load.client(Random::numbered(seed, number));
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for drain in 0..DRAINS {
                let server = format!("s{}", 1 + drain % 2);
                let due = load.answered.load(Ordering::Relaxed) + 4 * CLIENTS;
                let answered = || load.answered.load(Ordering::Relaxed) >= due;
                assert!(wait_for(PATIENCE, answered), "clients are not answered");
                // The remaining server is healthy again, and the other one busy.
                let adopts =
                    |server| Metrics::read(lab, server).get("unlade_backend_adoptions_total") > 0;
                let both = wait_for(PATIENCE, || adopts("s1") && adopts("s2"));
                assert!(both, "{}", Metrics::read(lab, "lb").noteworthy());
                // The server must end within the drain.
                lab.end(&server, "TERM");
                let faults = load.faults.lock().unwrap().clone();
                assert!(faults.is_empty(), "drain {drain} of {server}: {faults:?}");
                let restarted = lab.run("restart", &[&server]);
                assert!(restarted.status.success(), "{}", said(&restarted));
                lab.wait_channels();
            }
        }));
        load.stop.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let faults = load.faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    let balancer = Metrics::read(&lab, "lb");
    assert_eq!(balancer.get("unlade_resets_sent_total"), 0, "{}", balancer.noteworthy());
    for server in ["s1", "s2"] {
        let log = std::fs::read_to_string(lab.dir().join(format!("logs/{server}.log"))).unwrap();
        assert!(!log.contains("dropped, because the drain took too long"), "{server}: {log}");
    }
}

/// Returns true if a process exists and is not a zombie.
fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid).is_ok() && stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Stops a process and waits until all its threads are stopped.
fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let stands = || {
        std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    };
    assert!(wait_for(PATIENCE, stands), "it does not stop");
}

/// A busy balancer reads returned connections late. Until then the clients' packets still go to the
/// server, which sends them back; if the server had ended, they would cause a RST.
#[test]
fn a_server_that_drains_waits_until_its_balancer_has_read_what_came_back() {
    /// Shorter than the allowed silence of a balancer.
    const OBSERVED: Duration = Duration::from_millis(600);
    needs!("ip", "setsid", "curl", "kill");
    let _turn = turn();
    let lab = Lab::up(&["--servers", "2", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let target = Target {
        address: (v4, 80).into(),
        tls: None,
        receive_buffer_bytes: None,
        patience: PATIENCE,
    };
    let content = std::fs::read(lab.dir().join("objects/4KiB")).unwrap();
    let get = b"GET /4KiB HTTP/1.1\r\nHost: unlimited.objects.lab\r\n\r\n";
    let all = lab.processes();
    let pid = |name: &str| {
        let (_, pid) = all.iter().find(|(known, _)| known == name).unwrap();
        Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap()
    };
    let (server, balancer) = (pid("s1"), pid("lb"));
    let mut clients: Vec<Client> = std::thread::scope(|scope| {
        let connect = || {
            lab.enter("client");
            (0..24).map(|_| Client::connect(&target).unwrap()).collect()
        };
        scope.spawn(connect).join().unwrap()
    });
    let ask = |client: &mut Client| client.send(get).unwrap();
    let hear = |client: &mut Client| {
        let response = client.response(false).unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.body == content, "other bytes");
    };
    // Twice, so that each connection is at a server after its response.
    for _ in 0..2 {
        clients.iter_mut().for_each(ask);
        clients.iter_mut().for_each(hear);
    }
    stop(balancer);
    kill_process(server, Signal::TERM).unwrap();
    let returned = || Metrics::read(&lab, "s1").get("unlade_backend_releases_total") > 0;
    let ended = wait_for(OBSERVED, || !runs(server) || returned());
    clients.iter_mut().for_each(ask);
    let early = wait_for(OBSERVED, || !runs(server));
    kill_process(balancer, Signal::CONT).unwrap();
    clients.iter_mut().for_each(hear);
    assert!(ended, "nothing was given back");
    assert!(!early, "the server ended before the balancer had read what came back");
    let ends = wait_for(PATIENCE, || !runs(server));
    assert!(ends, "the server does not end");
    assert_eq!(Metrics::read(&lab, "lb").get("unlade_resets_sent_total"), 0);
}
