//! SIGHUP and SIGTERM. The test has a process of its own, because it sends the signals to it.

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

#[test]
fn hangup_reads_the_file_again_and_terminate_drains() {
    let named =
        |name: &'static str| Server::answering(move |_| with_length("200 OK", name.as_bytes()));
    let (old, new) = (named("old"), named("new"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lb.toml");
    std::fs::write(&file, config(old.address, "")).unwrap();
    let loaded = unlade_balancer::BalancerConfig::load(&file).unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
    let balancer = unlade_balancer::Balancer::bind(loaded).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, maximum, "the soft limit is not raised");
    let address = balancer.addresses()[0];
    let running = std::thread::spawn(move || balancer.run(true));
    let mut client = Client::connect(address);
    assert_eq!(client.get("/").text(), "old");

    // An invalid configuration is not applied.
    std::fs::write(&file, config(new.address, "nonsense = 1")).unwrap();
    kill_process(getpid(), Signal::HUP).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(client.get("/").text(), "old");

    std::fs::write(&file, config(new.address, "")).unwrap();
    kill_process(getpid(), Signal::HUP).unwrap();
    let start = std::time::Instant::now();
    while client.get("/").text() != "new" {
        assert!(start.elapsed() < PATIENCE, "the old configuration is still in force");
    }
    kill_process(getpid(), Signal::TERM).unwrap();
    client.assert_closed();
    running.join().unwrap().unwrap();
}
