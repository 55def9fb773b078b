//! Linux's own NVMe/TCP initiator, in a virtual machine, against `unlade nvme target`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use system_tests::vm::{self, Network, Vm};
use system_tests::{said, text, turn, unlade};

/// Size of each namespace, in bytes.
const NAMESPACE_BYTES: u64 = 64 << 20;
const NQN: &str = "nqn.2026-01.io.unlade:vm";
/// Kernel modules of the initiator and of the file system.
const MODULES: [&str; 3] = ["nvme-tcp", "ext4", "crc32c_generic"];
/// Kernel modules for packet loss and reordering.
const LOSSY_MODULES: [&str; 5] = ["sch_netem", "ifb", "sch_ingress", "cls_matchall", "act_mirred"];

/// A target on a network, killed on drop.
struct Target {
    child: Child,
    log: Option<std::thread::JoinHandle<Vec<String>>>,
}

impl Target {
    fn start(network: &Network, options: &[&str]) -> Target {
        let usual = ["--listen", "192.0.2.1:4420", "--nqn", NQN, "--admin", "192.0.2.1:9902"];
        Target::start_plain(network, &[&usual, options].concat())
    }

    /// Starts a target with only these options.
    fn start_plain(network: &Network, options: &[&str]) -> Target {
        let mut command = network.command(unlade());
        command.args(["nvme", "target"]).args(options);
        command.stdin(Stdio::null()).stderr(Stdio::piped()).env("UNLADE_LOG", "info");
        let mut child = command.spawn().expect("the target starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut seen = Vec::new();
        // Waits for the message that it listens; the loop also ends with the target.
        for line in lines.by_ref().map_while(Result::ok) {
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains("serving NVMe/TCP")) {
                break;
            }
        }
        assert!(seen.last().is_some_and(|line| line.contains("serving")), "{seen:?}");
        let log = std::thread::spawn(move || {
            seen.extend(lines.map_while(Result::ok));
            seen
        });
        Target { child, log: Some(log) }
    }

    /// Ends the target orderly and returns its log.
    fn finish(mut self) -> Vec<String> {
        let sent = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill runs").success());
        let status = self.child.wait().expect("it ends");
        let log = self.log.take().map(|log| log.join().expect("a log")).unwrap_or_default();
        assert!(status.success(), "{status}: {log:#?}");
        log
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a value of the target's `/metrics`.
fn figure(metrics: &str, name: &str) -> u64 {
    let name = format!("unlade_nvme_{name}_total ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
}

fn metrics(network: &Network) -> String {
    let output =
        network.command("curl").args(["-sf", "http://192.0.2.1:9902/metrics"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    text(&output)
}

fn image(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    File::create(&path).unwrap().set_len(NAMESPACE_BYTES).unwrap();
    path.display().to_string()
}

fn digest(path: &str, bytes: u64) -> String {
    let ask = format!("head -c {bytes} '{path}' | sha256sum");
    let output = Command::new("sh").args(["-c", &ask]).output().unwrap();
    text(&output).split(' ').next().unwrap_or_default().to_owned()
}

/// Returns shell functions for the machine: connecting, waiting, comparing.
fn functions(options: &str) -> String {
    format!(
        r#"set -eu
say() {{ echo "$@"; }}
connect() {{
    echo "transport=tcp,traddr=192.0.2.1,trsvcid=4420,nqn={NQN},hostnqn=nqn.2026-01.io.unlade:host,hostid=5a0c52d6-7b0e-4d2e-8f0b-2a1c7a9e5f11,{options}" >/dev/nvme-fabrics
    FILES=$(device 1)
    RAW=$(device 2)
    [ -b $FILES ] && [ -b $RAW ]
}}
# Namespaces are discovered in parallel, so their order is random.
device() {{
    for _ in $(seq 600); do
        for at in /sys/block/nvme0n*; do
            if [ "$(cat $at/nsid 2>/dev/null)" = $1 ]; then echo /dev/${{at##*/}}; return; fi
        done
        sleep 0.1
    done
    echo "no namespace $1" >&2
    dmesg | tail -30 >&2
}}
disconnect() {{ echo 1 >/sys/class/nvme/nvme0/delete_controller; }}
files() {{
    mkfs.ext4 -q -F $FILES
    mkdir -p /mnt/disk
    mount -t ext4 $FILES /mnt/disk
    mkdir /mnt/disk/tree
    cp -r /usr/include/linux /mnt/disk/tree/
    (cd /usr/include/linux && find . -type f | sort | xargs sha256sum) >/dev/shm/before
    umount /mnt/disk
    echo 3 >/proc/sys/vm/drop_caches
    mount -t ext4 $FILES /mnt/disk
    (cd /mnt/disk/tree/linux && find . -type f | sort | xargs sha256sum) >/dev/shm/after
    cmp /dev/shm/before /dev/shm/after
    rm -r /mnt/disk/tree/linux/netfilter
    umount /mnt/disk
    fsck.ext4 -f -n $FILES >/dev/null
    say "files $(wc -l </dev/shm/after)"
}}
raw() {{
    head -c $1 /dev/urandom >/dev/shm/data
    for size in 4k 64k 1M; do
        dd if=/dev/shm/data of=$RAW bs=$size oflag=direct conv=fsync status=none
        dd if=$RAW bs=$size iflag=direct status=none | head -c $1 | cmp - /dev/shm/data
    done
    say "raw $(sha256sum </dev/shm/data | cut -d' ' -f1)"
}}
errors() {{ dmesg | grep -iE 'nvme.*(error|fail|digest|timeout|reset|invalid)' || true; }}
"#
    )
}

fn network() -> Option<Network> {
    if let Some(reason) = vm::skip_reason().or_else(|| system_tests::unable(&["curl", "mkfs.ext4"]))
    {
        println!("skipped: {reason}");
        return None;
    }
    match Network::new() {
        Ok(network) => Some(network),
        Err(reason) => {
            println!("skipped: no TAP device: {reason}");
            None
        }
    }
}

/// Returns the machine's output after a word.
fn printed<'a>(output: &'a str, word: &str) -> &'a str {
    let line = output.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word:?} in {output}")).trim()
}

/// Runs `steps` in the machine with a target of two files, and checks the files afterwards.
fn exchange(modules: &[&str], target_options: &[&str], host_options: &str, steps: &str) -> String {
    let _turn = turn();
    let Some(network) = network() else { return String::new() };
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (image(directory.path(), "1.img"), image(directory.path(), "2.img"));
    let namespaces = ["--namespace", &first, "--namespace", &second];
    let target = Target::start(&network, &[&namespaces, target_options].concat());
    let machine = Vm::new(modules).on(&network).timeout_s(500);
    let output = machine.run(&format!("{}{steps}", functions(host_options)));
    assert!(output.status.success(), "{}", said(&output));
    let printed_all = text(&output);
    let counted = metrics(&network);
    let log = target.finish();
    println!("{printed_all}\n{}", counted.replace("# TYPE", "\n# TYPE"));
    let lines = || format!("{log:#?}\n{counted}");
    assert_eq!(figure(&counted, "protocol_errors"), 0, "{}", lines());
    assert_eq!(figure(&counted, "host_terminations"), 0, "{}", lines());
    assert_eq!(figure(&counted, "header_digest_errors"), 0, "{}", lines());
    assert_eq!(figure(&counted, "data_digest_errors"), 0, "{}", lines());
    assert_eq!(printed(&printed_all, "errors:"), "", "{}", lines());
    let checked = Command::new("e2fsck").args(["-f", "-n", &first]).output().unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
    let bytes = printed(&printed_all, "bytes ").parse().unwrap();
    assert_eq!(digest(&second, bytes), printed(&printed_all, "raw "));
    counted
}

#[test]
fn linux_makes_a_file_system_and_reads_it_back_with_digests() {
    let steps = "connect; files; echo bytes 8388608; raw 8388608; disconnect\n\
                 echo errors: $(errors)\n";
    let options = "hdr_digest,data_digest,nr_io_queues=2,keep_alive_tmo=60";
    let counted = exchange(&MODULES, &["--block-bytes", "4096"], options, steps);
    if !counted.is_empty() {
        assert!(figure(&counted, "data_requests") > 0 && figure(&counted, "in_capsule_bytes") > 0);
        assert!(figure(&counted, "connects") >= 3, "an admin queue and two for I/O: {counted}");
    }
}

/// Returns the name of the only subsystem at a port, from discovery.
fn discovered(network: &Network, port: u16) -> String {
    let address = format!("nvme+tcp://192.0.2.1:{port}");
    let output = network.command(unlade()).args(["nvme", "discover", "--json", &address]).output();
    let output = output.expect("the program runs");
    let listed = text(&output);
    let entries = listed.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut subsystems = entries.filter(|entry: &serde_json::Value| entry["kind"] == "subsystem");
    let found = subsystems.next().unwrap_or_else(|| panic!("{}", said(&output)));
    found["subsystem"].as_str().expect("a name").to_owned()
}

/// A host that stays connected to a port, killed on drop.
struct Guest(Child);

impl Guest {
    /// Connects; also returns true if the controller has number 1.
    fn connect(network: &Network, port: u16, nqn: &str) -> (Guest, bool) {
        let address = format!("nvme+tcp://192.0.2.1:{port}?nqn={nqn}");
        let mut command = network.command(unlade());
        command.args(["nvme", "connect", &address, "--stay", "1h"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok).filter(|line| line.contains("controller"));
        let controller = lines.next().expect("it is connected");
        std::thread::spawn(move || lines.for_each(drop));
        (Guest(child), controller.contains("number 1,"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_default_targets_do_not_become_one_disk_of_linux() {
    const BLOCK: usize = 4096;
    let _turn = turn();
    let Some(network) = network() else { return };
    let directory = tempfile::tempdir().unwrap();
    let start = |port: u16, letter: u8| {
        let path = directory.path().join(format!("{}.img", char::from(letter)));
        std::fs::write(&path, vec![letter; 1 << 20]).unwrap();
        let listen = format!("192.0.2.1:{port}");
        let options = ["--listen", &listen, "--namespace", path.to_str().unwrap()];
        (Target::start_plain(&network, &options), path)
    };
    let ((target_a, path_a), (target_b, path_b)) = (start(4501, b'A'), start(4502, b'B'));
    let (nqn_a, nqn_b) = (discovered(&network, 4501), discovered(&network, 4502));
    // Linux refuses a second controller with the same number in a subsystem. Here the numbers
    // differ, because other hosts have number 1 at one target, once the discovery above has ended.
    let mut guests = Vec::new();
    for _ in 0..10 {
        let (guest, is_first) = Guest::connect(&network, 4502, &nqn_b);
        guests.push(guest);
        if is_first {
            break;
        }
    }
    let steps = format!(
        r#"set -eu
attach() {{
    echo "transport=tcp,traddr=192.0.2.1,trsvcid=$1,nqn=$2,hostnqn=nqn.2026-01.io.unlade:host,hostid=5a0c52d6-7b0e-4d2e-8f0b-2a1c7a9e5f11,nr_io_queues=1,keep_alive_tmo=60" >/dev/nvme-fabrics
}}
attach 4501 {nqn_a} || {{ dmesg | tail >&2; exit 1; }}
attach 4502 {nqn_b} || {{ dmesg | tail >&2; exit 1; }}
# Paths to one disk are nvme0c0n1 and the like.
disks() {{ ls -d /sys/block/nvme[0-9]n[0-9] 2>/dev/null | sed 's,/sys/block/,/dev/,'; }}
for _ in $(seq 600); do
    [ "$(disks | wc -l)" -lt 2 ] || break
    sleep 0.1
done
for policy in /sys/class/nvme-subsystem/*/iopolicy; do echo round-robin >$policy; done
for disk in $(disks); do
    seen=
    for _ in 1 2 3 4 5 6; do
        seen=$seen$(dd if=$disk bs={BLOCK} count=1 iflag=direct status=none | head -c 1)
    done
    echo "disk $seen"
    letter=$(echo ${{seen%?????}} | tr AB ab)
    head -c {BLOCK} /dev/zero | tr '\0' $letter >/dev/shm/block
    for place in 1 2 3 4 5 6; do
        dd if=/dev/shm/block of=$disk bs={BLOCK} seek=$place oflag=direct status=none
    done
done
dmesg | grep -iE 'nvme.*(error|fail|duplicate|reject)' || true
"#
    );
    let machine = Vm::new(&MODULES).on(&network).timeout_s(500);
    let output = machine.run(&steps);
    assert!(output.status.success(), "{}", said(&output));
    let said = text(&output);
    let mut disks: Vec<&str> = said.lines().filter(|line| line.starts_with("disk ")).collect();
    disks.sort_unstable();
    assert_eq!(disks, ["disk AAAAAA", "disk BBBBBB"], "{said}");
    drop(guests);
    target_a.finish();
    target_b.finish();
    for (path, old, new) in [(path_a, b'A', b'a'), (path_b, b'B', b'b')] {
        let there = std::fs::read(&path).unwrap();
        let is_new = |place: usize| (BLOCK..7 * BLOCK).contains(&place);
        let wrong = there
            .iter()
            .enumerate()
            .find(|(at, byte)| **byte != if is_new(*at) { new } else { old });
        assert_eq!(wrong, None, "{}", path.display());
    }
}

#[test]
fn linux_works_without_digests_and_with_small_requests() {
    let steps = "connect; files; echo bytes 4194304; raw 4194304\n\
                 blkdiscard -z $FILES 2>/dev/null || true; mkfs.ext4 -q -F $FILES\n\
                 disconnect; connect; fsck.ext4 -f -n $FILES >/dev/null; disconnect\n\
                 echo errors: $(errors)\n";
    let options = "nr_io_queues=1,queue_size=32,keep_alive_tmo=60";
    let target = ["--block-bytes", "512", "--request-bytes-max", "16KiB"];
    exchange(&MODULES, &target, options, steps);
}

#[test]
fn linux_works_where_packets_are_lost_and_reordered() {
    let steps = "impair() { tc qdisc add dev $1 root netem delay 1ms loss 2% reorder 98% 25%; }\n\
                 ip link add ifb0 type ifb 2>/dev/null || true; ip link set ifb0 up; tc qdisc add dev eth0 ingress\n\
                 tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0\n\
                 impair eth0; impair ifb0\n\
                 connect; files; echo bytes 2097152; raw 2097152; disconnect\n\
                 tc -s qdisc show dev ifb0 | grep -o 'dropped [0-9]*'\n\
                 echo errors: $(errors)\n";
    let modules = [&MODULES[..], &LOSSY_MODULES[..]].concat();
    let options = "hdr_digest,data_digest,nr_io_queues=2,keep_alive_tmo=60";
    exchange(&modules, &[], options, steps);
}
