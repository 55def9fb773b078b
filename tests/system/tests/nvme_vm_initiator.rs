//! `unlade nvme` against Linux's own NVMe/TCP target, in a virtual machine.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread::sleep;
use std::time::{Duration, Instant};
use system_tests::vm::{self, Network, Vm};
use system_tests::{said, text, turn, unlade};
use unlade_testkit::Random;

const NQN: &str = "nqn.2014-08.org.example:kernel";
// Without crc32c the kernel closes connections that request digests.
const MODULES: [&str; 3] = ["nvmet", "nvmet-tcp", "crc32c"];
const LOSSY_MODULES: [&str; 5] = ["sch_netem", "ifb", "sch_ingress", "cls_matchall", "act_mirred"];
/// Size of the namespace, in bytes.
const DISK_BYTES: usize = 32 << 20;
/// Offset of the written part, in bytes.
const OFFSET: usize = 4 << 20;
/// Time limit until the machine's target answers.
const BOOT: Duration = Duration::from_secs(120);

/// Returns a script that runs the kernel's target on a file in memory until a connection to port
/// 4999, and then prints the file.
fn script(before: &str) -> String {
    format!(
        "set -e
        {before}
        truncate -s {DISK_BYTES} /dev/shm/disk
        cd /sys/kernel/config/nvmet
        mkdir subsystems/{NQN}
        echo 1 >subsystems/{NQN}/attr_allow_any_host
        mkdir subsystems/{NQN}/namespaces/1
        echo -n /dev/shm/disk >subsystems/{NQN}/namespaces/1/device_path
        echo 1 >subsystems/{NQN}/namespaces/1/buffered_io
        echo 1 >subsystems/{NQN}/namespaces/1/enable
        mkdir ports/1
        echo ipv4 >ports/1/addr_adrfam
        echo tcp >ports/1/addr_trtype
        echo {machine} >ports/1/addr_traddr
        echo 4420 >ports/1/addr_trsvcid
        ln -s /sys/kernel/config/nvmet/subsystems/{NQN} ports/1/subsystems/{NQN}
        /run/vm/modules/busybox nc -l -p 4999 </dev/null >/dev/null || true
        sha256sum </dev/shm/disk
        ",
        machine = Network::MACHINE,
    )
}

/// Loses 2 % and reorders 2 % of the packets, in both directions.
const LOSS: &str = "
    ip link add name ifb0 type ifb 2>/dev/null || true
    ip link set ifb0 up
    tc qdisc add dev eth0 root netem delay 1ms loss 2% reorder 2%
    tc qdisc add dev eth0 ingress
    tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
    tc qdisc add dev ifb0 root netem delay 1ms loss 2% reorder 2%
";

/// Ends the machine's script on drop, also if the test fails.
struct End<'n>(&'n Network);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let ask = format!("exec 3<>/dev/tcp/{}/4999", Network::MACHINE);
        // The machine may have ended already.
        let _ = self.0.command("timeout").args(["10", "bash", "-c", &ask]).output();
    }
}

fn nvme(network: &Network, arguments: &[&str]) -> Output {
    network.command(unlade()).arg("nvme").args(arguments).output().unwrap()
}

fn done(network: &Network, arguments: &[&str]) -> String {
    let output = nvme(network, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    text(&output)
}

fn wait_for_target(network: &Network, address: &str) -> String {
    let started = Instant::now();
    loop {
        let output = nvme(network, &["discover", address]);
        if output.status.success() {
            return text(&output);
        }
        assert!(started.elapsed() < BOOT, "no target: {}", said(&output));
        sleep(Duration::from_millis(500));
    }
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

/// Writes, reads and verifies; returns the expected contents of the namespace.
fn use_target(network: &Network, directory: &Path, seed: u64, digests: &[&str]) -> Vec<u8> {
    let base = format!("nvme+tcp://{}", Network::MACHINE);
    let address = format!("{base}/1");
    let with = |arguments: &[&str]| done(network, &[arguments, digests].concat());
    let shown = with(&["connect", &base, "--queues", "2", "--stay", "12s", "--keep-alive", "20s"]);
    let digest = if digests.is_empty() { "no" } else { "yes" };
    let agreed = format!("2 I/O queues, header digest {digest}, data digest {digest}");
    assert!(shown.contains(&agreed) && shown.contains("32MiB"), "{shown}");
    assert!(shown.contains("signs of life answered, 0 reconnections"), "{shown}");
    assert!(!shown.contains(" 0 signs of life"), "{shown}");

    // Covers the whole namespace; the program verifies the data.
    let mut mix = vec!["bench", &address, "--pattern", "mix", "--verify", "--overwrite"];
    mix.extend(["--span", "32MiB", "--block-bytes", "64KiB", "--depth", "8", "--queues", "2"]);
    mix.extend(["--duration", "3s", "--timeout", "120s"]);
    let measured = with(&mix);
    assert!(measured.contains("all as they should be"), "{measured}");
    let expected_before = directory.join("before.img");
    with(&["read", &address, "--out", path(&expected_before)]);
    let mut disk = fs::read(&expected_before).unwrap();
    assert_eq!(disk.len(), DISK_BYTES);

    let written = Random::new(seed).bytes(8 << 20);
    let (source, copy) = (directory.join("in.img"), directory.join("out.img"));
    fs::write(&source, &written).unwrap();
    with(&["write", &address, "--offset", &OFFSET.to_string(), "--in", path(&source)]);
    disk[OFFSET..OFFSET + written.len()].copy_from_slice(&written);
    // From the middle of one block to the middle of another.
    let (from, bytes) = (OFFSET - 100, written.len() + 333);
    let (offset, length) = (from.to_string(), bytes.to_string());
    with(&["read", &address, "--offset", &offset, "--length", &length, "--out", path(&copy)]);
    assert!(fs::read(&copy).unwrap() == disk[from..from + bytes], "seed {seed}");
    disk
}

fn sha256(directory: &Path, bytes: &[u8]) -> String {
    let file = directory.join("expected.img");
    fs::write(&file, bytes).unwrap();
    let output = std::process::Command::new("sha256sum").arg(&file).output().unwrap();
    text(&output).split(' ').next().unwrap_or_default().to_owned()
}

fn interop(before: &str, modules: &[&str], runs: &[&[&str]]) {
    if let Some(reason) = vm::skip_reason() {
        println!("skipped: {reason}");
        return;
    }
    let _turn = turn();
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let seed = unlade_testkit::seed();
    let (output, disk) = std::thread::scope(|scope| {
        let machine =
            scope.spawn(|| Vm::new(modules).on(&network).timeout_s(500).run(&script(before)));
        let end = End(&network);
        let address = format!("nvme+tcp://{}", Network::MACHINE);
        let listed = wait_for_target(&network, &address);
        assert!(listed.contains(NQN), "{listed}");
        let mut disk = Vec::new();
        for (number, digests) in runs.iter().enumerate() {
            disk = use_target(&network, directory.path(), seed ^ number as u64, digests);
        }
        drop(end);
        (machine.join().unwrap(), disk)
    });
    assert!(output.status.success(), "{}", said(&output));
    let there = text(&output).split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(there, sha256(directory.path(), &disk), "the file behind the namespace");
}

#[test]
fn the_kernels_target_is_understood_with_and_without_digests() {
    interop("", &MODULES, &[&[], &["--digests"]]);
}

#[test]
fn the_kernels_target_is_understood_over_a_bad_network() {
    let modules = [&MODULES[..], &LOSSY_MODULES[..]].concat();
    interop(LOSS, &modules, &[&["--digests"]]);
}
